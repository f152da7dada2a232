// The hash of weights on the device equals the CPU's.
#include "llmc/cuda/weight_hash.cuh"
#include "llmc/cpu/weight_hash.h"
#include "test/cuda_testing.h"  // OnDevice

TEMPLATE_TEST_CASE("add_hash on the device is the CPU's", "[weight_hash]" ON_DEVICE, float, bf16) {
    using T = TestType;
    Cuda cuda;
    const int64_t round = kHashThreads * kHashPacks * Pack<T>::size, grid = kHashBlocksPerSm * cuda.num_sms * round;
    // An element more and less than a word's, a thread's, a block's and the grid's.
    const int64_t n =
        GENERATE_COPY(0, 1, 2, 3, 4, 5, 7, 8, 9, 1000, round - 1, round, round + 1, 3 * round + 37, grid + 1001);
    const int64_t first_index = GENERATE(0, 4000);
    INFO(n << " elements from " << first_index << " on");
    Rng rng(uint64_t(n), Stream::tests);
    std::vector<T> x(static_cast<size_t>(n));
    for (T& value : x) {
        const uint64_t bits = rng.next();  // NaN and infinity among them
        std::memcpy(&value, &bits, sizeof value);
    }
    Cpu cpu;
    uint64_t want = 1000;
    add_hash(cpu, &want, x.data(), n, first_index);
    const OnDevice<T> d_x(cuda, x);
    OnDevice<uint64_t> sum(cuda, std::vector<uint64_t>{1000});
    add_hash(cuda, sum.data, d_x.data, n, first_index);
    CHECK(sum.values()[0] == want);
}

TEST_CASE("add_hash on the device wants parts that begin with a word", "[weight_hash]" ON_DEVICE) {
    Cuda cuda;
    OnDevice<uint64_t> sum(cuda, std::vector<uint64_t>{0});
    const OnDevice<float> x(cuda, Floats(4));
    const OnDevice<bf16> narrow(cuda, Floats(4));
    CHECK(contains(error_of([&] { add_hash(cuda, sum.data, x.data, 4, 1); }), "1: internal: first_index"));
    CHECK(contains(error_of([&] { add_hash(cuda, sum.data, narrow.data, 4, 2); }), "1: internal: first_index"));
    CHECK(sum.values()[0] == 0);
}
