// Speed of a step's scalar ops: the mean loss of a micro-batch, and the decision whether to apply the step.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/step_scalars.cuh"
#else
#include "llmc/cpu/step_scalars.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const auto losses = bench.random<float>(s.N());
    auto scalars = values_of(bench.device, std::vector<StepScalars>(1));
    const auto targets = values_of(bench.device, std::vector<int32_t>(size_t(s.N()), 1));
    bench.run("add_mean_loss", s, 8 * double(s.N()), double(s.N()),
              [&] { add_mean_loss(bench.device, scalars.data(), losses.data(), targets.data(), s.N(), 0.5); });
    bench.run("decide_step", s, 2 * sizeof(StepScalars), 4,
              [&] { decide_step(bench.device, scalars.data(), 1, uint64_t(s.N())); });
}

BENCHMARK("step_scalars", Bound::memory, measure)
