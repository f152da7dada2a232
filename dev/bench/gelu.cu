// Speed of GELU between the two matrices of the MLP: 4 C columns.
#include "dev/bench/bench.h"  // Bench, kShapes
#include "llmc/cpu/gelu.h"

int main() {
    Bench bench("gelu", Bound::memory);
    for (const BenchShape& s : kShapes) {
        const int64_t n = s.N() * 4 * s.C;
        const Floats inp = random_floats(n, 3), dout = random_floats(n);
        Floats out = inp, dinp = inp;
        bench.run("gelu_forward", s, 4. * 2 * double(n), (kExpFlops + 7) * double(n),
                  [&] { gelu_forward(bench.cpu, out.data(), inp.data(), n); });
        bench.run("gelu_backward", s, 4. * 3 * double(n), (kExpFlops + 15) * double(n),
                  [&] { gelu_backward(bench.cpu, dinp.data(), dout.data(), inp.data(), n); });
    }
}
