// The sum of squares on the device: against the CPU, exact on whole numbers, and never finite by accident.
#include "llmc/cuda/global_norm.cuh"
#include "llmc/cpu/global_norm.h"
#include "test/cuda_testing.h"  // OnDevice

// The same double twice, from memory that held something else.
static double norm_squared(Cuda& cuda, const Floats& x) {
    const OnDevice<float> d_x(cuda, x);
    OnDevice<double> first(cuda, 1), second(cuda, std::vector<double>{7});
    global_norm_squared(cuda, first.data, d_x.data, int64_t(x.size()));
    global_norm_squared(cuda, second.data, d_x.data, int64_t(x.size()));
    const double got = first.values()[0], again = second.values()[0];
    CHECK(std::memcmp(&got, &again, sizeof got) == 0);
    return got;
}

TEST_CASE("global_norm_squared on the device agrees with the CPU", "[global_norm]" ON_DEVICE) {
    const size_t n = GENERATE(size_t(1), size_t(7), size_t(5000), size_t(5 * kNormChunk + 3));
    INFO(n << " elements");
    const Floats x = randn(n, 1, 3);
    Cpu cpu;
    double want = 0;
    global_norm_squared(cpu, &want, x.data(), int64_t(n));
    Cuda cuda;
    // Chains of 256 and of 64 squares before the sums go on: sqrt(256) half units if alone, a quarter of that for the
    // mean of sixteen lanes and more; and the tree of a block's 256 threads.
    CHECK(std::fabs(norm_squared(cuda, x) - want) <= 4 * kEpsF32 * want);
}

TEST_CASE("global_norm_squared of whole numbers is exact on the device", "[global_norm]" ON_DEVICE) {
    // An element more and less than a pack, a block's step and a chunk; more chunks than the last block has threads.
    const int64_t n = GENERATE(0, 1, 3, 4, 5, 1023, 1024, 1025, kNormChunk - 1, kNormChunk, kNormChunk + 1,
                               2 * kNormChunk + 4097, kSumThreads * kNormChunk + 5);
    INFO(n << " elements");
    const Floats x = whole_numbers(n, 1, 10);  // a chunk's squares sum to less than 2^24
    double want = 0;
    for (const float value : x) want += double(value) * value;
    Cuda cuda;
    CHECK(norm_squared(cuda, x) == want);
}

TEST_CASE("global_norm_squared on the device is not finite if any element is not", "[global_norm]" ON_DEVICE) {
    const size_t n = 2 * kNormChunk + 1030;
    const size_t at = GENERATE(size_t(0), size_t(5), size_t(kNormChunk) - 1, size_t(2 * kNormChunk) + 1,
                               size_t(2 * kNormChunk) + 1029);
    Floats x = randn(n, 1);
    Cuda cuda;
    for (const float bad : {std::nanf(""), INFINITY, -INFINITY, 1e20f}) {
        x[at] = bad;
        CHECK(!std::isfinite(norm_squared(cuda, x)));
    }
    x[at] = 1;
    CHECK(std::isfinite(norm_squared(cuda, x)));
}
