// Speed of the casts between float and bf16.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/cast.cuh"
#else
#include "llmc/cpu/cast.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const int64_t n = s.N() * s.C;
    auto wide = bench.random<float>(n);
    auto narrow = bench.random<bf16>(n);
    bench.run("cast_to_bf16", s, 6. * double(n), double(n), [&] { cast(bench.device, narrow.data(), wide.data(), n); });
    bench.run("cast_to_float", s, 6. * double(n), double(n),
              [&] { cast(bench.device, wide.data(), narrow.data(), n); });
}

BENCHMARK("cast", Bound::memory, measure)
