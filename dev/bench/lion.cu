// Speed of Lion, which reads and writes weights and m, and reads gradients. With bf16 weights there are fp32 master
// weights.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/lion.cuh"
#else
#include "llmc/cpu/lion.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    constexpr bool kMaster = sizeof(T) < sizeof(float);
    const LionHyper hyper{.learning_rate = 1e-5, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 1};
    const auto scalars =
        values_of(bench.device, std::vector{StepScalars{.grad_scale = 0.5, .updates = 100, .applied = 1}});
    const int64_t n = s.num_params;
    const auto grad = bench.random<float>(n);
    auto param = bench.random<T>(n);
    auto m = bench.random<float>(n), master = bench.random<float>(kMaster ? n : 1);
    const LionTensor<T> tensor{param.data(), kMaster ? master.data() : nullptr, m.data(), grad.data(), n, hyper};
    bench.run("lion_update", s, lion_cost<T>(n), [&] { lion_update(bench.device, &tensor, 1, scalars.data()); });

    auto half_m = bench.random<bf16>(n);
    const LionTensor<T, bf16> rounded{param.data(), tensor.master, half_m.data(), grad.data(), n, hyper, {1, 0}};
    bench.run("lion_update, bf16 momentum", s, lion_cost<T, bf16>(n),
              [&] { lion_update(bench.device, &rounded, 1, scalars.data()); });
}

BENCHMARK("lion", Bound::memory, measure)
