// Speed of LayerNorm, of its fusion with the residual addition, and of its backward.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/layernorm.cuh"
#else
#include "llmc/cpu/layernorm.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const int64_t N = s.N(), C = s.C;
    const auto inp = bench.random<T>(N * C), dout = bench.random<T>(N * C);
    const auto weight = bench.random<T>(C), bias = bench.random<T>(C);
    auto out = bench.random<T>(N * C), residual = bench.random<T>(N * C), dinp = bench.random<T>(N * C);
    auto dweight = bench.random<float>(C), dbias = bench.random<float>(C);
    auto mean = bench.random<float>(N), rstd = bench.random<float>(N);
    const double n = double(N * C), bytes = sizeof(T) * n;
    bench.run("layernorm_forward", s, 2 * bytes, 7 * n, [&] {
        layernorm_forward(bench.device, out.data(), mean.data(), rstd.data(), inp.data(), weight.data(), bias.data(), N,
                          C, 1e-5f);
    });
    bench.run("residual_layernorm_forward", s, 4 * bytes, 8 * n, [&] {
        residual_layernorm_forward(bench.device, residual.data(), out.data(), mean.data(), rstd.data(), inp.data(),
                                   dout.data(), weight.data(), bias.data(), N, C, 1e-5f);
    });
    // inp and dout in, dinp in and out; dweight and dbias are small
    bench.run("layernorm_backward", s, 4 * bytes, 17 * n, [&] {
        layernorm_backward(bench.device, dinp.data(), dweight.data(), dbias.data(), dout.data(), inp.data(),
                           weight.data(), mean.data(), rstd.data(), N, C);
    });
}

BENCHMARK("layernorm", Bound::memory, measure)
