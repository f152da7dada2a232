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
    bench.run("layernorm_forward", s, elements_cost<T>(kLayernormForward, N * C), [&] {
        layernorm_forward(bench.device, out.data(), mean.data(), rstd.data(), inp.data(), weight.data(), bias.data(), N,
                          C, 1e-5f);
    });
    bench.run("residual_layernorm_forward", s, elements_cost<T>(kResidualLayernormForward, N * C), [&] {
        residual_layernorm_forward(bench.device, residual.data(), out.data(), mean.data(), rstd.data(), inp.data(),
                                   dout.data(), weight.data(), bias.data(), N, C, 1e-5f);
    });
    // In FP8 with a delayed scale. Bytes, taken as floats of which four fit.
    auto rows = bench.random<float>((N * C + 3) / 4), columns = bench.random<float>((N * C + 3) / 4);
    auto inverse = bench.random<float>(1), amax = bench.random<float>(1), largest = bench.random<float>(1);
    const DelayedCodes codes{reinterpret_cast<e4m3*>(rows.data()),
                             reinterpret_cast<e4m3*>(columns.data()),
                             inverse.data(),
                             amax.data(),
                             {largest.data()}};
    bench.run("residual_layernorm_forward to codes", s,
              with_codes<T>(elements_cost<T>(kResidualLayernormForward, N * C), N * C), [&] {
                  residual_layernorm_forward(bench.device, residual.data(), {out.data(), nullptr, nullptr, codes},
                                             mean.data(), rstd.data(), inp.data(), dout.data(), weight.data(),
                                             bias.data(), N, C, 1e-5f);
              });
    bench.run("layernorm_backward", s, layernorm_backward_cost<T>(N * C), [&] {
        layernorm_backward(bench.device, dinp.data(), dweight.data(), dbias.data(), dout.data(), inp.data(),
                           weight.data(), mean.data(), rstd.data(), N, C);
    });
}

BENCHMARK("layernorm", Bound::memory, measure)
