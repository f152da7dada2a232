// Speed of AdamW, which reads and writes weights, m and v, and reads gradients. With bf16 weights there are fp32 master
// weights; the moments are in fp32, then in bf16.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/adamw.cuh"
#else
#include "llmc/cpu/adamw.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    constexpr bool kMaster = sizeof(T) < sizeof(float);
    const AdamWHyper hyper{.learning_rate = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    const auto scalars =
        values_of(bench.device, std::vector{StepScalars{.grad_scale = 0.5, .updates = 100, .applied = 1}});
    const int64_t n = s.num_params;
    const auto grad = bench.random<float>(n);
    auto param = bench.random<T>(n);
    auto m = bench.random<float>(n), v = bench.random<float>(n), master = bench.random<float>(kMaster ? n : 1);
    fill_zero(bench.device, v.data(), n);  // a sum of squares
    const AdamWTensor<T> tensor{param.data(), kMaster ? master.data() : nullptr, m.data(), v.data(), grad.data(), n,
                                hyper};
    bench.run("adamw_update", s, adamw_cost<T>(n), [&] { adamw_update(bench.device, &tensor, 1, scalars.data()); });

    auto half_m = bench.random<bf16>(n), half_v = bench.random<bf16>(n);
    fill_zero(bench.device, half_v.data(), n);
    const AdamWTensor<T, bf16> rounded{param.data(), tensor.master, half_m.data(), half_v.data(), grad.data(), n,
                                       hyper,        {1, 0}};
    bench.run("adamw_update, bf16 moments", s, adamw_cost<T, bf16>(n),
              [&] { adamw_update(bench.device, &rounded, 1, scalars.data()); });
    if constexpr (kMaster) {
        AdamWTensor<T, bf16> alone = rounded;
        alone.master = nullptr;
        bench.run("adamw_update, without master weights", s, adamw_cost<T, bf16>(n, false),
                  [&] { adamw_update(bench.device, &alone, 1, scalars.data()); });
    }
}

BENCHMARK("adamw", Bound::memory, measure)
