// Speed of the RMSNorm of queries and keys, with weights.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/qk_rmsnorm.cuh"
#else
#include "llmc/cpu/qk_rmsnorm.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const AttentionShape shape{s.B, s.T, s.NH, s.NH, s.HS()};
    const int64_t n = s.N() * 2 * s.NH * s.HS();
    auto qkv = bench.random<T>(s.N() * shape.row()), dqkv = bench.random<T>(s.N() * shape.row());
    auto saved = bench.random<T>(n), gain = bench.random<T>(s.HS());
    auto rstd = bench.random<float>(s.N() * 2 * s.NH), dgain = bench.random<float>(s.HS());
    const double bytes = 3 * double(sizeof(T)) * double(n);  // in, out, and the copy
    bench.run("qk_rmsnorm_forward", s, bytes, 4 * double(n), [&] {
        qk_rmsnorm_forward(bench.device, qkv.data(), saved.data(), rstd.data(), gain.data(), gain.data(), shape, 1e-6f);
    });
    bench.run("qk_rmsnorm_backward", s, bytes, 12 * double(n), [&] {
        qk_rmsnorm_backward(bench.device, dqkv.data(), dgain.data(), dgain.data(), saved.data(), rstd.data(),
                            gain.data(), gain.data(), shape);
    });
}

BENCHMARK("qk_rmsnorm", Bound::memory, measure)
