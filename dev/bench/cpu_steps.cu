/*
Profiles a training step on the CPU op by op (llmc/base/profile.h), with the trainer's own model, optimizer and stepper.

  make bench-cpu                            all of it, into doc/performance.md (dev/bench/cpu_steps.py)
  build/cpu/bench/cpu_steps                 all configurations and types, as text
  build/cpu/bench/cpu_steps --model small --dtype fp32            --help lists the other flags

Each step is compared with the machine's peaks in the same minute: multiply-adds in registers, the bf16 product of
AVX-512 if the processor has it, a copy that bypasses the caches, and AdamW's memory traffic without its arithmetic. The
roofline is the time of a step that does its arithmetic at the first peak, then moves its memory at the others, without
any cache, and every byte once:

  FLOPs / peak  +  U P / update  +  ((8 + 2 S) P + 4 S N (16 C L + V)) / copy

  P parameters, N tokens, C channels, L layers, V vocabulary, S bytes of a weight or activation
  FLOPs   as the trainer counts them: 6 per matrix weight and token, 6 L C T per token for causal attention
  U       28 bytes: weight and both moments read and written, gradient read; 30 in bf16, where master weights are read
          and written, and weights are written
  8 + 2 S gradients are written, and read for their norm; weights are read in both passes
  4 S     what backward needs of a block, 16 C per token, and the logits: written and read, and so are their gradients

The work of an op is counted as in all of dev/bench (llmc/ops/op_cost.h): every tensor once. Above 100 %, tensors were
still in a cache.
*/
#include "dev/bench/bench.h"  // format, Stopwatch, compute_peak
#if BENCH_CUDA
int main(int, char**) { return 0; }
#else
#include <unistd.h>
#include <filesystem>
#include <map>
#include "llmc/base/flags.h"    // Field, parse_flags
#include "llmc/base/profile.h"  // HostProfile, summary_of
#include "llmc/cpu/kernels.h"   // every op
#include "llmc/data/loader.h"
#include "llmc/model/flops.h"  // flops_per_token
#include "llmc/model/gpt.h"
#include "llmc/optim/optimizer.h"
#include "llmc/train/step.h"  // Stepper

namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

enum class Limit { arithmetic, copy, update };

Limit limit_of(const std::string& op) {
    if (op.starts_with("matmul") || op.starts_with("attention")) return Limit::arithmetic;
    return op.starts_with("adamw") ? Limit::update : Limit::copy;
}

struct OpTimes {
    ProfileRow row;               // of a step
    std::vector<double> of_step;  // ms
};

// Steps that were observed, each for itself.
struct StepTimes {
    std::vector<double> steps, rest;  // ms; rest: in no op
    std::map<std::string, OpTimes> ops;

    // One that `step` makes.
    template <class Step>
    void add(Cpu& cpu, Step&& step) {
        HostProfile profile;
        const Clock::time_point begin = Clock::now();
        cpu.observer = &profile;
        step();
        cpu.observer = nullptr;
        const double ms = ms_since(begin);
        steps.push_back(ms);
        profile.finish();
        double rest_ms = ms;
        for (const ProfileRow& row : summary_of(profile.slices(), {}).rows) {
            if (row.nested || row.calls == 0) continue;
            OpTimes& op = ops[row.name];
            op.row = row;
            op.of_step.push_back(row.ms);
            rest_ms -= row.ms;
        }
        rest.push_back(rest_ms);
    }
};

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

struct Limits {
    double peak, copy, update;  // FLOP/s, bytes/s, bytes/s

    double of(Limit limit) const { return limit == Limit::arithmetic ? peak : limit == Limit::copy ? copy : update; }
};

template <class T>
Limits measure_limits(Cpu& cpu, bool smoke) {
    Stopwatch stopwatch(cpu, smoke);
    Limits limits;
    limits.peak = compute_peak<T>(cpu, stopwatch);

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
    Cpu cpu(flags.threads);
    const Limits limits = measure_limits<T>(cpu, flags.smoke);

    const std::string shard = folder + "/" + s.name + ".bin";
    ShardWriter writer(shard, int(s.V));
    const std::vector<int32_t> tokens = text_like_tokens(std::max<int64_t>(20000, 20 * s.B * s.T + 1), s.V);
    writer.append(tokens.data(), int64_t(tokens.size()));
    writer.finish();
    DataLoader data({.pattern = shard, .batch_size = int(s.B), .seq_len = int(s.T), .vocab_size = int(s.V)});

    const GptShape shape{.num_layers = s.L, .num_heads = s.NH, .channels = s.C, .max_seq_len = s.T, .vocab_size = s.V};
    Gpt<Cpu, T> model(cpu, shape, s.B, s.T);
    Optimizer<Cpu, T> optimizer(cpu, model.parameters, OptimizerConfig{});
    model.initialize_weights(1, [&](size_t i, const float* values) { optimizer.set_masters(i, values); });
    Stepper<Cpu, T> stepper(model, optimizer, {.B = s.B, .T = s.T, .accumulation = 1, .grad_clip = 1}, 0);
    const Rates rates = optimizer.config.rates(3e-4);

    StepTimes times;
    const auto train = [&](size_t least, double seconds) {
        times = {};
        const Clock::time_point start = Clock::now();
        while (times.steps.size() < least || ms_since(start) < seconds * 1e3)
            times.add(cpu, [&] {
                stepper.start(data, rates);
                stepper.finish();
            });
    };
    train(flags.smoke ? 1 : 2, flags.smoke ? 0 : flags.seconds / 4);
    train(flags.smoke ? 1 : 3, flags.smoke ? 0 : flags.seconds);

    const double ms = middle(times.steps), tokens_per_s = double(s.B * s.T) / ms * 1e3;
    const Roofline roof = roofline<T>(model.parameters, s, limits);
    std::printf("\n%s, %s, %s: %.2f ms per step, %.0f tok/s; roofline %.2f ms, of which %.0f %% are reached\n", s.name,
                dtype, device_text(cpu).c_str(), ms, tokens_per_s, roof.ms(), 100 * roof.ms() / ms);
    std::printf("# limits: %.1f GFLOP/s (%s), %.1f GB/s copied, %.1f GB/s updated in place\n", limits.peak / 1e9,
                compute_text<T>(), limits.copy / 1e9, limits.update / 1e9);
    std::printf("# roofline: %.2f ms FLOPs / peak + %.2f ms update + %.2f ms other memory\n", roof.arithmetic_ms,
                roof.update_ms, roof.copy_ms);
    std::printf("%-44s %5s %10s %6s %9s %8s %8s\n", "op", "calls", "ms", "part", "GFLOP/s", "GB/s", "of limit");
    std::vector<std::pair<double, std::string> > order;
    const double rest = middle(times.rest);
    for (const auto& [name, op] : times.ops) order.push_back({middle(op.of_step), name});
    std::sort(order.rbegin(), order.rend());
    std::string ops;
    for (const auto& [op_ms, name] : order) {
        const ProfileRow& op = times.ops[name].row;
        const Limit limit = limit_of(name);
        const double amount = limit == Limit::arithmetic ? op.cost.flops : op.cost.bytes;
        const double percent = 100 * amount / (op_ms * 1e-3) / limits.of(limit);
        std::printf("%-44s %5.0f %10.4f %4.0f %% %9.2f %8.2f %6.0f %%\n", name.c_str(), op.calls, op_ms,
                    100 * op_ms / ms, op.cost.flops / op_ms / 1e6, op.cost.bytes / op_ms / 1e6, percent);
        ops += format(
            "%s{\"op\": \"%s\", \"calls\": %.0f, \"ms\": %.6g, \"flops\": %.0f, \"bytes\": %.0f, \"percent\": %.4g}",
            ops.empty() ? "" : ", ", name.c_str(), op.calls, op_ms, op.cost.flops, op.cost.bytes, percent);
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
                 s.name, dtype, cpu.num_threads, long(s.B * s.T), times.steps.size(), ms, limits.peak,
                 compute_text<T>(), limits.copy, limits.update, roof.arithmetic_ms, roof.update_ms, roof.copy_ms, rest,
                 ops.c_str());
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
