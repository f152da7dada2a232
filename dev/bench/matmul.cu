// Speed of GPT-2's GEMMs with their fused ops, compared with the GEMMs alone: of each layer, of the head, and summed
// over a model; and of the MLP with squared ReLU instead of GELU. Backward has two GEMMs, so twice the FLOPs. As in a
// step of one micro-batch, weight gradients are overwritten; only if the head runs in chunks, the later chunks add to
// them.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/matmul.cuh"
#include "llmc/cuda/relu_squared.cuh"
#else
#include "llmc/cpu/gemm.h"  // gemm_plan
#include "llmc/cpu/matmul.h"
#include "llmc/cpu/relu_squared.h"
#endif

struct Layer {
    const char* name;
    int64_t N, C, OC;
    double times;  // per step of GPT-2
    enum Kind { with_bias, gelu_after, gelu_before, relu_squared_after, relu_squared_before, alone } kind;
};

struct Sums {
    double seconds = 0, alone_seconds = 0, flops = 0, bytes = 0;
};

template <class T>
void measure_layer(Bench& bench, const BenchShape& s, const Layer& layer, Sums& forward, Sums& backward) {
    const int64_t N = layer.N, C = layer.C, OC = layer.OC;
    const auto inp = bench.random<T>(N * C), weight = bench.random<T>(OC * C), dout = bench.random<T>(N * OC);
    const auto bias = bench.random<T>(OC), hidden_before = bench.random<T>(N * C);
    auto out = bench.random<T>(N * OC), hidden = bench.random<T>(N * OC), dinp = bench.random<T>(N * C);
    auto dweight = bench.random<float>(OC * C), dbias = bench.random<float>(OC);
    const T* no_bias = nullptr;
    float* no_dbias = nullptr;
    Device& device = bench.device;
#if !BENCH_CUDA
    const GemmKernel kernel = with_packed_type<T>([](auto zero) { return gemm_kernel<decltype(zero), T>(); });
    const GemmPlan plan = gemm_plan(
        {.M = N, .N = OC, .K = C, .threads = device.num_threads, .rounds_c = sizeof(T) == 2, .streams_b = true},
        kernel);
    std::printf("# matmul_forward %s: %s\n", layer.name, plan.text().c_str());
#endif

    const auto measure_pass = [&](const char* pass, Sums& sums, const OpCost& cost, auto fused, auto alone) {
        const std::string what = format("matmul_%s %s", pass, layer.name);
        const Timing fused_time = bench.stopwatch.time(fused), alone_time = bench.stopwatch.time(alone);
        bench.print(what.c_str(), s, cost, fused_time, "product alone", alone_time);
        sums.seconds += layer.times * fused_time.median, sums.alone_seconds += layer.times * alone_time.median;
        sums.flops += layer.times * cost.flops, sums.bytes += layer.times * cost.bytes;
    };
    const bool after = layer.kind == Layer::gelu_after || layer.kind == Layer::relu_squared_after;
    const bool before = layer.kind == Layer::gelu_before || layer.kind == Layer::relu_squared_before;
    const T* added = layer.kind == Layer::alone ? no_bias : bias.data();
    float* dadded = layer.kind == Layer::alone ? no_dbias : dbias.data();
    measure_pass(
        "forward", forward, matmul_forward_cost<T>(N, C, OC, after ? 2 : 1),
        [&] {
            if (layer.kind == Layer::gelu_after)
                matmul_gelu_forward(device, out.data(), hidden.data(), inp.data(), weight.data(), added, N, C, OC);
            else
                matmul_forward(device, after ? hidden.data() : out.data(), inp.data(), weight.data(), added, N, C, OC);
            if (layer.kind == Layer::relu_squared_after)
                relu_squared_forward(device, out.data(), hidden.data(), N * OC);
        },
        [&] { matmul_forward(device, out.data(), inp.data(), weight.data(), no_bias, N, C, OC); });
    const Write write = layer.kind == Layer::alone && layer.times > 1 ? Write::add : Write::set;
    measure_pass(
        "backward", backward, matmul_backward_cost<T>(N, C, OC, write, before ? 3 : 2),
        [&] {
            if (layer.kind == Layer::gelu_before)
                matmul_gelu_backward(device, dinp.data(), dweight.data(), dadded, dout.data(), inp.data(),
                                     hidden_before.data(), weight.data(), N, C, OC, write);
            else
                matmul_backward(device, dinp.data(), dweight.data(), dadded, dout.data(), inp.data(), weight.data(), N,
                                C, OC, write);
            if (layer.kind == Layer::relu_squared_before)
                relu_squared_backward(device, dinp.data(), dinp.data(), hidden_before.data(), N * C);
        },
        [&] {
            matmul_backward(device, dinp.data(), dweight.data(), no_dbias, dout.data(), inp.data(), weight.data(), N, C,
                            OC, write);
        });
}

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const int64_t N = s.N(), rows = bench.head_rows<T>(s);
    const double L = double(s.L);
    Sums forward, backward;
    for (const Layer& layer : {Layer{"attn.c_attn", N, s.C, 3 * s.C, L, Layer::with_bias},
                               Layer{"attn.c_proj", N, s.C, s.C, L, Layer::with_bias},
                               Layer{"mlp.c_fc", N, s.C, 4 * s.C, L, Layer::gelu_after},
                               Layer{"mlp.c_proj", N, 4 * s.C, s.C, L, Layer::gelu_before},
                               Layer{"head", rows, s.C, s.Vp, double(N) / double(rows), Layer::alone},
                               Layer{"mlp.c_fc, ReLU^2", N, s.C, 4 * s.C, 0, Layer::relu_squared_after},
                               Layer{"mlp.c_proj, ReLU^2", N, 4 * s.C, s.C, 0, Layer::relu_squared_before}})
        measure_layer<T>(bench, s, layer, forward, backward);
    for (const auto& [what, sums] :
         {std::pair{"matmul_forward, a model", forward}, {"matmul_backward, a model", backward}})
        bench.print(what, s, sums.bytes, sums.flops, {sums.seconds, sums.seconds, sums.seconds, 1}, "product alone",
                    {sums.alone_seconds, sums.alone_seconds, sums.alone_seconds, 1});
}

BENCHMARK("matmul", Bound::compute, measure)
