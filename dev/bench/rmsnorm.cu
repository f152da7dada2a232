// Speed of RMSNorm, of its fusion with the residual addition, and of its backward.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/rmsnorm.cuh"
#else
#include "llmc/cpu/rmsnorm.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const int64_t N = s.N(), C = s.C;
    const auto inp = bench.random<T>(N * C), weight = bench.random<T>(C), dout = bench.random<T>(N * C);
    auto out = bench.random<T>(N * C), residual = bench.random<T>(N * C), dinp = bench.random<T>(N * C);
    auto dweight = bench.random<float>(C), rstd = bench.random<float>(N);
    bench.run("rmsnorm_forward", s, elements_cost<T>(kRmsnormForward, N * C),
              [&] { rmsnorm_forward(bench.device, out.data(), rstd.data(), inp.data(), weight.data(), N, C, 1e-5f); });
    bench.run("residual_rmsnorm_forward", s, elements_cost<T>(kResidualRmsnormForward, N * C), [&] {
        residual_rmsnorm_forward(bench.device, residual.data(), out.data(), rstd.data(), inp.data(), dout.data(),
                                 weight.data(), N, C, 1e-5f);
    });
    // In FP8 with a delayed scale. Bytes, taken as floats of which four fit.
    auto rows = bench.random<float>((N * C + 3) / 4), columns = bench.random<float>((N * C + 3) / 4);
    auto inverse = bench.random<float>(1), amax = bench.random<float>(1), largest = bench.random<float>(1);
    const DelayedCodes codes{reinterpret_cast<e4m3*>(rows.data()),
                             reinterpret_cast<e4m3*>(columns.data()),
                             inverse.data(),
                             amax.data(),
                             {largest.data()}};
    bench.run("residual_rmsnorm_forward to codes", s,
              with_codes<T>(elements_cost<T>(kResidualRmsnormForward, N * C), N * C), [&] {
                  residual_rmsnorm_forward(bench.device, residual.data(), {out.data(), nullptr, nullptr, codes},
                                           rstd.data(), inp.data(), dout.data(), weight.data(), N, C, 1e-5f);
              });
    bench.run("rmsnorm_backward", s, rmsnorm_backward_cost<T>(N * C), [&] {
        rmsnorm_backward(bench.device, dinp.data(), dweight.data(), dout.data(), inp.data(), weight.data(), rstd.data(),
                         N, C);
    });
}

BENCHMARK("rmsnorm", Bound::memory, measure)
