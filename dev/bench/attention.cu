// Speed of causal attention, all keys and a sliding window of T / 4; beside cuDNN's, where there is one. FLOPs count
// the scores that are seen: without a window T (T + 1) / 2 a head.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/attention.cuh"
#ifdef ANVIL_CUDNN
#include "llmc/cuda/cudnn_attention.h"
#endif
#else
#include "llmc/cpu/attention.h"
#endif

template <class T>
void measure_window(Bench& bench, const BenchShape& s, int64_t window) {
    const AttentionShape shape{s.B, s.T, s.NH, s.NH, s.HS(), window};
    const int64_t n = s.N() * s.C;
    const auto qkv = bench.random<T>(3 * n), dout = bench.random<T>(n);
    auto out = bench.random<T>(n), dqkv = bench.random<T>(3 * n);
    auto lse = bench.random<float>(s.N() * s.NH);
    double scores = 0;
    for (int64_t t = 0; t < s.T; t++) scores += double(s.B * s.NH * (t - shape.first_key(t) + 1));
    const double bytes = sizeof(T) * double(n), HS = double(shape.HS);
    const Timing forward =
        bench.stopwatch.time([&] { attention_forward(bench.device, out.data(), lse.data(), qkv.data(), shape); });
    const Timing backward = bench.stopwatch.time(
        [&] { attention_backward(bench.device, dqkv.data(), dout.data(), out.data(), lse.data(), qkv.data(), shape); });
    const char* rival = nullptr;
    Timing rival_forward{}, rival_backward{};
#ifdef ANVIL_CUDNN
    if constexpr (sizeof(T) == 2) {
        CudnnAttention cudnn(bench.device, false);  // at its fastest: dQ summed in any order
        if (cudnn.supports(shape)) {
            rival = "cuDNN";
            rival_forward =
                bench.stopwatch.time([&] { cudnn.forward(bench.device, out.data(), lse.data(), qkv.data(), shape); });
            rival_backward = bench.stopwatch.time([&] {
                cudnn.backward(bench.device, dqkv.data(), dout.data(), out.data(), lse.data(), qkv.data(), shape);
            });
        }
    }
#endif
    // Two products forward; backward makes the scores again and then four: dP, dv, dq, dk.
    const std::string suffix = window < 0 ? "" : " (window)";
    bench.print(("attention_forward" + suffix).c_str(), s, 4 * bytes, scores * (2 * 2 * HS + kExpFlops), forward, rival,
                rival_forward);
    bench.print(("attention_backward" + suffix).c_str(), s, 8 * bytes, scores * (5 * 2 * HS + kExpFlops), backward,
                rival, rival_backward);
}

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    measure_window<T>(bench, s, -1);
    measure_window<T>(bench, s, s.T / 4);
    if (s.C < 768 || s.T >= 1024) return;
    BenchShape whole = s;  // GPT-2's context: the CPU's shape has a sixteenth of it
    whole.name = "T=1k", whole.B = 1, whole.T = 1024;
    measure<T>(bench, whole);
}

BENCHMARK("attention", Bound::compute, measure)
