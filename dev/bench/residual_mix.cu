// Speed of the residual mix: of two streams with a factor each, of one stream (backout, in place), and fused with the
// end of a block and the norm of the next.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/residual_mix.cuh"
#else
#include "llmc/cpu/residual_mix.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const int64_t N = s.N(), C = s.C, n = N * C;
    const auto inp = bench.random<T>(n), inp0 = bench.random<T>(n), dout = bench.random<T>(n);
    const auto a = bench.random<T>(1), b = bench.random<T>(1);
    auto out = bench.random<T>(n), mixed = bench.random<T>(n), dinp = bench.random<T>(n), dinp0 = bench.random<T>(n);
    auto da = bench.random<float>(1), db = bench.random<float>(1), rstd = bench.random<float>(N);
    const double bytes = sizeof(T) * double(n);
    bench.run("residual_mix_forward", s, 3 * bytes, 3 * double(n), [&] {
        residual_mix_forward(bench.device, out.data(), inp.data(), inp0.data(), a.data(), b.data(), 1, n);
    });
    // dinp0 in and out
    bench.run("residual_mix_backward", s, 6 * bytes, 7 * double(n), [&] {
        residual_mix_backward(bench.device, dinp.data(), dinp0.data(), da.data(), db.data(), dout.data(), inp.data(),
                              inp0.data(), a.data(), b.data(), 1, true, n);
    });
    // dout and inp0 in, dinp0 out
    bench.run("residual_mix_backward (one factor)", s, 3 * bytes, 3 * double(n), [&] {
        residual_mix_backward(bench.device, dinp.data(), dinp0.data(), nullptr, db.data(), dinp.data(), inp.data(),
                              inp0.data(), nullptr, b.data(), -1, false, n);
    });
    bench.run("residual_mix_rmsnorm_forward", s, 6 * bytes, 8 * double(n), [&] {
        residual_mix_rmsnorm_forward(bench.device, out.data(), mixed.data(), dinp.data(), rstd.data(), inp.data(),
                                     dout.data(), inp0.data(), a.data(), b.data(), N, C, 0x1p-23f);
    });
}

BENCHMARK("residual_mix", Bound::memory, measure)
