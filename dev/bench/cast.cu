// Speed of casts between float and bf16: from master weights to weights, and back.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/cast.cuh"
#else
#include "llmc/cpu/cast.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const int64_t n = s.num_params;
    auto floats = bench.random<float>(n);
    auto halves = bench.random<bf16>(n);
    bench.run("cast, float to bf16", s, 6 * double(n), double(n),
              [&] { cast(bench.device, halves.data(), floats.data(), n); });
    bench.run("cast, bf16 to float", s, 6 * double(n), double(n),
              [&] { cast(bench.device, floats.data(), halves.data(), n); });
}

BENCHMARK("cast", Bound::memory, measure)
