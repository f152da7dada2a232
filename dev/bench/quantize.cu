// Speed of quantizing the activations of the MLP, (N, 4 C), to FP8: with and without a transposed copy, after a pass
// for the maximum; in MX; and with delayed scaling, which needs no such pass, fused with GELU, SwiGLU and their
// gradients; and of transposing codes.
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
    e5m2* const gradient = reinterpret_cast<e5m2*>(codes);
    e5m2* const gradient_transposed = reinterpret_cast<e5m2*>(out_transposed);
    auto sums = bench.random<float>(cols);
    using enum Activation;
    for (const Activation activation : {none, gelu}) {
        const std::string of = activation == none ? "" : " of gelu";
        const double exp_flops = bench.device.kExpFlops;
        bench.run(("absmax" + of).c_str(), s, absmax_cost<T>(n, activation, exp_flops),
                  [&] { absmax(bench.device, amax.data(), inp.data(), n, activation); });
        const auto run = [&](const std::string& what, auto* to, auto* copy, float* column_sums) {
            bench.run(what.c_str(), s, quantize_cost<T>(n, copy != nullptr, activation, exp_flops), [&] {
                quantize(bench.device, to, copy, inverse.data(), inp.data(), amax.data(), rows, cols, column_sums,
                         activation);
            });
        };
        run("quantize" + of, codes, static_cast<e4m3*>(nullptr), nullptr);
        run("quantize with transposed" + of, codes, out_transposed, nullptr);
        if (activation == none)
            run("quantize with transposed and column sums", gradient, gradient_transposed, sums.data());
    }
    bench.run("transpose_codes", s, elements_cost<e4m3>(2, 1, n),
              [&] { transpose_codes(bench.device, out_transposed, codes, rows, cols); });
    auto scales = bench.random<float>(mx_scale_bytes(rows, cols) / 4),
         transposed_scales = bench.random<float>(mx_scale_bytes(cols, rows) / 4);
    const MxTensor mx = {codes,          reinterpret_cast<e8m0*>(scales.data()),
                         out_transposed, reinterpret_cast<e8m0*>(transposed_scales.data()),
                         rows,           cols};
    for (const Activation activation : {none, gelu})
        bench.run(activation == none ? "quantize_mx" : "quantize_mx of gelu", s,
                  quantize_mx_cost<T>(n, activation, bench.device.kExpFlops),
                  [&] { quantize_mx(bench.device, mx, inp.data(), nullptr, activation); });
    bench.run("quantize_mx with column sums", s, quantize_mx_cost<T>(n),
              [&] { quantize_mx(bench.device, mx, inp.data(), sums.data()); });
    const auto hidden = bench.random<T>(n);
    auto largest = bench.random<float>(1);
    const QuantizeNotes notes{largest.data()};
    bench.run("quantize with transposed of gelu, noting", s, quantize_cost<T>(n, true, gelu, bench.device.kExpFlops),
              [&] {
                  quantize<e4m3, T>(bench.device, codes, out_transposed, inverse.data(), inp.data(), amax.data(), rows,
                                    cols, nullptr, gelu, nullptr, notes);
              });
    bench.run("quantize with transposed and column sums of gelu's gradient, noting", s,
              quantize_gradient_cost<T>(n, true, gelu, bench.device.kExpFlops), [&] {
                  quantize<e5m2, T>(bench.device, gradient, gradient_transposed, inverse.data(), inp.data(),
                                    amax.data(), rows, cols, sums.data(), gelu, hidden.data(), notes);
              });
    // Of half as many columns, whose gates and ups are as many as there are: 2 C of each.
    const int64_t F = cols / 2;
    bench.run("quantize with transposed of swiglu, noting", s,
              quantize_cost<T>(rows * F, true, swiglu, bench.device.kExpFlops), [&] {
                  quantize<e4m3, T>(bench.device, codes, out_transposed, inverse.data(), hidden.data(), amax.data(),
                                    rows, F, nullptr, swiglu, nullptr, notes);
              });
    bench.run("quantize with transposed of swiglu's gradient, noting", s,
              quantize_gradient_cost<T>(n, true, swiglu, bench.device.kExpFlops), [&] {
                  quantize<e5m2, T>(bench.device, gradient, gradient_transposed, inverse.data(), inp.data(),
                                    amax.data(), rows, cols, nullptr, swiglu, hidden.data(), notes);
              });
}

BENCHMARK("quantize", Bound::memory, measure)
