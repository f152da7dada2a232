// Speed of ReLU squared between the two matrices of the MLP: 4 C columns.
#include "dev/bench/bench.h"  // Bench, kShapes
#include "llmc/cpu/relu_squared.h"

int main() {
    Bench bench("relu_squared", Bound::memory);
    for (const BenchShape& s : kShapes) {
        const int64_t n = s.N() * 4 * s.C;
        const Floats inp = random_floats(n, 3), dout = random_floats(n);
        Floats out = inp, dinp = inp;
        bench.run("relu_squared_forward", s, 4. * 2 * double(n), 2 * double(n),
                  [&] { relu_squared_forward(bench.cpu, out.data(), inp.data(), n); });
        bench.run("relu_squared_backward", s, 4. * 3 * double(n), 3 * double(n),
                  [&] { relu_squared_backward(bench.cpu, dinp.data(), dout.data(), inp.data(), n); });
    }
}
