// Speed of adding one gradient to another.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/accumulate.cuh"
#else
#include "llmc/cpu/accumulate.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const int64_t n = s.num_params;
    auto to = bench.random<float>(n);
    auto from = bench.random<float>(n);
    bench.run("accumulate", s, accumulate_cost(n), [&] { accumulate(bench.device, to.data(), from.data(), n); });
}

BENCHMARK("accumulate", Bound::memory, measure)
