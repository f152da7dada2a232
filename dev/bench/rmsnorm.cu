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
    const double n = double(N * C), bytes = sizeof(T) * n;
    bench.run("rmsnorm_forward", s, 2 * bytes, 4 * n,
              [&] { rmsnorm_forward(bench.device, out.data(), rstd.data(), inp.data(), weight.data(), N, C, 1e-5f); });
    bench.run("residual_rmsnorm_forward", s, 4 * bytes, 5 * n, [&] {
        residual_rmsnorm_forward(bench.device, residual.data(), out.data(), rstd.data(), inp.data(), dout.data(),
                                 weight.data(), N, C, 1e-5f);
    });
    // inp and dout in, dinp in and out; dweight is small
    bench.run("rmsnorm_backward", s, 4 * bytes, 13 * n, [&] {
        rmsnorm_backward(bench.device, dinp.data(), dweight.data(), dout.data(), inp.data(), weight.data(), rstd.data(),
                         N, C);
    });
}

BENCHMARK("rmsnorm", Bound::memory, measure)
