// Speed of SwiGLU with 8/3 C gates a row, Llama's ratio, rounded down to a multiple of 32.
#include "dev/bench/bench.h"  // Bench, kShapes
#include "llmc/cpu/swiglu.h"

int main() {
    Bench bench("swiglu", Bound::memory);
    for (const BenchShape& s : kShapes) {
        const int64_t N = s.N(), C = 8 * s.C / 3 / 32 * 32;
        const Floats inp = random_floats(N * 2 * C, 3), dout = random_floats(N * C);
        Floats out = dout, dinp = inp;
        const double n = double(N * C);
        bench.run("swiglu_forward", s, 4 * 3 * n, (kExpFlops + 4) * n,
                  [&] { swiglu_forward(bench.cpu, out.data(), inp.data(), N, C); });
        bench.run("swiglu_backward", s, 4 * 5 * n, (kExpFlops + 10) * n,
                  [&] { swiglu_backward(bench.cpu, dinp.data(), dout.data(), inp.data(), N, C); });
    }
}
