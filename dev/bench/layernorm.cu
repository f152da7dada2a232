// Speed of LayerNorm, of its fusion with the residual addition, and of its backward.
#include "dev/bench/bench.h"  // Bench, kShapes
#include "llmc/cpu/layernorm.h"

int main() {
    Bench bench("layernorm", Bound::memory);
    for (const BenchShape& s : kShapes) {
        const int64_t N = s.N(), C = s.C;
        const Floats inp = random_floats(N * C), weight = random_floats(C), bias = random_floats(C);
        const Floats dout = random_floats(N * C);
        Floats out = inp, residual = inp, dinp = inp, dweight = weight, dbias = bias, mean(size_t(N), 0), rstd = mean;
        const double n = double(N * C);
        bench.run("layernorm_forward", s, 4 * 2 * n, 7 * n, [&] {
            layernorm_forward(bench.cpu, out.data(), mean.data(), rstd.data(), inp.data(), weight.data(), bias.data(),
                              N, C, 1e-5f);
        });
        bench.run("residual_layernorm_forward", s, 4 * 4 * n, 8 * n, [&] {
            residual_layernorm_forward(bench.cpu, residual.data(), out.data(), mean.data(), rstd.data(), inp.data(),
                                       dout.data(), weight.data(), bias.data(), N, C, 1e-5f);
        });
        // inp and dout in, dinp in and out; dweight and dbias are small
        bench.run("layernorm_backward", s, 4 * 4 * n, 17 * n, [&] {
            layernorm_backward(bench.cpu, dinp.data(), dweight.data(), dbias.data(), dout.data(), inp.data(),
                               weight.data(), mean.data(), rstd.data(), N, C);
        });
    }
}
