// Speed of value embeddings with nanochat's gates of 12 channels. Token frequencies are those of text.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/value_embedding.cuh"
#else
#include "llmc/cpu/value_embedding.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const AttentionShape shape{s.B, s.T, s.NH, s.NH, s.HS()};
    const int64_t N = s.N(), C = s.C, G = 12;
    const auto tokens = bench.tokens(N, s.V);
    const auto inp = bench.random<T>(N * C), table = bench.random<T>(s.V * C), dqkv = bench.random<T>(N * shape.row());
    const auto weight = bench.random<T>(s.NH * G);
    auto qkv = bench.random<T>(N * shape.row()), dinp = bench.random<T>(N * C);
    auto dtable = bench.random<float>(s.V * C), dweight = bench.random<float>(s.NH * G);
    const double n = double(N * C), bytes = sizeof(T) * n, gates = double(N * s.NH) * (2 * double(G) + kExpFlops);
    // values in and out, an entry of the table in
    bench.run("value_embedding_forward", s, 3 * bytes, 2 * n + gates, [&] {
        value_embedding_forward(bench.device, qkv.data(), inp.data(), tokens.data(), table.data(), weight.data(), shape,
                                C, G, 3);
    });
    // dv and an entry in, a row of dtable in and out
    bench.run("value_embedding_backward", s, 2 * bytes + 4 * 2 * n, 4 * n + 2 * gates, [&] {
        value_embedding_backward(bench.device, dinp.data(), dtable.data(), dweight.data(), dqkv.data(), inp.data(),
                                 tokens.data(), table.data(), weight.data(), shape, C, G, 3);
    });
}

BENCHMARK("value_embedding", Bound::memory, measure)
