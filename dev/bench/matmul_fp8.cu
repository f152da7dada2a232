// Speed of a model's widest linear layer, (N, C) to (N, 4 C), in FP8: the GEMMs alone, compared with those in the
// model's type; and forward with its quantization.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
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
}

BENCHMARK("matmul_fp8", Bound::compute, measure)
