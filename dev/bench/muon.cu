// Speed of Muon's element-wise steps on one matrix of the MLP, (4 C, C).
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/muon.cuh"
#else
#include "llmc/cpu/muon.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const MuonStep step{.learning_rate = 0.02, .momentum = 0.95, .beta2 = 0.9, .weight_decay = 0.1};
    constexpr bool kMaster = sizeof(T) < sizeof(float);
    const auto scalars = values_of(bench.device, std::vector{StepScalars{.updates = 100, .applied = 1}});
    const int64_t R = 4 * s.C, K = s.C;
    const auto grad = bench.random<float>(R * K);
    auto X = bench.random<T>(R * K);
    auto weight = bench.random<T>(R * K);
    auto momentum = bench.random<float>(R * K), master = bench.random<float>(kMaster ? R * K : 1);
    const std::vector<float> ones(size_t(R), 1);
    auto squares = values_of(bench.device, ones), scales = values_of(bench.device, ones);
    auto second = values_of(bench.device, ones);
    const double n = double(R * K), e = sizeof(T);
    bench.run("muon_momentum", s, (4 * 3 + e) * n, 8 * n, [&] {
        muon_momentum(bench.device, X.data(), squares.data(), momentum.data(), grad.data(), R, K, step, scalars.data());
    });
    auto half_momentum = bench.random<bf16>(R * K);
    bench.run("muon_momentum, bf16", s, (4 * 2 + e) * n, 8 * n, [&] {
        muon_momentum_bf16(bench.device, X.data(), squares.data(), half_momentum.data(), grad.data(), R, K, step,
                           scalars.data(), MomentRounding{1, 0});
    });
    bench.run("muon_normalize", s, 2 * e * n, n,
              [&] { muon_normalize(bench.device, X.data(), squares.data(), R, K, step); });
    bench.run("muon_squares", s, e * n, 2 * n, [&] { muon_squares(bench.device, squares.data(), X.data(), R, K); });
    bench.run("muon_scales", s, 4 * 4 * double(R), 16 * double(R), [&] {
        muon_scales(bench.device, scales.data(), second.data(), squares.data(), R, K, step, scalars.data());
    });
    auto radius = bench.random<float>(1), keep = bench.random<float>(1);
    MuonStep fixed = step;
    fixed.norms = MuonNorms::hyperball;
    bench.run("muon_lifts", s, (kMaster ? 4 + e : 2 * e) * n, 7 * n, [&] {
        muon_lifts(bench.device, squares.data(), keep.data(), radius.data(), weight.data(),
                   kMaster ? master.data() : nullptr, X.data(), scales.data(), R, K, fixed, scalars.data());
    });
    bench.run("muon_update", s, (kMaster ? 4 * 2 + 2 * e : 3 * e) * n, 7 * n, [&] {
        muon_update(bench.device, weight.data(), kMaster ? master.data() : nullptr, X.data(), scales.data(), nullptr,
                    nullptr, R, K, step, scalars.data());
    });
}

BENCHMARK("muon", Bound::memory, measure)
