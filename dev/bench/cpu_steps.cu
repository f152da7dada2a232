/*
What a training step on the CPU is made of: the trainer's own model, optimizer and stepper on a device `TimedCpu`, which
is a Cpu whose ops are timed. Nothing in them knows of it, and the ops that are called are those that train.

  make bench-cpu                            all of it, into doc/performance.md (dev/bench/cpu_steps.py)
  build/cpu/bench/cpu_steps                 all configurations and types, as text
  build/cpu/bench/cpu_steps --model small --dtype fp32            --help has the rest

Each step is held against what the machine does in the same minute: multiply-adds in registers, the bf16 product of
AVX-512 where the processor has it, a copy that goes past the caches, and AdamW's traffic without its arithmetic. The
roofline is the time of a step that does its arithmetic at the first rate, then moves its memory at the others, with no
cache and nothing twice:

  FLOPs / peak  +  U P / update  +  ((8 + 2 S) P + 4 S N (16 C L + V)) / copy

  P parameters, N tokens, C channels, L layers, V vocabulary, S bytes of a weight or activation
  FLOPs   as the trainer counts them: 6 a weight of a matrix and token, 6 L C T a token for causal attention
  U       28 bytes: weight, both moments read and written, gradient read; in bf16 30, masters and a weight besides
  8 + 2 S gradients written, and read for their norm; weights read in both passes
  4 S     what backward needs of a block, 16 C a token, and the logits: written and read, and so are their gradients

What an op moves is counted as in dev/bench: every tensor once. Above 100 %: it was still in a cache.
*/
#include "dev/bench/bench.h"  // format, Stopwatch, compute_peak
#if BENCH_CUDA
int main() {}
#else
#include <unistd.h>
#include <filesystem>
#include <map>
#include "llmc/base/flags.h"  // Field, parse_flags
#include "llmc/cpu/ops.h"     // every op
#include "llmc/data/loader.h"
#include "llmc/model/gpt.h"
#include "llmc/optim/optimizer.h"
#include "llmc/train/step.h"  // Stepper

namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

enum class Limit { arithmetic, copy, update };

struct Cost {
    Limit limit;
    double flops = 0, bytes = 0;
    std::string shape = "";
};

Cost moves(double bytes) { return {Limit::copy, 0, bytes}; }
Cost multiplies(int64_t N, int64_t C, int64_t OC, double products) {
    return {Limit::arithmetic, 2 * products * double(N) * double(C) * double(OC), 0,
            format(" %ldx%ld -> %ld", long(N), long(C), long(OC))};
}
// Products of all queries with half of the keys.
Cost attends(const AttentionShape& s, double products) {
    const double pairs = double(s.B) * double(s.NH) * double(s.T) * double(s.T) / 2;
    return {Limit::arithmetic, 2 * products * pairs * double(s.HS)};
}

struct OpTimes {
    Cost cost;                    // of a step
    int64_t calls = 0;            // in a step
    double ms = 0;                // so far in this step
    std::vector<double> of_step;  // of each step
};

}  // namespace

struct TimedCpu : Cpu {
    std::map<std::string, OpTimes> ops;
    std::vector<double> rest;  // of each step, outside of them all

    using Cpu::Cpu;

    template <class Op>
    void timed(const char* name, const Cost& cost, Op&& op) {
        const Clock::time_point start = Clock::now();
        op(static_cast<Cpu&>(*this));
        const double ms = ms_since(start);
        OpTimes& times = ops[name + cost.shape];
        if (times.of_step.empty()) {  // the same in every step
            const double flops = times.cost.flops + cost.flops, bytes = times.cost.bytes + cost.bytes;
            times.cost = cost;
            times.cost.flops = flops, times.cost.bytes = bytes;
            times.calls++;
        }
        times.ms += ms;
    }
    void end_step(double step_ms) {
        for (auto& [name, times] : ops) {
            times.of_step.push_back(times.ms);
            step_ms -= times.ms;
            times.ms = 0;
        }
        rest.push_back(step_ms);
    }
    void forget() {
        ops.clear();
        rest.clear();
    }
};

// TIMED(op, cost): the op on a TimedCpu is the Cpu's, timed; cost is a function of its arguments. The model finds it by
// the type of the device, as it finds the Cpu's.
#define TIMED(op, ...)                                                                    \
    template <class... Arguments>                                                         \
    void op(TimedCpu& cpu, Arguments... arguments) {                                      \
        const auto cost = __VA_ARGS__;                                                    \
        cpu.timed(#op, cost(arguments...), [&](Cpu& plain) { op(plain, arguments...); }); \
    }

// Of N rows of C elements as large as *p, so many tensors.
template <class T>
Cost moves_rows(const T*, double tensors, int64_t N, int64_t C) {
    return moves(tensors * double(sizeof(T)) * double(N) * double(C));
}

TIMED(embedding_forward,
      [](auto* out, auto, auto, auto, int64_t B, int64_t T, int64_t C) { return moves_rows(out, 2, B * T, C); })
TIMED(layernorm_forward,
      [](auto* out, auto, auto, auto, auto, auto, int64_t N, int64_t C, auto) { return moves_rows(out, 2, N, C); })
TIMED(residual_layernorm_forward, [](auto* out, auto, auto, auto, auto, auto, auto, auto, int64_t N, int64_t C, auto) {
    return moves_rows(out, 4, N, C);
})
TIMED(layernorm_backward, [](auto* dinp, auto, auto, auto, auto, auto, auto, auto, int64_t N, int64_t C) {
    return moves_rows(dinp, 4, N, C);
})
TIMED(matmul_forward, [](auto, auto, auto, auto, int64_t N, int64_t C, int64_t OC) { return multiplies(N, C, OC, 1); })
TIMED(matmul_backward, [](auto, auto, auto, auto, auto, auto, int64_t N, int64_t C, int64_t OC, Write) {
    return multiplies(N, C, OC, 2);
})
TIMED(matmul_gelu_forward,
      [](auto, auto, auto, auto, auto, int64_t N, int64_t C, int64_t OC) { return multiplies(N, C, OC, 1); })
TIMED(matmul_gelu_backward, [](auto, auto, auto, auto, auto, auto, auto, int64_t N, int64_t C, int64_t OC, Write) {
    return multiplies(N, C, OC, 2);
})
TIMED(attention_forward, [](auto, auto, auto, const AttentionShape& shape) { return attends(shape, 2); })
TIMED(attention_backward, [](auto, auto, auto, auto, auto, const AttentionShape& shape) { return attends(shape, 5); })
TIMED(cross_entropy_forward_backward,
      [](auto, auto* logits, auto, auto, int64_t N, auto, int64_t Vp, auto) { return moves_rows(logits, 2, N, Vp); })
TIMED(embedding_backward, [](auto* dwte, auto, auto* dout, auto, int64_t B, int64_t T, int64_t C) {
    return moves(moves_rows(dwte, 2, B * T, C).bytes + moves_rows(dout, 1, B * T, C).bytes);
})
TIMED(fill_zero, [](auto* data, int64_t n) { return moves_rows(data, 1, 1, n); })
TIMED(add_squares, [](auto, auto* data, int64_t n) { return moves_rows(data, 1, 1, n); })
TIMED(adamw_update, [](auto* param, auto* master, auto, auto, auto, int64_t n, auto, auto) {
    return Cost{Limit::update, 14 * double(n), double(n) * (master ? 28 + sizeof(*param) : 28)};
})
#undef TIMED

namespace {

struct StepShape {
    const char* name;
    int64_t L, NH, C, T, B, V;
};
constexpr StepShape kConfigs[] = {
    {"small", 4, 4, 128, 64, 12, 65},
    {"mid", 6, 6, 384, 256, 8, 65},
    {"124M-64", 12, 12, 768, 64, 4, 50304},
    {"124M-256", 12, 12, 768, 256, 4, 50304},
};
constexpr StepShape kSmoke = {"smoke", 1, 2, 32, 16, 2, 65};

struct StepFlags {
    std::string model = "all", dtype = "all", json;
    int threads = 0;
    double seconds = 4;
    bool smoke = false;

    std::vector<Field> fields() {
        return {{"what", "model", &model, "a model and its batch", {"all", "small", "mid", "124M-64", "124M-256"}},
                {"what", "dtype", &dtype, "of weights and activations", {"all", "fp32", "bf16"}},
                {"how", "threads", &threads, "0: OMP_NUM_THREADS, else one per core", {}, 0},
                {"how", "seconds", &seconds, "of each measurement", {}, 0},
                {"how", "smoke", &smoke, "a tiny model, two steps: shows that it works and measures nothing"},
                {"how", "json", &json, "adds a line of JSON for each to this file; nothing of --smoke"}};
    }
};

// ---- what the machine does at most ----------------------------------------------------------------------------

#if defined(__x86_64__)
// Products of tiles that stay in their registers, and so does what they add up to
double tile_peak(Cpu& cpu, Stopwatch& stopwatch) {
    const int64_t rounds = stopwatch.smoke ? 1 << 8 : 1 << 18;
    const Timing timing = stopwatch.time([&] {
        parallel_for(cpu, cpu.num_threads, [=](int64_t) {
            AmxTiles::prepare();
            const auto zero = [](auto... tiles) { (AmxTiles::zero(tiles), ...); };
            zero(Tmm<0>{}, Tmm<1>{}, Tmm<2>{}, Tmm<3>{}, Tmm<4>{}, Tmm<5>{}, Tmm<6>{}, Tmm<7>{});
            for (int64_t round = 0; round < rounds; round++) {
                AmxTiles::multiply(Tmm<0>{}, Tmm<4>{}, Tmm<6>{});
                AmxTiles::multiply(Tmm<1>{}, Tmm<4>{}, Tmm<7>{});
                AmxTiles::multiply(Tmm<2>{}, Tmm<5>{}, Tmm<6>{});
                AmxTiles::multiply(Tmm<3>{}, Tmm<5>{}, Tmm<7>{});
            }
        });
    });
    return 4. * 2 * kTmmRows * kTmmCols * kTmmDepth * double(rounds) * cpu.num_threads / timing.fastest;
}
#endif

#if defined(__AVX512BF16__)
constexpr const char* kBf16Text = "vdpbf16ps in registers";
double register_peak(Cpu& cpu, Stopwatch& stopwatch) {
    constexpr int kChains = 12;
    const int64_t rounds = stopwatch.smoke ? 1 << 10 : 1 << 20;
    std::vector<float> sink(size_t(cpu.num_threads) * kLanes);
    const Timing timing = stopwatch.time([&] {
        parallel_for(cpu, cpu.num_threads, [&](int64_t thread) {
            const __m512bh factor = __m512bh(_mm512_set1_epi16(0x3C00));  // 0.0078
            __m512 sums[kChains];
            for (__m512& sum : sums) sum = _mm512_set1_ps(1);
            for (int64_t round = 0; round < rounds; round++)
#pragma GCC unroll 12
                for (int i = 0; i < kChains; i++) sums[i] = _mm512_dpbf16_ps(sums[i], factor, factor);
            for (int i = 1; i < kChains; i++) sums[0] += sums[i];
            std::memcpy(&sink[size_t(thread) * kLanes], &sums[0], sizeof sums[0]);
        });
    });
    return 4. * kLanes * kChains * double(rounds) * cpu.num_threads / timing.fastest;
}
#else
constexpr const char* kBf16Text = "no bf16 product here: fp32's";
double register_peak(Cpu& cpu, Stopwatch& stopwatch) { return compute_peak(cpu, stopwatch, true); }
#endif

double bf16_peak(Cpu& cpu, Stopwatch& stopwatch) {
#if defined(__x86_64__)
    if (tile_product()) return tile_peak(cpu, stopwatch);
#endif
    return register_peak(cpu, stopwatch);
}

// Past the caches where the processor can.
void store_through(float* to, F32x16 x) {
#if defined(__AVX512F__)
    _mm512_stream_ps(to, x.part[0]);
#elif defined(__x86_64__)
    float lanes[kLanes];
    store(lanes, x);
    for (int i = 0; i < kLanes; i += 4) _mm_stream_ps(to + i, _mm_loadu_ps(lanes + i));
#else
    store(to, x);
#endif
}

template <class T>
const char* peak_text() {
    if (sizeof(T) == 4) return kComputeText;
    return tile_product() ? "tdpbf16ps in registers" : kBf16Text;
}

struct Limits {
    double peak, copy, update;  // FLOP/s, bytes/s, bytes/s

    double of(Limit limit) const { return limit == Limit::arithmetic ? peak : limit == Limit::copy ? copy : update; }
};

template <class T>
Limits measure_limits(Cpu& cpu, bool smoke) {
    Stopwatch stopwatch(cpu, smoke);
    Limits limits;
    limits.peak = sizeof(T) == 2 ? bf16_peak(cpu, stopwatch) : compute_peak(cpu, stopwatch, true);

    // Four arrays that no cache holds.
    constexpr int64_t kChunk = 1 << 16;
    const int64_t n = smoke ? kChunk : int64_t(24) << 20;
    float* data[4];
    for (float*& array : data) array = static_cast<float*>(cpu.allocate(size_t(n) * sizeof(float)));
    for (float* array : data) fill_zero(cpu, array, n);
    const Timing copy = stopwatch.time([&] {
        parallel_chunks(cpu, 2 * n, kChunk, [&](int64_t begin, int64_t end) {
            const float* from = begin < n ? data[0] : data[1] - n;
            float* to = begin < n ? data[2] : data[3] - n;
            for (int64_t i = begin; i < end; i += kLanes) store_through(to + i, load(from + i));
        });
    });
    limits.copy = 4. * double(n) * sizeof(float) / copy.fastest;
    const Timing update = stopwatch.time([&] {
        parallel_chunks(cpu, n, kChunk, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i += kLanes) {
                const F32x16 grad = load(data[3] + i);
                for (int array = 0; array < 3; array++) store(data[array] + i, load(data[array] + i) + grad);
            }
        });
    });
    limits.update = 7. * double(n) * sizeof(float) / update.fastest;
    for (float* array : data) cpu.release(array, size_t(n) * sizeof(float));
    return limits;
}

// ---- a step ---------------------------------------------------------------------------------------------------

struct Roofline {
    double arithmetic_ms, update_ms, copy_ms;
    double ms() const { return arithmetic_ms + update_ms + copy_ms; }
};

template <class T>
Roofline roofline(const ParameterList& list, const StepShape& s, const Limits& limits) {
    constexpr double kSize = sizeof(T), kUpdate = sizeof(T) == 2 ? 30 : 28;
    double P = 0;
    for (const Parameter& p : list) P += double(p.size());
    const double N = double(s.B * s.T), saved = 16. * double(s.C) * double(s.L) + double(s.V);
    return {.arithmetic_ms = 1e3 * flops_per_token(list, s.T) * N / limits.peak,
            .update_ms = 1e3 * kUpdate * P / limits.update,
            .copy_ms = 1e3 * ((8 + 2 * kSize) * P + 4 * kSize * N * saved) / limits.copy};
}

struct TemporaryFolder {
    std::string path = std::filesystem::temp_directory_path() / ("anvil_cpu_steps_" + std::to_string(getpid()));
    TemporaryFolder() { std::filesystem::create_directory(path); }
    ~TemporaryFolder() { std::filesystem::remove_all(path); }
};

double middle(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

template <class T>
void measure(const StepFlags& flags, const StepShape& s, const std::string& folder) {
    const char* dtype = sizeof(T) == 2 ? "bf16" : "fp32";
    TimedCpu cpu(flags.threads);
    const Limits limits = measure_limits<T>(cpu, flags.smoke);

    const std::string shard = folder + "/" + s.name + ".bin";
    ShardWriter writer(shard, int(s.V));
    const std::vector<int32_t> tokens = text_like_tokens(std::max<int64_t>(20000, 20 * s.B * s.T + 1), s.V);
    writer.append(tokens.data(), int64_t(tokens.size()));
    writer.finish();
    DataLoader data({.pattern = shard, .batch_size = int(s.B), .seq_len = int(s.T), .vocab_size = int(s.V)});

    const GptShape shape{.num_layers = s.L, .num_heads = s.NH, .channels = s.C, .max_seq_len = s.T, .vocab_size = s.V};
    Gpt<TimedCpu, T> model(cpu, shape, s.B, s.T);
    Optimizer<TimedCpu, T> optimizer(cpu, model.parameters, OptimizerConfig{});
    model.initialize_weights(1, [&](size_t i, const float* values) { optimizer.set_masters(i, values); });
    Stepper<TimedCpu, T> stepper(model, optimizer, {.B = s.B, .T = s.T, .accumulation = 1, .grad_clip = 1}, 0);
    const Rates rates = optimizer.config.rates(3e-4);

    std::vector<double> steps;
    const auto train = [&](size_t least, double seconds) {
        cpu.forget();
        steps.clear();
        for (const Clock::time_point start = Clock::now(); steps.size() < least || ms_since(start) < seconds * 1e3;) {
            const Clock::time_point begin = Clock::now();
            stepper.start(data, rates);
            stepper.finish();
            steps.push_back(ms_since(begin));
            cpu.end_step(steps.back());
        }
    };
    train(flags.smoke ? 1 : 2, flags.smoke ? 0 : flags.seconds / 4);
    train(flags.smoke ? 1 : 3, flags.smoke ? 0 : flags.seconds);

    const double ms = middle(steps), tokens_per_s = double(s.B * s.T) / ms * 1e3;
    const Roofline roof = roofline<T>(model.parameters, s, limits);
    std::printf("\n%s, %s, %s: %.2f ms a step, %.0f tok/s; roofline %.2f ms, of which %.0f %% are reached\n", s.name,
                dtype, device_text(cpu).c_str(), ms, tokens_per_s, roof.ms(), 100 * roof.ms() / ms);
    std::printf("# limits: %.1f GFLOP/s (%s), %.1f GB/s copied, %.1f GB/s updated in place\n", limits.peak / 1e9,
                peak_text<T>(), limits.copy / 1e9, limits.update / 1e9);
    std::printf("# roofline: %.2f ms FLOPs / peak + %.2f ms update + %.2f ms other memory\n", roof.arithmetic_ms,
                roof.update_ms, roof.copy_ms);
    std::printf("%-44s %5s %10s %6s %9s %8s %8s\n", "op", "calls", "ms", "part", "GFLOP/s", "GB/s", "of limit");
    std::vector<std::pair<double, std::string> > order;
    const double rest = middle(cpu.rest);
    for (const auto& [name, times] : cpu.ops) order.push_back({middle(times.of_step), name});
    std::sort(order.rbegin(), order.rend());
    std::string ops;
    for (const auto& [op_ms, name] : order) {
        const OpTimes& times = cpu.ops[name];
        const double amount = times.cost.limit == Limit::arithmetic ? times.cost.flops : times.cost.bytes;
        const double percent = 100 * amount / (op_ms * 1e-3) / limits.of(times.cost.limit);
        std::printf("%-44s %5ld %10.4f %4.0f %% %9.2f %8.2f %6.0f %%\n", name.c_str(), long(times.calls), op_ms,
                    100 * op_ms / ms, times.cost.flops / op_ms / 1e6, times.cost.bytes / op_ms / 1e6, percent);
        ops += format(
            "%s{\"op\": \"%s\", \"calls\": %ld, \"ms\": %.6g, \"flops\": %.0f, \"bytes\": %.0f, \"percent\": %.4g}",
            ops.empty() ? "" : ", ", name.c_str(), long(times.calls), op_ms, times.cost.flops, times.cost.bytes,
            percent);
    }
    std::printf("%-44s %5s %10.4f %4.0f %%\n", "everything else", "", rest, 100 * rest / ms);
    std::fflush(stdout);
    if (flags.json.empty()) return;
    std::FILE* file = std::fopen(flags.json.c_str(), "a");
    require(file, "--json %s: cannot be written: %s", flags.json.c_str(), std::strerror(errno));
    std::fprintf(file,
                 "{\"config\": \"%s\", \"dtype\": \"%s\", \"threads\": %d, \"tokens\": %ld, \"steps\": %zu, \"ms\": "
                 "%.6g, \"peak\": %.6g, \"peak_of\": \"%s\", \"copy\": %.6g, \"update\": %.6g, \"arithmetic_ms\": "
                 "%.6g, \"update_ms\": %.6g, \"copy_ms\": %.6g, \"rest_ms\": %.6g, \"ops\": [%s]}\n",
                 s.name, dtype, cpu.num_threads, long(s.B * s.T), steps.size(), ms, limits.peak, peak_text<T>(),
                 limits.copy, limits.update, roof.arithmetic_ms, roof.update_ms, roof.copy_ms, rest, ops.c_str());
    require(std::fclose(file) == 0, "--json %s: cannot be written: %s", flags.json.c_str(), std::strerror(errno));
}

}  // namespace

int main(int argc, char** argv) try {
    StepFlags flags;
    if (parse_flags(flags.fields(), argc, argv, "Measures training steps on the CPU, op by op.").help) return kExitOk;
    const TemporaryFolder folder;
    const auto measure_types = [&](const StepShape& s) {
        if (flags.dtype != "bf16") measure<float>(flags, s, folder.path);
        if (flags.dtype != "fp32") measure<bf16>(flags, s, folder.path);
    };
    if (flags.smoke) {
        std::printf("# cpu_steps: a smoke test: the numbers mean nothing\n");
        flags.json.clear();
        measure_types(kSmoke);
        return kExitOk;
    }
    for (const StepShape& s : kConfigs)
        if (flags.model == "all" || flags.model == s.name) measure_types(s);
    return kExitOk;
} catch (const Error& error) {
    std::fprintf(stderr, "error: cpu_steps: %s\n", error.what());
    return error.exit_code;
}
#endif
