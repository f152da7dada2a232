// Speed of rotary positions, alone as in Llama and with QK-norm as in nanochat. Values are neither read nor written.
#include "dev/bench/bench.h"  // Bench, kShapes
#include "llmc/cpu/rotary.h"

int main() {
    Bench bench("rotary", Bound::memory);
    for (const BenchShape& s : kShapes)
        for (const bool qk_norm : {false, true}) {
            const AttentionShape shape{s.B, s.T, s.NH, s.NH, s.HS()};
            const RotaryOptions options{.qk_norm = qk_norm};
            const Floats table = rotary_table(s.T, s.HS(), options), dout = random_floats(s.N() * shape.row());
            Floats qkv = dout, dqkv = dout, rstd(size_t(s.N() * 2 * s.NH), 1);
            float* saved = qk_norm ? rstd.data() : nullptr;
            const double n = double(s.N() * 2 * s.NH * s.HS());
            bench.run(qk_norm ? "rotary_forward (QK-norm)" : "rotary_forward", s, 4 * 2 * n, (qk_norm ? 6 : 4) * n,
                      [&] { rotary_forward(bench.cpu, qkv.data(), saved, table.data(), shape, options); });
            // dqkv in and out, and with QK-norm qkv in
            bench.run(qk_norm ? "rotary_backward (QK-norm)" : "rotary_backward", s, 4 * (qk_norm ? 3 : 2) * n,
                      (qk_norm ? 8 : 4) * n, [&] {
                          rotary_backward(bench.cpu, dqkv.data(), qkv.data(), saved, table.data(), shape, options);
                      });
        }
}
