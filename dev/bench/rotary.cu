// Speed of rotary embeddings, alone as in Llama and with QK-norm as in nanochat. V is neither read nor written.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/rotary.cuh"
#else
#include "llmc/cpu/rotary.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    for (const bool qk_norm : {false, true}) {
        const AttentionShape shape{s.B, s.T, s.NH, s.NH, s.HS()};
        const RotaryOptions options{.qk_norm = qk_norm};
        const auto table = values_of(bench.device, rotary_table(s.T, s.HS(), options));
        auto qkv = bench.random<T>(s.N() * shape.row()), dqkv = bench.random<T>(s.N() * shape.row());
        auto rstd = bench.random<float>(s.N() * 2 * s.NH);
        float* saved = qk_norm ? rstd.data() : nullptr;
        const double n = double(s.N() * 2 * s.NH * s.HS()), bytes = sizeof(T) * n;
        bench.run(qk_norm ? "rotary_forward (QK-norm)" : "rotary_forward", s, 2 * bytes, (qk_norm ? 6 : 4) * n,
                  [&] { rotary_forward(bench.device, qkv.data(), saved, table.data(), shape, options); });
        // dqkv in and out, and with QK-norm qkv in
        bench.run(qk_norm ? "rotary_backward (QK-norm)" : "rotary_backward", s, (qk_norm ? 3 : 2) * bytes,
                  (qk_norm ? 8 : 4) * n,
                  [&] { rotary_backward(bench.device, dqkv.data(), qkv.data(), saved, table.data(), shape, options); });
    }
}

BENCHMARK("rotary", Bound::memory, measure)
