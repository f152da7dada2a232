// Speed of the gradients' sum of squares: one read.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/global_norm.cuh"
#else
#include "llmc/cpu/global_norm.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const auto x = bench.random<float>(s.num_params);  // gradients are float whatever the weights are
    auto sum = values_of(bench.device, std::vector<ExactSum>(1));
    bench.run("add_squares", s, add_squares_cost(s.num_params),
              [&] { add_squares(bench.device, sum.data(), x.data(), s.num_params); });
}

BENCHMARK("global_norm", Bound::memory, measure)
