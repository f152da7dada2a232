// Speed of quantizing: the activations of a layer as wide as the MLP (N, 4 C), with the transposed copy and without,
// and the maximum before it.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/quantize.cuh"
#else
#include "llmc/cpu/quantize.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const int64_t rows = s.N(), cols = 4 * s.C, n = rows * cols;
    const auto inp = bench.random<T>(n);
    auto amax = bench.random<float>(1), inverse = bench.random<float>(1);
    // Bytes, taken as floats of which four fit.
    auto out = bench.random<float>((n + 3) / 4), transposed = bench.random<float>((n + 3) / 4);
    e4m3* const codes = reinterpret_cast<e4m3*>(out.data());
    e4m3* const out_transposed = reinterpret_cast<e4m3*>(transposed.data());
    bench.run("absmax", s, sizeof(T) * double(n), double(n), [&] { absmax(bench.device, amax.data(), inp.data(), n); });
    const auto run = [&](const char* what, e4m3* copy, double bytes) {
        bench.run(what, s, bytes * double(n), 2 * double(n),
                  [&] { quantize(bench.device, codes, copy, inverse.data(), inp.data(), amax.data(), rows, cols); });
    };
    run("quantize", nullptr, sizeof(T) + 1);
    run("quantize with transposed", out_transposed, sizeof(T) + 2);
}

BENCHMARK("quantize", Bound::memory, measure)
