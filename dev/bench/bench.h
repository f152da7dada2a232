/*
Benchmarks of ops. A benchmark such as dev/bench/gelu.cu includes the op itself, never a copy. Compiled with g++ it
times the CPU function (`make bench OP=gelu`), with nvcc the GPU kernel (`make bench VARIANT=cuda OP=gelu`).

  template <class T>
  void measure(Bench& bench, const BenchShape& s) {
      const auto inp = bench.random<T>(n);
      auto out = bench.random<T>(n);
      bench.run("gelu_forward", s, gelu_forward_cost<T>(n, kExpFlops),
                [&] { gelu_forward(bench.device, out.data(), inp.data(), n); });
  }
  BENCHMARK("gelu", Bound::memory, measure)

Prints one line per op and shape: the median time of the runs with the fastest and the 90th percentile, GB/s and GFLOP/s
from the given cost (usually of llmc/ops/op_cost.h), and the percentage of the machine's peak, which is measured in the
same run: that of a large copy, or of arithmetic alone. `bytes` counts every tensor once, read or written. For how a
device is timed, and for its shapes, see bench_cpu.h and bench_cuda.cuh.

  --json FILE    appends a line of JSON per row to FILE; dev/results/perf_table.py makes a table of them, and
                 `train_gpt plan --calibrate FILE` replaces the constants of its model with them
  --shape NAME   one shape instead of all
  --fp32         float; the default on the CPU
  --bf16         bf16; the default on a GPU
  --smoke        tiny shapes, two runs: tests that the benchmark works, the numbers mean nothing
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>
#include "llmc/base/check.h"    // Error, require
#include "llmc/base/profile.h"  // Timing
#include "llmc/base/rng.h"      // Rng
#include "llmc/ops/op_cost.h"   // gelu_forward_cost, ...

struct BenchShape {
    const char* name;
    int64_t B, T, C, NH, V, Vp, L;
    int64_t num_params;  // for ops that run over all parameters
    int64_t N() const { return B * T; }
    int64_t HS() const { return C / NH; }
};

// The number of parameters of GPT-2, which AdamW and the gradient norm run over, without the last norm's few.
constexpr int64_t gpt2_params(int64_t L, int64_t C, int64_t Vp, int64_t T) {
    return (Vp + T) * C + L * (12 * C * C + 13 * C);
}

inline constexpr BenchShape kSmokeShape = {"smoke", 2, 32, 128, 2, 65, 128, 1, 4096};

enum class Bound { memory, compute };

// Token k has a probability of about 1/(k + 1), as words in a text do: a few tokens are in many rows.
inline std::vector<int32_t> text_like_tokens(int64_t n, int64_t V) {
    Rng rng(uint64_t(n), Stream::tests);
    std::vector<int32_t> tokens(static_cast<size_t>(n));
    for (int32_t& token : tokens) token = int32_t(std::pow(double(V), rng.uniform())) - 1;
    return tokens;
}

#if defined(__CUDACC__) || defined(ANVIL_EMULATED)
#define BENCH_CUDA 1
#include "dev/bench/bench_cuda.cuh"
#else
#define BENCH_CUDA 0
#include "dev/bench/bench_cpu.h"
#endif

inline constexpr double kExpFlops = Device::kExpFlops;

struct BenchFlags {
    std::string json, shape;
    bool fp32 = !BENCH_CUDA, smoke = false;

    BenchFlags(int argc, char** argv) {
        for (int i = 1; i < argc; i++) {
            const std::string flag = argv[i];
            const bool has_value = i + 1 < argc;
            if (flag == "--json" && has_value)
                json = argv[++i];
            else if (flag == "--shape" && has_value)
                shape = argv[++i];
            else if (flag == "--fp32" || flag == "--bf16")
                fp32 = flag == "--fp32";
            else if (flag == "--smoke")
                smoke = true;
            else
                require(false, "%s: expected --json FILE, --shape NAME, --fp32, --bf16 or --smoke", flag.c_str());
        }
        std::string names;
        for (const BenchShape& s : kShapes) names += std::string(" ") + s.name;
        require(shape.empty() || (names + " ").find(" " + shape + " ") != std::string::npos,
                "--shape %s: expected one of%s", shape.c_str(), names.c_str());
    }
};

struct Bench {
    BenchFlags flags;
    const char* op;
    Bound bound;
    Device device;
    Stopwatch stopwatch;
    double peak;  // bytes or FLOPs per second

    // Measures the machine's peak and prints it.
    Bench(const BenchFlags& flags, const char* op, Bound bound)
        : flags(flags), op(op), bound(bound), stopwatch(device, flags.smoke) {
        peak = bound == Bound::memory ? copy_peak(device, stopwatch) : compute_peak(device, stopwatch, flags.fp32);
        std::printf("# %s, %s, %s; ", op, device_text(device).c_str(), dtype());
        if (flags.smoke)
            std::printf("a smoke test: the numbers mean nothing\n");
        else
            std::printf("100 %% is %.1f %s: %s\n", peak / 1e9, bound == Bound::memory ? "GB/s" : "GFLOP/s",
                        bound == Bound::memory ? kCopyText : kComputeText);
    }

    const char* dtype() const { return flags.fp32 ? "fp32" : "bf16"; }

    template <class T>
    Values<T> random(int64_t n, float scale = 1) {
        return random_values<T>(device, n, scale);
    }
    // The number of rows in a chunk of the trainer's logits.
    template <class T>
    int64_t head_rows(const BenchShape& s) const {
        return device.head_rows(s.N(), s.Vp, sizeof(T));
    }
    Values<int32_t> tokens(int64_t n, int64_t V) { return values_of(device, text_like_tokens(n, V)); }

    // Calls measure(*this, shape) for each shape, and skips shapes that are too large for this machine.
    template <class Measure>
    void each_shape(Measure measure) {
        if (flags.smoke) return measure(*this, kSmokeShape);
        for (const BenchShape& shape : kShapes) {
            if (!flags.shape.empty() && flags.shape != shape.name) continue;
            try {
                measure(*this, shape);
            } catch (const Error& error) {
                if (error.exit_code != kExitUsage) throw;
                std::printf("%-34s %-5s  not run: %s\n", op, shape.name, error.what());
            }
        }
    }

    template <class F>
    void run(const char* what, const BenchShape& shape, double bytes, double flops, F f) {
        run(what, shape, {.bytes = bytes, .flops = flops}, f);
    }
    // On a GPU a memory-bound op is compared with a copy of as many bytes. For another rival use stopwatch and print().
    template <class F>
    void run(const char* what, const BenchShape& shape, const OpCost& cost, F f) {
        const Timing timing = stopwatch.time(f);
        if (kHasCopyRival && bound == Bound::memory)
            print(what, shape, cost, timing, "copy", copy_time(device, stopwatch, cost.bytes));
        else
            print(what, shape, cost, timing);
    }

    void print(const char* what, const BenchShape& shape, double bytes, double flops, const Timing& timing,
               const char* rival_name = nullptr, const Timing& rival = {}) {
        print(what, shape, {.bytes = bytes, .flops = flops}, timing, rival_name, rival);
    }
    void print(const char* what, const BenchShape& shape, const OpCost& cost, const Timing& timing,
               const char* rival_name = nullptr, const Timing& rival = {}) {
        const double bytes = cost.bytes, flops = cost.flops;
        const double percent = 100 * (bound == Bound::memory ? bytes : flops) / timing.median / peak;
        std::printf("%-34s %-5s  %9.4f ms  (min %9.4f, p90 %9.4f)  %7.2f GB/s  %9.2f GFLOP/s  %4.0f %%", what,
                    shape.name, timing.median * 1e3, timing.fastest * 1e3, timing.p90 * 1e3,
                    bytes / timing.median / 1e9, flops / timing.median / 1e9, percent);
        if (rival_name) std::printf("  %s %9.4f ms", rival_name, rival.median * 1e3);
        std::printf("\n");
        std::fflush(stdout);
        if (flags.json.empty()) return;
        std::FILE* file = std::fopen(flags.json.c_str(), "a");
        require(file, "--json %s: cannot be written: %s", flags.json.c_str(), std::strerror(errno));
        std::fprintf(file,
                     "{\"type\": \"bench\", \"op\": \"%s\", \"what\": \"%s\", \"shape\": \"%s\", \"device\": \"%s\", "
                     "\"dtype\": \"%s\", \"bound\": \"%s\", \"runs\": %d, \"median_ms\": %.6g, \"min_ms\": %.6g, "
                     "\"p90_ms\": %.6g, \"bytes\": %.0f, \"flops\": %.0f, \"peak\": %.6g, \"percent\": %.6g, ",
                     op, what, shape.name, device_text(device).c_str(), dtype(),
                     bound == Bound::memory ? "memory" : "compute", timing.runs, timing.median * 1e3,
                     timing.fastest * 1e3, timing.p90 * 1e3, bytes, flops, peak, percent);
        if (rival_name) std::fprintf(file, "\"rival\": \"%s\", \"rival_ms\": %.6g, ", rival_name, rival.median * 1e3);
        // The sizes of a GEMM or of attention, for `plan --calibrate`.
        for (const auto& [key, size] : {std::pair{"rows", cost.rows},
                                        {"in", cost.in},
                                        {"out", cost.out},
                                        {"keys", cost.keys},
                                        {"head_size", cost.head_size}})
            if (size > 0) std::fprintf(file, "\"%s\": %lld, ", key, (long long)size);
        std::fprintf(file, "\"smoke\": %s}\n", flags.smoke ? "true" : "false");
        require(std::fclose(file) == 0, "--json %s: cannot be written: %s", flags.json.c_str(), std::strerror(errno));
    }
};

template <class Measure>
int bench_main(int argc, char** argv, const char* op, Bound bound, Measure measure) try {
    const BenchFlags flags(argc, argv);
    Bench bench(flags, op, bound);
    begin_training_step(bench.device);  // GEMM algorithms are timed if ANVIL_MATMUL_CACHE names a file
    bench.each_shape(measure);
    end_training_step(bench.device);
    return 0;
} catch (const Error& error) {
    std::fprintf(stderr, "error: %s: %s\n", op, error.what());
    return error.exit_code;
}

#define BENCHMARK(op, bound, measure)                                                        \
    int main(int argc, char** argv) {                                                        \
        return bench_main(argc, argv, op, bound, [](Bench& bench, const BenchShape& shape) { \
            bench.flags.fp32 ? measure<float>(bench, shape) : measure<bf16>(bench, shape);   \
        });                                                                                  \
    }
