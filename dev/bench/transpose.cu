// Speed of transposing a matrix, (4 C, C) as in the MLP. The CPU's GEMMs need no transposition.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/transpose.cuh"

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const int64_t R = 4 * s.C, C = s.C;
    const auto inp = bench.random<T>(R * C);
    auto out = bench.random<T>(R * C);
    bench.run("transpose", s, 2 * sizeof(T) * double(R * C), double(R * C),
              [&] { transpose(bench.device, out.data(), inp.data(), R, C); });
}

BENCHMARK("transpose", Bound::memory, measure)
#else
int main(int, char**) { return 0; }
#endif
