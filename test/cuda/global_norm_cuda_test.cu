// The sum of squares on the device has the CPU's bits.
#include "llmc/cuda/global_norm.cuh"
#include "llmc/cpu/global_norm.h"
#include "test/cuda_testing.h"  // OnDevice

// On top of what was there, twice.
static ExactSum squares_of(Cuda& cuda, const Floats& x) {
    const OnDevice<float> d_x(cuda, x);
    ExactSum start;
    start.add(2.5);
    OnDevice<ExactSum> first(cuda, std::vector{start}), second(cuda, std::vector{start});
    add_squares(cuda, first.data, d_x.data, int64_t(x.size()));
    add_squares(cuda, second.data, d_x.data, int64_t(x.size()));
    ExactSum got = first.values()[0], again = second.values()[0];
    CHECK(std::memcmp(&got, &again, sizeof got) == 0);
    got.add(-2.5);
    return got;
}

static void check_words(Cuda& cuda, const Floats& x) {
    Cpu cpu;
    ExactSum want;
    add_squares(cpu, &want, x.data(), int64_t(x.size()));
    const ExactSum got = squares_of(cuda, x);
    INFO(x.size() << " elements: got " << got.value() << " and " << got.not_finite << " not finite, want "
                  << want.value() << " and " << want.not_finite);
    CHECK(std::memcmp(&got, &want, sizeof got) == 0);
}

TEST_CASE("add_squares on the device has the CPU's words", "[global_norm]" ON_DEVICE) {
    Cuda cuda;
    const int64_t round = kNormRoundElements, grid = cuda.num_sms * kNormBlocksPerSm * kNormWarps * round;
    // An element more and less than a lane's, a unit's, a warp's and the grid's.
    const int64_t n = GENERATE_COPY(0, 1, 3, 4, 15, 16, 17, 31, 32, 33, 1000, round - 1, round, round + 1,
                                    3 * round + 37, kNormWarps * round + 1, grid + 2 * round + 4);
    Rng rng(uint64_t(n), Stream::tests);
    Floats x = randn(size_t(n), 1);
    check_words(cuda, x);
    for (float& value : x) value = std::ldexp(value, int(rng.below(90)) - 50);  // units in several words
    check_words(cuda, x);
    // Every unit of another size: bits of units anywhere in a word, lanes in many words at a time.
    for (int64_t i = 0; i < n; i++)
        x[size_t(i)] = std::ldexp(x[size_t(i)] < 0 ? -1.9999999f : 1.9999999f, int(i / 32 * 37 % 130) - 70);
    check_words(cuda, x);
    std::fill(x.begin(), x.end(), 0x1.fffffep0f);  // all of a unit's bits
    check_words(cuda, x);
}

TEST_CASE("add_squares on the device counts units that are not finite", "[global_norm]" ON_DEVICE) {
    const size_t n = 2 * kNormRoundElements + 1030;
    const size_t at = GENERATE(size_t(0), size_t(5), size_t(kNormRoundElements) - 1, size_t(2 * kNormRoundElements) + 1,
                               size_t(2 * kNormRoundElements) + 1029);
    Floats x = randn(n, 1);
    Cuda cuda;
    for (const float bad : {std::nanf(""), INFINITY, -INFINITY, 1e20f}) {
        x[at] = bad;
        x[40] = bad;
        check_words(cuda, x);
        CHECK(squares_of(cuda, x).not_finite == 2);
        CHECK(std::isnan(squares_of(cuda, x).value()));
    }
}
