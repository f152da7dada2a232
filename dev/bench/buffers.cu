// Speed of adding one gradient to another, and of casts: from master weights to weights, and back.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/buffers.cuh"
#else
#include "llmc/cpu/buffers.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const int64_t n = s.num_params;
    auto floats = bench.random<float>(n), more = bench.random<float>(n);
    auto halves = bench.random<bf16>(n);
    bench.run("accumulate", s, accumulate_cost(n), [&] { accumulate(bench.device, floats.data(), more.data(), n); });
    const auto scalars = values_of(bench.device, std::vector{StepScalars{.updates = 1}});
    const RoundedSum sum{halves.data(), more.data(), n, {}};
    bench.run("accumulate_rounded", s, accumulate_rounded_cost(n, false),
              [&] { accumulate_rounded(bench.device, &sum, 1, 1, scalars.data()); });
    bench.run("cast, float to bf16", s, 6 * double(n), double(n),
              [&] { cast(bench.device, halves.data(), floats.data(), n); });
    bench.run("cast, bf16 to float", s, 6 * double(n), double(n),
              [&] { cast(bench.device, floats.data(), halves.data(), n); });
}

BENCHMARK("buffers", Bound::memory, measure)
