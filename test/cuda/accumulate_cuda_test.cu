// Adding buffers on a GPU gives the CPU's bits.
#include "llmc/cuda/accumulate.cuh"
#include "llmc/cpu/accumulate.h"
#include "test/cuda_testing.h"

TEST_CASE("accumulate agrees with the CPU in every bit", "[accumulate]" ON_DEVICE) {
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
