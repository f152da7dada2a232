// Speed of a running average of the weights, which is read and written.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/weight_average.cuh"
#else
#include "llmc/cpu/weight_average.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    if constexpr (std::is_same_v<T, float> != bool(BENCH_CUDA)) {  // once: master weights are fp32 beside bf16, too
        const auto weight = bench.random<float>(s.num_params);
        auto average = bench.random<float>(s.num_params);
        const WeightAverage tensor{average.data(), weight.data(), s.num_params};
        bench.run("average_weights", s, elements_cost<float>(3, 3, s.num_params),
                  [&] { average_weights(bench.device, &tensor, 1, 0.01); });
    }
}

BENCHMARK("weight_average", Bound::memory, measure)
