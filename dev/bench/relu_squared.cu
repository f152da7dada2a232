// Speed of ReLU squared between the two matrices of the MLP: 4 C columns.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/relu_squared.cuh"
#else
#include "llmc/cpu/relu_squared.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const int64_t elements = s.N() * 4 * s.C;
    const auto inp = bench.random<T>(elements, 3), dout = bench.random<T>(elements);
    auto out = bench.random<T>(elements), dinp = bench.random<T>(elements);
    bench.run("relu_squared_forward", s, elements_cost<T>(kReluSquaredForward, elements),
              [&] { relu_squared_forward(bench.device, out.data(), inp.data(), elements); });
    bench.run("relu_squared_backward", s, elements_cost<T>(kReluSquaredBackward, elements),
              [&] { relu_squared_backward(bench.device, dinp.data(), dout.data(), inp.data(), elements); });
}

BENCHMARK("relu_squared", Bound::memory, measure)
