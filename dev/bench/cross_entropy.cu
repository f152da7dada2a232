// Speed of softmax cross-entropy. The fused form works in place, so from the second run on it reads its own gradients:
// other numbers, the same work.
#include "dev/bench/bench.h"  // Bench, kShapes
#include "llmc/cpu/cross_entropy.h"

int main() {
    Bench bench("cross_entropy", Bound::memory);
    for (const BenchShape& s : kShapes) {
        const int64_t N = s.N();
        const auto targets = random_tokens(N, s.V);
        Floats logits = random_floats(N * s.Vp, 4), losses(static_cast<size_t>(N));
        const double read = 4. * double(N * s.V), n = double(N * s.V);
        bench.run("cross_entropy_forward", s, read, (kExpFlops + 3) * n, [&] {
            cross_entropy_forward(bench.cpu, losses.data(), logits.data(), targets.data(), N, s.V, s.Vp);
        });
        bench.run("cross_entropy_forward_backward", s, read + 4. * double(N * s.Vp), (kExpFlops + 4) * n, [&] {
            cross_entropy_forward_backward(bench.cpu, losses.data(), logits.data(), targets.data(), 1.f / float(N), N,
                                           s.V, s.Vp);
        });
    }
}
