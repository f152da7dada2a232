// Speed of the embedding: one row of wte and one of wpe in, one row out.
#include "dev/bench/bench.h"  // Bench, kShapes
#include "llmc/cpu/embedding.h"

int main() {
    Bench bench("embedding", Bound::memory);
    for (const BenchShape& s : kShapes) {
        const int64_t N = s.N();
        const auto tokens = random_tokens(N, s.V);
        const Floats wte = random_floats(s.V * s.C), wpe = random_floats(s.T * s.C), dout = random_floats(N * s.C);
        Floats out = dout, dwte = wte, dwpe = wpe;
        const double row_bytes = 4. * double(N * s.C);  // wpe is as good as free: T rows for all sequences
        bench.run("embedding_forward", s, 2 * row_bytes, double(N * s.C), [&] {
            embedding_forward(bench.cpu, out.data(), tokens.data(), wte.data(), wpe.data(), s.B, s.T, s.C);
        });
        // dout in, a row of dwte in and out
        bench.run("embedding_backward", s, 3 * row_bytes, 2 * double(N * s.C), [&] {
            embedding_backward(bench.cpu, dwte.data(), dwpe.data(), dout.data(), tokens.data(), s.B, s.T, s.C);
        });
    }
}
