// Speed of the matrix products of one layer and of the head. Backward makes two products: twice the FLOPs.
#include "dev/bench/bench.h"  // Bench, kShapes
#include "llmc/cpu/matmul.h"

int main() {
    Bench bench("matmul", Bound::compute);
    for (const BenchShape& s : kShapes) {
        const struct {
            const char *forward, *backward;
            int64_t C, OC;
            bool has_bias;
        } layers[] = {
            {"matmul_forward  attn.c_attn", "matmul_backward attn.c_attn", s.C, 3 * s.C, true},
            {"matmul_forward  attn.c_proj", "matmul_backward attn.c_proj", s.C, s.C, true},
            {"matmul_forward  mlp.c_fc", "matmul_backward mlp.c_fc", s.C, 4 * s.C, true},
            {"matmul_forward  mlp.c_proj", "matmul_backward mlp.c_proj", 4 * s.C, s.C, true},
            {"matmul_forward  head", "matmul_backward head", s.C, s.Vp, false},
        };
        for (const auto& [forward, backward, C, OC, has_bias] : layers) {
            const int64_t N = s.N(), in = C, columns = OC;
            const Floats inp = random_floats(N * C), weight = random_floats(OC * C), bias = random_floats(OC);
            const Floats dout = random_floats(N * OC);
            Floats out = dout, dinp = inp, dweight = weight, dbias = bias;
            const float* added = has_bias ? bias.data() : nullptr;
            float* dadded = has_bias ? dbias.data() : nullptr;
            const double flops = 2. * double(N * C) * double(OC), bytes = 4. * double(N * C + OC * C + N * OC);
            bench.run(forward, s, bytes, flops,
                      [&] { matmul_forward(bench.cpu, out.data(), inp.data(), weight.data(), added, N, in, columns); });
            const double backward_bytes = bytes + 4. * double(N * C + 2 * OC * C);  // dinp out; dweight in and out
            bench.run(backward, s, backward_bytes, 2 * flops, [&] {
                matmul_backward(bench.cpu, dinp.data(), dweight.data(), dadded, dout.data(), inp.data(), weight.data(),
                                N, in, columns);
            });
        }
    }
}
