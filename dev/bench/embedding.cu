// Speed of the embedding: one row of wte and one of wpe in, one row out. Token frequencies are those of text.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/embedding.cuh"
#else
#include "llmc/cpu/embedding.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const int64_t N = s.N(), C = s.C;
    const auto tokens = bench.tokens(N, s.V);
    const auto wte = bench.random<T>(s.V * C), wpe = bench.random<T>(s.T * C), dout = bench.random<T>(N * C);
    auto out = bench.random<T>(N * C);
    auto dwte = bench.random<float>(s.V * C), dwpe = bench.random<float>(s.T * C);
    // wpe is as good as free: T rows for all sequences
    bench.run("embedding_forward", s, embedding_forward_cost<T>(N * C),
              [&] { embedding_forward(bench.device, out.data(), tokens.data(), wte.data(), wpe.data(), s.B, s.T, C); });
    bench.run("embedding_backward", s, embedding_backward_cost<T>(N * C), [&] {
        embedding_backward(bench.device, dwte.data(), dwpe.data(), dout.data(), tokens.data(), s.B, s.T, C);
    });
}

BENCHMARK("embedding", Bound::memory, measure)
