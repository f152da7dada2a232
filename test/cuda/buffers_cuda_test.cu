// Sums and casts of buffers on a GPU have the CPU's bits.
#include "llmc/cuda/buffers.cuh"
#include <bit>
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
