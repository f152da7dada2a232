// Speed of the gradient sum over virtual ranks, each with a quarter as many elements as a model has parameters.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/sum_ranks.cuh"
#else
#include "llmc/cpu/sum_ranks.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const int64_t n = s.num_params / 4;
    const auto inp = bench.random<T>(4 * n);
    auto out = bench.random<T>(n);
    const T* ranks[4] = {inp.data(), inp.data() + n, inp.data() + 2 * n, inp.data() + 3 * n};
    for (const int num_ranks : {2, 4})
        bench.run(num_ranks == 2 ? "sum of 2 ranks" : "sum of 4 ranks", s, (num_ranks + 1.) * double(n) * sizeof(T),
                  (num_ranks - 1.) * double(n), [&] { sum_ranks(bench.device, out.data(), ranks, num_ranks, n); });
}

BENCHMARK("sum_ranks", Bound::memory, measure)
