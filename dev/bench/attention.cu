// Speed of causal attention, all keys and a window of 256. FLOPs count the scores that are seen: without a window
// T (T + 1) / 2 a head.
#include "dev/bench/bench.h"  // Bench, kShapes
#include "llmc/cpu/attention.h"

int main() {
    Bench bench("attention", Bound::compute);
    BenchShape long_sequence = kShapes[1], window = kShapes[1];
    long_sequence.name = "T=1k", long_sequence.B = 1, long_sequence.T = 1024;
    window.name = "w=256", window.B = 1, window.T = 1024;
    for (const BenchShape& s : {kShapes[0], kShapes[1], long_sequence, window}) {
        const AttentionShape shape{s.B, s.T, s.NH, s.NH, s.HS(), s.name == window.name ? 256 : -1};
        const int64_t n = s.N() * s.C;
        const Floats qkv = random_floats(3 * n), dout = random_floats(n);
        Floats out = dout, dqkv = qkv, lse(size_t(s.N() * s.NH));
        double scores = 0;
        for (int64_t t = 0; t < s.T; t++) scores += double(s.B * s.NH * (t - shape.first_key(t) + 1));
        // Two products forward; backward makes the scores again and then four: dP, dv, dq, dk.
        bench.run("attention_forward", s, 4. * 4 * double(n), scores * (2 * 2 * double(shape.HS) + kExpFlops),
                  [&] { attention_forward(bench.cpu, out.data(), lse.data(), qkv.data(), shape); });
        bench.run("attention_backward", s, 4. * 8 * double(n), scores * (5 * 2 * double(shape.HS) + kExpFlops), [&] {
            attention_backward(bench.cpu, dqkv.data(), dout.data(), out.data(), lse.data(), qkv.data(), shape);
        });
    }
}
