// Speed of the transpose of activations (N, C).
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/transpose.cuh"
#else
#include "llmc/cpu/transpose.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const int64_t N = s.N(), C = s.C;
    const auto inp = bench.random<T>(N * C);
    auto out = bench.random<T>(N * C);
    bench.run("transpose", s, 2 * double(sizeof(T)) * double(N * C), 0,
              [&] { transpose(bench.device, out.data(), inp.data(), N, C); });
}

BENCHMARK("transpose", Bound::memory, measure)
