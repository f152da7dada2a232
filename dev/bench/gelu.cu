// Speed of GELU between the two matrices of the MLP: 4 C columns.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/gelu.cuh"
#else
#include "llmc/cpu/gelu.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const int64_t elements = s.N() * 4 * s.C;
    const auto inp = bench.random<T>(elements, 3), dout = bench.random<T>(elements);
    auto out = bench.random<T>(elements), dinp = bench.random<T>(elements);
    bench.run("gelu_forward", s, gelu_forward_cost<T>(elements, kExpFlops),
              [&] { gelu_forward(bench.device, out.data(), inp.data(), elements); });
    bench.run("gelu_backward", s, gelu_backward_cost<T>(elements, kExpFlops),
              [&] { gelu_backward(bench.device, dinp.data(), dout.data(), inp.data(), elements); });
}

BENCHMARK("gelu", Bound::memory, measure)
