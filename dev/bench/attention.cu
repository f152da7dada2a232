// Speed of causal attention: with all keys, with a sliding window of T / 4, and with documents of T / 4 tokens on
// average, compared with cuDNN if it is available. FLOPs count unmasked scores: without a window T (T + 1) / 2 per
// head.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/attention/attention.cuh"
#include "llmc/cuda/attention/cudnn_attention.h"
#else
#include "llmc/cpu/attention.h"
#endif

// Of each token, where its document begins: one token in T / 4 begins another.
inline std::vector<int32_t> random_starts(int64_t B, int64_t T) {
    Rng rng(uint64_t(T), Stream::tests);
    std::vector<int32_t> starts;
    for (int64_t i = 0; i < B * T; i++) {
        const bool begins = i % T == 0 || rng.below(uint64_t(std::max<int64_t>(1, T / 4))) == 0;
        starts.push_back(begins ? int32_t(i % T) : starts.back());
    }
    return starts;
}

template <class T>
void measure_mask(Bench& bench, const BenchShape& s, int64_t window, bool documents) {
    AttentionShape shape{s.B, s.T, s.NH, s.NH, s.HS(), window};
    const std::vector<int32_t> host_starts = random_starts(s.B, s.T);
    const auto starts = values_of(bench.device, host_starts);
    const int64_t n = s.N() * s.C;
    const auto qkv = bench.random<T>(3 * n), dout = bench.random<T>(n);
    auto out = bench.random<T>(n), dqkv = bench.random<T>(3 * n);
    auto lse = bench.random<float>(s.N() * s.NH);
    double scores = 0;
    if (documents) shape.starts = host_starts.data();
    for (int64_t b = 0; b < s.B; b++)
        for (int64_t t = 0; t < s.T; t++) scores += double(s.NH * (t - shape.first_key(b, t) + 1));
    if (documents) shape.starts = starts.data();
    const auto time_forward = [&](auto attention) {
        return bench.stopwatch.time([&] { attention(bench.device, out.data(), lse.data(), qkv.data(), shape); });
    };
    const auto time_backward = [&](auto attention) {
        return bench.stopwatch.time(
            [&] { attention(bench.device, dqkv.data(), dout.data(), out.data(), lse.data(), qkv.data(), shape); });
    };
    const OpCost forward_cost = attention_forward_cost<T>(shape, kExpFlops, scores),
                 backward_cost = attention_backward_cost<T>(shape, kExpFlops, scores);
    const std::string suffix = documents ? " (documents)" : window < 0 ? "" : " (window)";
    const char* rival = nullptr;
    Timing rival_forward{}, rival_backward{};
#if BENCH_CUDA
    bench.device.attention = AttentionKernels::own;
    if constexpr (std::is_same_v<T, bf16>) {
        // At its fastest, which sums dQ in any order; and as training takes it, with the same bits each time.
        CudnnAttention fastest(bench.device, false), deterministic(bench.device);
        if (fastest.supports(shape) && deterministic.supports(shape)) {
            rival = "cuDNN";
            rival_forward = time_forward([&](auto&&... args) { fastest.forward(args...); });
            rival_backward = time_backward([&](auto&&... args) { fastest.backward(args...); });
            bench.print(("cudnn_attention_backward" + suffix).c_str(), s, backward_cost,
                        time_backward([&](auto&&... args) { deterministic.backward(args...); }), "not deterministic",
                        rival_backward);
        }
    }
#endif
    const Timing forward = time_forward([](auto&&... args) { attention_forward(args...); });
    const Timing backward = time_backward([](auto&&... args) { attention_backward(args...); });
    bench.print(("attention_forward" + suffix).c_str(), s, forward_cost, forward, rival, rival_forward);
    bench.print(("attention_backward" + suffix).c_str(), s, backward_cost, backward, rival, rival_backward);
}

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    measure_mask<T>(bench, s, -1, false);
    measure_mask<T>(bench, s, s.T / 4, false);
    measure_mask<T>(bench, s, -1, true);
    if (s.C < 768 || s.T >= 1024) return;
    BenchShape whole = s;  // GPT-2's context: the CPU's shape has a sixteenth of it
    whole.name = "T=1k", whole.B = 1, whole.T = 1024;
    measure<T>(bench, whole);
}

BENCHMARK("attention", Bound::compute, measure)
