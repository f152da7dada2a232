// Sums and casts of buffers on a GPU have the CPU's bits.
#include "llmc/cuda/buffers.cuh"
#include <bit>
#include <deque>
#include "llmc/cpu/buffers.h"
#include "test/cuda_testing.h"

TEST_CASE("accumulate agrees with the CPU in every bit", "[buffers]" ON_DEVICE) {
    const int64_t n = GENERATE(0, 1, 3, 4, 1023, 5001);
    Rng rng(uint64_t(n) + 1, Stream::tests);
    Floats to(static_cast<size_t>(n)), from(static_cast<size_t>(n));
    for (Floats* values : {&to, &from})
        for (float& x : *values) x = float(rng.normal());
    Cuda cuda;
    OnDevice<float> sum(cuda, to);
    const OnDevice<float> more(cuda, from);
    accumulate(cuda, sum.data, more.data, n);
    Cpu cpu(1);
    accumulate(cpu, to.data(), from.data(), n);
    CHECK(sum.get() == to);
}

// More sums than one launch takes, some of them empty, some from an odd element on.
TEST_CASE("accumulate_rounded agrees with the CPU in every bit", "[buffers]" ON_DEVICE) {
    constexpr int kCount = TensorList<RoundedSum>::kMost + 3;
    const size_t sizes[] = {1, 0, 7, 8, 9, 1000, 2048, 4097};
    const int64_t micro = GENERATE(0, 1, 7);
    Cuda cuda;
    Cpu cpu;
    const StepScalars s{.updates = 3};
    const OnDevice<StepScalars> d_s(cuda, std::vector{s});
    std::deque<OnDevice<bf16>> to;
    std::deque<OnDevice<float>> from;
    std::deque<Guarded<bf16>> want;
    std::vector<RoundedSum> sums;
    for (int i = 0; i < kCount; i++) {
        const size_t n = sizes[size_t(i) % std::size(sizes)];
        const Floats more = randn(n, uint64_t(i)), start = rounded<bf16>(randn(n, uint64_t(i + 100)));
        const MomentRounding rounding{moments_key(1, std::to_string(i)), uint64_t(i)};
        to.emplace_back(cuda, start), from.emplace_back(cuda, more), want.emplace_back(start);
        sums.push_back({to.back().data, from.back().data, int64_t(n), rounding});
        const RoundedSum on_cpu{want.back().data(), more.data(), int64_t(n), rounding};
        accumulate_rounded(cpu, &on_cpu, 1, micro, &s);
    }
    accumulate_rounded(cuda, sums.data(), kCount, micro, d_s.data);
    for (size_t i = 0; i < size_t(kCount); i++) check_equal("sum", to[i].get(), want[i].get());
}

TEST_CASE("casts agree with the CPU in every bit", "[buffers]" ON_DEVICE) {
    const int64_t n = GENERATE(1, 7, 8, 2049, 5000);
    Rng rng(uint64_t(n), Stream::tests);
    Floats values(static_cast<size_t>(n));
    for (float& x : values) x = std::bit_cast<float>(uint32_t(rng.next()));  // of all sizes; NaN and infinity too
    Cpu cpu;
    std::vector<bf16> narrow(values.size());
    cast(cpu, narrow.data(), values.data(), n);
    Cuda cuda;
    const OnDevice<float> inp(cuda, values);
    OnDevice<bf16> out(cuda, values.size());
    OnDevice<float> back(cuda, values.size());
    cast(cuda, out.data, inp.data, n);
    cast(cuda, back.data, out.data, n);
    const std::vector<bf16> got = out.values();
    const Floats wide = back.get();
    size_t wrong = 0;
    for (size_t i = 0; i < values.size(); i++) {
        const bool nan = std::isnan(values[i]);
        wrong += nan ? !std::isnan(to_float(got[i])) : got[i].bits != narrow[i].bits;
        wrong += nan ? !std::isnan(wide[i]) : wide[i] != to_float(narrow[i]);
    }
    CHECK(wrong == 0);
}
