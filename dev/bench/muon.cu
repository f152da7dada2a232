// Speed of Muon's element-wise steps on one matrix of the MLP, (4 C, C).
#include "dev/bench/bench.h"  // Bench, kShapes
#include "llmc/cpu/muon.h"

int main() {
    Bench bench("muon", Bound::memory);
    const MuonStep step{.learning_rate = 0.02, .momentum = 0.95, .beta2 = 0.9, .weight_decay = 0.1};
    const StepScalars scalars{.applied = 1};
    for (const BenchShape& s : kShapes) {
        const int64_t R = 4 * s.C, K = s.C;
        const Floats grad = random_floats(R * K);
        Floats X = grad, momentum = grad, weight = grad, squares(size_t(R), 1), scales = squares, second = squares;
        const double n = double(R * K);
        bench.run("muon_momentum", s, 4 * 4 * n, 8 * n, [&] {
            muon_momentum(bench.cpu, X.data(), squares.data(), momentum.data(), grad.data(), R, K, step, &scalars);
        });
        bench.run("muon_normalise", s, 4 * 2 * n, n,
                  [&] { muon_normalise(bench.cpu, X.data(), squares.data(), R, K, step); });
        bench.run("muon_squares", s, 4 * n, 2 * n, [&] { muon_squares(bench.cpu, squares.data(), X.data(), R, K); });
        bench.run("muon_scales", s, 4 * 4 * double(R), 16 * double(R),
                  [&] { muon_scales(bench.cpu, scales.data(), second.data(), squares.data(), R, K, step, &scalars); });
        bench.run("muon_update", s, 4 * 3 * n, 7 * n, [&] {
            muon_update(bench.cpu, weight.data(), nullptr, X.data(), scales.data(), R, K, step, &scalars);
        });
    }
}
