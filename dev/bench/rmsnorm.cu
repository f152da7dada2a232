// Speed of RMSNorm, of its fusion with the residual addition, and of its backward.
#include "dev/bench/bench.h"  // Bench, kShapes
#include "llmc/cpu/rmsnorm.h"

int main() {
    Bench bench("rmsnorm", Bound::memory);
    for (const BenchShape& s : kShapes) {
        const int64_t N = s.N(), C = s.C;
        const Floats inp = random_floats(N * C), weight = random_floats(C), dout = random_floats(N * C);
        Floats out = inp, residual = inp, dinp = inp, dweight = weight, rstd(size_t(N), 0);
        const double n = double(N * C);
        bench.run("rmsnorm_forward", s, 4 * 2 * n, 4 * n,
                  [&] { rmsnorm_forward(bench.cpu, out.data(), rstd.data(), inp.data(), weight.data(), N, C, 1e-5f); });
        bench.run("residual_rmsnorm_forward", s, 4 * 4 * n, 5 * n, [&] {
            residual_rmsnorm_forward(bench.cpu, residual.data(), out.data(), rstd.data(), inp.data(), dout.data(),
                                     weight.data(), N, C, 1e-5f);
        });
        // inp and dout in, dinp in and out; dweight is small
        bench.run("rmsnorm_backward", s, 4 * 4 * n, 13 * n, [&] {
            rmsnorm_backward(bench.cpu, dinp.data(), dweight.data(), dout.data(), inp.data(), weight.data(),
                             rstd.data(), N, C);
        });
    }
}
