// Speed of dropout after one of a block's projections.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/dropout.cuh"
#else
#include "llmc/cpu/dropout.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const int64_t elements = s.N() * s.C;
    const auto inp = bench.random<T>(elements, 3);
    auto out = bench.random<T>(elements);
    const DropoutMask mask = dropout_mask(0.2, dropout_key(1, 2, 3), 0);
    bench.run("dropout", s, elements_cost<T>(kDropout, elements),
              [&] { dropout(bench.device, out.data(), inp.data(), mask, elements); });
}

BENCHMARK("dropout", Bound::memory, measure)
