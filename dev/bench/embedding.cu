// Speed of the embedding: one row of wte and one of wpe in, one row out. Token frequencies are those of text. And
// of the form fused with the norm, compared with the two ops.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/embedding.cuh"
#include "llmc/cuda/rmsnorm.cuh"
#else
#include "llmc/cpu/embedding.h"
#endif

template <class T>
void measure_fused(Bench& bench, const BenchShape& s) {
    const int64_t N = s.N(), C = s.C;
    Device& device = bench.device;
    const auto tokens = bench.tokens(N, s.V);
    const auto wte = bench.random<T>(s.V * C);
    auto x = bench.random<T>(N * C), out = bench.random<T>(N * C), dout = bench.random<T>(N * C);
    auto dx = bench.random<T>(N * C);
    auto rstd = bench.random<float>(N), dwte = bench.random<float>(s.V * C);
    const double n = double(N * C), bytes = sizeof(T) * n;
    const float eps = 0x1p-23f;
    const auto beside_two_ops = [&](const char* what, double bytes, double flops, auto fused, auto two_ops) {
        const Timing fused_time = bench.stopwatch.time(fused), two_time = bench.stopwatch.time(two_ops);
        bench.print(what, s, bytes, flops, fused_time, "two ops", two_time);
    };
    beside_two_ops(
        "embedding_rmsnorm_forward", 2 * bytes, 3 * n,
        [&] { embedding_rmsnorm_forward(device, out.data(), rstd.data(), tokens.data(), wte.data(), N, C, eps); },
        [&] {
            embedding_forward(device, x.data(), tokens.data(), wte.data(), nullptr, s.B, s.T, C);
            rmsnorm_forward(device, out.data(), rstd.data(), x.data(), nullptr, N, C, eps);
        });
    // wte and dout in, dx out and in, a row of dwte in and out. dout is overwritten: from the second run on other
    // numbers, the same work. The rival needs a gradient that begins with zeros.
    beside_two_ops(
        "embedding_rmsnorm_backward", 4 * bytes + 4 * 2 * n, 8 * n,
        [&] {
            embedding_rmsnorm_backward(device, dwte.data(), dout.data(), tokens.data(), wte.data(), rstd.data(), s.B,
                                       s.T, C);
        },
        [&] {
            fill_zero(device, dx.data(), N * C);
            rmsnorm_backward(device, dx.data(), nullptr, dout.data(), x.data(), nullptr, rstd.data(), N, C);
            embedding_backward(device, dwte.data(), nullptr, dx.data(), tokens.data(), s.B, s.T, C);
        });
}

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const int64_t N = s.N(), C = s.C;
    const auto tokens = bench.tokens(N, s.V);
    const auto wte = bench.random<T>(s.V * C), wpe = bench.random<T>(s.T * C), dout = bench.random<T>(N * C);
    auto out = bench.random<T>(N * C);
    auto dwte = bench.random<float>(s.V * C), dwpe = bench.random<float>(s.T * C);
    // wpe is as good as free: T rows for all sequences
    bench.run("embedding_forward", s, elements_cost<T>(kEmbeddingForward, N * C),
              [&] { embedding_forward(bench.device, out.data(), tokens.data(), wte.data(), wpe.data(), s.B, s.T, C); });
    bench.run("embedding_backward", s, embedding_backward_cost<T>(N * C), [&] {
        embedding_backward(bench.device, dwte.data(), dwpe.data(), dout.data(), tokens.data(), s.B, s.T, C);
    });
    measure_fused<T>(bench, s);
}

BENCHMARK("embedding", Bound::memory, measure)
