// Speed of the transpose of activations (N, C).
#include "dev/bench/bench.h"  // Bench, kShapes
#include "llmc/cpu/transpose.h"

int main() {
    Bench bench("transpose", Bound::memory);
    for (const BenchShape& s : kShapes) {
        const int64_t N = s.N(), C = s.C;
        const Floats inp = random_floats(N * C);
        Floats out = inp;
        bench.run("transpose", s, 8. * double(N * C), 0, [&] { transpose(bench.cpu, out.data(), inp.data(), N, C); });
    }
}
