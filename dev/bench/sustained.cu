// The sustained rate of a large GEMM, repeated for half a minute. A GPU lowers its clock within seconds at its power
// limit. Fifty launches do not show that, hours of training do.
#include <chrono>
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/matmul.cuh"
#else
#include "llmc/cpu/matmul.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    if (&s != &kShapes[0] && !bench.flags.smoke) return;  // its size is its own
    using Clock = std::chrono::steady_clock;
    const auto seconds_since = [](Clock::time_point t) {
        return std::chrono::duration<double>(Clock::now() - t).count();
    };
    const int64_t n = bench.flags.smoke ? 128 : BENCH_CUDA ? 8192 : 1024;
    const double limit_s = bench.flags.smoke ? 0 : BENCH_CUDA ? 30 : 5;
    const int many =
        BENCH_CUDA && !bench.flags.smoke ? 200 : 1;  // launches between two looks at the clock: 0.3 s on an H200
    const auto a = bench.random<T>(n * n), b = bench.random<T>(n * n);
    auto out = bench.random<T>(n * n);
    const T* no_bias = nullptr;
    const auto seconds_of_one = [&] {
        const Clock::time_point begin = Clock::now();
        for (int i = 0; i < many; i++) matmul_forward(bench.device, out.data(), a.data(), b.data(), no_bias, n, n, n);
#if BENCH_CUDA
        bench.device.synchronize();
#endif
        return seconds_since(begin) / many;
    };
    seconds_of_one();
    std::vector<double> cold, warm;
    const Clock::time_point begin = Clock::now();
    do {
        const double one = seconds_of_one(), now_s = seconds_since(begin);
        if (now_s < limit_s / 15 || cold.empty()) cold.push_back(one);
        if (now_s > limit_s * 2 / 3) warm.push_back(one);
    } while (seconds_since(begin) < limit_s);
    if (warm.empty()) warm = cold;
    const double bytes = 3. * double(sizeof(T)) * double(n * n), flops = 2. * double(n) * double(n) * double(n);
    bench.print("sustained GEMM, at first", s, bytes, flops, timing_of(cold));
    bench.print("sustained GEMM, at last", s, bytes, flops, timing_of(warm));
}

BENCHMARK("sustained", Bound::compute, measure)
