// Speed of SwiGLU with 8/3 C gates per row, Llama's ratio, rounded down to a multiple of 32.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/swiglu.cuh"
#else
#include "llmc/cpu/swiglu.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const int64_t N = s.N(), C = 8 * s.C / 3 / 32 * 32;
    const auto inp = bench.random<T>(N * 2 * C, 3), dout = bench.random<T>(N * C);
    auto out = bench.random<T>(N * C), dinp = bench.random<T>(N * 2 * C);
    bench.run("swiglu_forward", s, swiglu_forward_cost<T>(N * C, kExpFlops),
              [&] { swiglu_forward(bench.device, out.data(), inp.data(), N, C); });
    bench.run("swiglu_backward", s, swiglu_backward_cost<T>(N * C, kExpFlops),
              [&] { swiglu_backward(bench.device, dinp.data(), dout.data(), inp.data(), N, C); });
}

BENCHMARK("swiglu", Bound::memory, measure)
