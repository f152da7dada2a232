// Speed of causal attention. FLOPs count what lies on and below the diagonal: T (T + 1) / 2 scores a head.
#include "dev/bench/bench.h"  // Bench, kShapes
#include "llmc/cpu/attention.h"

int main() {
    Bench bench("attention", Bound::compute);
    BenchShape long_sequence = kShapes[1];
    long_sequence.name = "T=1k", long_sequence.B = 1, long_sequence.T = 1024;
    for (const BenchShape& s : {kShapes[0], kShapes[1], long_sequence}) {
        const int64_t n = s.N() * s.C, HS = s.HS();
        const Floats qkv = random_floats(3 * n), dout = random_floats(n);
        Floats out = dout, dqkv = qkv, lse(size_t(s.N() * s.NH));
        const double scores = double(s.B * s.NH) * double(s.T) * double(s.T + 1) / 2;
        // Two products forward; backward makes the scores again and then four: dP, dv, dq, dk.
        bench.run("attention_forward", s, 4. * 4 * double(n), scores * (2 * 2 * double(HS) + kExpFlops),
                  [&] { attention_forward(bench.cpu, out.data(), lse.data(), qkv.data(), s.B, s.T, s.NH, HS); });
        bench.run("attention_backward", s, 4. * 8 * double(n), scores * (5 * 2 * double(HS) + kExpFlops), [&] {
            attention_backward(bench.cpu, dqkv.data(), dout.data(), out.data(), lse.data(), qkv.data(), s.B, s.T, s.NH,
                               HS);
        });
    }
}
