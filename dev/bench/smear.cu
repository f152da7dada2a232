// Speed of smear with nanochat's gate of 24 channels.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/smear.cuh"
#else
#include "llmc/cpu/smear.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const int64_t N = s.N(), C = s.C, G = 24;
    const auto inp = bench.random<T>(N * C), dout = bench.random<T>(N * C);
    const auto weight = bench.random<T>(G), lambda = bench.random<T>(1);
    auto out = bench.random<T>(N * C), dinp = bench.random<T>(N * C);
    auto dweight = bench.random<float>(G), dlambda = bench.random<float>(1);
    const double n = double(N * C), bytes = sizeof(T) * n, gates = double(N) * (2 * double(G) + kExpFlops);
    bench.run("smear_forward", s, 2 * bytes, 2 * n + gates, [&] {
        smear_forward(bench.device, out.data(), inp.data(), weight.data(), lambda.data(), s.B, s.T, C, G);
    });
    bench.run("smear_backward", s, 3 * bytes, 4 * n + 2 * gates, [&] {
        smear_backward(bench.device, dinp.data(), dweight.data(), dlambda.data(), dout.data(), inp.data(),
                       weight.data(), lambda.data(), s.B, s.T, C, G);
    });
}

BENCHMARK("smear", Bound::memory, measure)
