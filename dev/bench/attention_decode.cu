// Speed of decoding attention: one query per row against a KV cache of T tokens, and against a window of T / 4. And of
// storing a prompt's keys and values in the cache.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/attention/attention_decode.cuh"
#else
#include "llmc/cpu/attention_decode.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const auto positions = values_of(bench.device, std::vector<int32_t>(size_t(s.B), int32_t(s.T - 1)));
    for (const int64_t window : {s.T - 1, s.T / 4}) {
        const KeyValueShape cache{.B = s.B, .NH = s.NH, .NKV = s.NH, .HS = s.HS(), .window = window};
        const int64_t n = s.B * cache.row_size();
        const auto qkv = bench.random<T>(s.N() * 3 * s.C);
        auto keys = bench.random<T>(n), values = bench.random<T>(n), out = bench.random<T>(s.B * s.C);
        const std::string suffix = window < s.T - 1 ? " (window)" : "";
        const double scores = double(s.B * s.NH * (window + 1)), HS = double(s.HS());
        bench.run(("attention_decode" + suffix).c_str(), s, sizeof(T) * scores * 2 * HS,
                  scores * (2 * 2 * HS + kExpFlops), [&] {
                      attention_decode(bench.device, out.data(), qkv.data(), keys.data(), values.data(),
                                       positions.data(), nullptr, cache);
                  });
        if (window < s.T - 1) continue;
        bench.run("attention_remember", s, sizeof(T) * 4 * double(s.N() * s.C), double(2 * s.N() * s.C), [&] {
            attention_remember(bench.device, keys.data(), values.data(), qkv.data(), nullptr, s.T, cache);
        });
    }
}

BENCHMARK("attention_decode", Bound::memory, measure)
