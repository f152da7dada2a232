// Speed of a model's widest linear layer, (N, C) to (N, 4 C), in FP8 and in MX: the GEMMs alone, compared with those in
// the model's type; and forward with its quantization.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/limits.h"  // kOldestMx
#include "llmc/cuda/matmul_fp8.cuh"
#include "llmc/cuda/quantize.cuh"
#else
#include "llmc/cpu/matmul.h"
#include "llmc/cpu/matmul_fp8.h"
#include "llmc/cpu/quantize.h"
#endif

// A tensor with its codes, which lie in floats.
template <class Fp8, class T>
struct Tensor8 {
    int64_t rows, cols;
    Values<T> values;
    Values<float> data, transposed, amax, inverse_scale;

    Tensor8(Bench& bench, int64_t rows, int64_t cols)
        : rows(rows),
          cols(cols),
          values(bench.random<T>(rows * cols)),
          data(bench.random<float>(rows * cols / 4)),
          transposed(bench.random<float>(rows * cols / 4)),
          amax(bench.random<float>(1)),
          inverse_scale(bench.random<float>(1)) {
        convert(bench.device);
    }
    void convert(Device& device) {
        absmax(device, amax.data(), values.data(), rows * cols);
        quantize(device, codes(data), codes(transposed), inverse_scale.data(), values.data(), amax.data(), rows, cols);
    }
    Quantized<Fp8> view() { return {codes(data), codes(transposed), inverse_scale.data(), rows, cols}; }
    static Fp8* codes(Values<float>& of) { return reinterpret_cast<Fp8*>(of.data()); }
};

// A tensor in MX.
struct TensorMx {
    int64_t rows, cols;
    Values<float> data, transposed, scales, transposed_scales;

    template <class T>
    TensorMx(Bench& bench, const Values<T>& values, int64_t rows, int64_t cols)
        : rows(rows),
          cols(cols),
          data(bench.random<float>(rows * cols / 4)),
          transposed(bench.random<float>(rows * cols / 4)),
          scales(bench.random<float>(mx_scale_bytes(rows, cols) / 4)),
          transposed_scales(bench.random<float>(mx_scale_bytes(cols, rows) / 4)) {
        quantize_mx(bench.device, view(), values.data());
    }
    MxTensor view() {
        return {reinterpret_cast<e4m3*>(data.data()),
                reinterpret_cast<e8m0*>(scales.data()),
                reinterpret_cast<e4m3*>(transposed.data()),
                reinterpret_cast<e8m0*>(transposed_scales.data()),
                rows,
                cols};
    }
};

bool has_mx([[maybe_unused]] const Device& device) {
#if BENCH_CUDA
    return device.compute_capability >= kOldestMx;
#else
    return true;
#endif
}

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const int64_t N = s.N(), C = s.C, OC = 4 * s.C;
    Tensor8<e4m3, T> inp(bench, N, C), weight(bench, OC, C);
    Tensor8<e5m2, T> dout(bench, N, OC);
    auto out = bench.random<T>(N * OC), dinp = bench.random<T>(N * C);
    auto dweight = bench.random<float>(OC * C);
    Device& device = bench.device;
    const T* const no_bias = nullptr;
    float* const no_dbias = nullptr;
    const double flops = 2 * double(N) * double(C) * double(OC), n_in = double(N * C), n_weight = double(OC * C),
                 n_out = double(N * OC);
    const auto layer = [&](double bytes, double of) {
        return OpCost{.bytes = bytes, .flops = of, .rows = N, .in = C, .out = OC};
    };
    const auto forward = [&] { matmul_fp8_forward(device, out.data(), inp.view(), weight.view(), no_bias); };
    const Timing forward_time = bench.stopwatch.time(forward);
    const Timing rival = bench.stopwatch.time(
        [&] { matmul_forward(device, out.data(), inp.values.data(), weight.values.data(), no_bias, N, C, OC); });
    bench.print("matmul_fp8_forward", s, layer(n_in + n_weight + sizeof(T) * n_out, flops), forward_time, bench.dtype(),
                rival);
    const Timing whole_time = bench.stopwatch.time([&] {
        inp.convert(device);
        weight.convert(device);
        forward();
    });
    bench.print("quantize and matmul_fp8_forward", s, (2 * sizeof(T) + 3) * (n_in + n_weight) + sizeof(T) * n_out,
                flops, whole_time, bench.dtype(), rival);
    const Timing backward_time = bench.stopwatch.time([&] {
        matmul_fp8_backward(device, dinp.data(), dweight.data(), dout.view(), inp.view(), weight.view(), Write::set);
    });
    const Timing backward_rival = bench.stopwatch.time([&] {
        matmul_backward(device, dinp.data(), dweight.data(), no_dbias, dout.values.data(), inp.values.data(),
                        weight.values.data(), N, C, OC, Write::set);
    });
    bench.print("matmul_fp8_backward", s,
                layer(2 * n_out + n_weight + n_in + sizeof(T) * n_in + 4 * n_weight, 2 * flops), backward_time,
                bench.dtype(), backward_rival);
    if (!has_mx(device)) return;
    TensorMx mx_inp(bench, inp.values, N, C), mx_weight(bench, weight.values, OC, C),
        mx_dout(bench, dout.values, N, OC);
    const auto mx_forward = [&] { matmul_mx_forward(device, out.data(), mx_inp.view(), mx_weight.view(), no_bias); };
    const Timing mx_time = bench.stopwatch.time(mx_forward);
    bench.print("matmul_mx_forward", s, layer(33. / 32 * (n_in + n_weight) + sizeof(T) * n_out, flops), mx_time,
                bench.dtype(), rival);
    const Timing whole_mx_time = bench.stopwatch.time([&] {
        quantize_mx(device, mx_inp.view(), inp.values.data());
        quantize_mx(device, mx_weight.view(), weight.values.data());
        mx_forward();
    });
    bench.print("quantize_mx and matmul_mx_forward", s, (sizeof(T) + 99. / 32) * (n_in + n_weight) + sizeof(T) * n_out,
                flops, whole_mx_time, bench.dtype(), rival);
    const Timing mx_backward_time = bench.stopwatch.time([&] {
        matmul_mx_backward(device, dinp.data(), dweight.data(), mx_dout.view(), mx_inp.view(), mx_weight.view(),
                           Write::set);
    });
    bench.print("matmul_mx_backward", s,
                layer(33. / 32 * (2 * n_out + n_weight + n_in) + sizeof(T) * n_in + 4 * n_weight, 2 * flops),
                mx_backward_time, bench.dtype(), backward_rival);
}

BENCHMARK("matmul_fp8", Bound::compute, measure)
