// Benchmarks replace the model's constants. The rows are made up for an imaginary GPU, whose rates are worked out by
// hand.
#include "llmc/plan/calibration.h"
#include <tuple>
#include "llmc/base/file.h"  // write_file_atomically
#include "llmc/base/json.h"  // parse_json
#include "test/testing.h"

namespace {

constexpr const char* kCard = "NVIDIA H100 made up for a test";

const Gpu& h100() { return *find_gpu("H100"); }

struct Row {
    std::string what, shape = "124M", bound = "memory", more = "", device = kCard, dtype = "bf16";
    double ms = 1, bytes = 1e9, flops = 1e9;
    double peak = 0;  // 0: as the model has it
};
std::string line_of(const Row& row) {
    const double model = row.bound == "memory" ? h100().copy_bytes_per_s() : 1e12 * h100().tflops * h100().sustained;
    return format(R"({"type": "bench", "op": "x", "what": "%s", "shape": "%s", "device": "%s", "dtype": "%s", )"
                  R"("bound": "%s", "runs": 50, "median_ms": %.17g, "min_ms": 0.1, "p90_ms": 99, "bytes": %.17g, )"
                  R"("flops": %.17g, "peak": %.17g, "percent": 80%s, "smoke": false})",
                  row.what.c_str(), row.shape.c_str(), row.device.c_str(), row.dtype.c_str(), row.bound.c_str(), row.ms,
                  row.bytes, row.flops, row.peak > 0 ? row.peak : model, row.more.c_str()) +
           "\n";
}

using Rows = std::vector<Row>;

struct Results {
    ScratchFolder folder;
    std::string path = folder / "results.jsonl";

    explicit Results(const std::string& text) { write_file_atomically(path, text); }
    explicit Results(const Rows& rows) {
        std::string text = R"({"type": "check", "check": "doctor", "result": "ok"})"
                           "\n";
        for (const Row& row : rows) text += line_of(row);
        write_file_atomically(path, text);
    }
    std::shared_ptr<const Calibration> calibration() const { return calibrate(path, h100()); }
    std::string error(const Gpu& gpu = h100()) const {
        const std::string text = error_of([&] { calibrate(path, gpu); });
        const size_t at = text.find(path);
        return at == std::string::npos ? text : text.substr(0, at) + text.substr(at + path.size());
    }
};

TracedWork kernel_of(const std::string& op, const std::string& name, double bytes, bool has_op_cost = true) {
    TracedWork work;
    work.op = op, work.name = name, work.kernel = name + "_kernel", work.is_bf16 = true;
    work.grid[0] = 1 << 20, work.block[0] = 256, work.cost.bytes = bytes, work.has_op_cost = has_op_cost;
    return work;
}
TracedWork gemm_of(const MatmulCall& call) {
    TracedWork work;
    work.kind = TracedWork::Kind::gemm, work.gemm = call;
    return work;
}
TracedWork attention_of(int64_t HS, bool is_backward) {
    TracedWork work;
    work.kind = TracedWork::Kind::attention, work.is_backward = is_backward;
    work.cost = {.flops = 1e12, .keys = 1024, .head_size = HS};
    return work;
}
double seconds_of(const TracedWork& work, const Gpu& gpu) { return time_of(work, gpu, kMid, 1).seconds; }
// What a constant makes of it: the launch's start is none.
double rate_of_change(const TracedWork& work, const Gpu& gpu, int starts = 1) {
    return (seconds_of(work, gpu) - starts * kKernelStart) / (seconds_of(work, h100()) - starts * kKernelStart);
}

std::string linear(int64_t N, int64_t C, int64_t OC, double alone_ms) {
    return format(R"(, "rival": "product alone", "rival_ms": %.17g, "rows": %ld, "in": %ld, "out": %ld)", alone_ms,
                  long(N), long(C), long(OC));
}
std::string heads(int64_t keys, int64_t HS) {
    return format(R"(, "keys": %ld, "head_size": %ld)", long(keys), long(HS));
}

// Rows of dev/bench/launches.cu, in us. Short kernels: `beyond` more than their work as one launch.
Rows launch_rows(double alone, double tiny, double tiny_in_graph, double beyond, double beyond_in_graph) {
    const auto short_kernels = [](const char* what, double us) {
        return Row{.what = what,
                   .shape = "small",
                   .more = R"(, "rival": "one launch", "rival_ms": 0.0105)",
                   .ms = 1e-3 * (10.5 + us)};
    };
    return {{.what = "launch, one alone", .shape = "small", .ms = 1e-3 * alone},
            {.what = "launch, tiny kernels", .shape = "small", .ms = 1e-3 * tiny},
            {.what = "launch, tiny kernels in a graph", .shape = "small", .ms = 1e-3 * tiny_in_graph},
            short_kernels("launch, short kernels", beyond),
            short_kernels("launch, short kernels in a graph", beyond_in_graph),
            {.what = "launch, host's time for a kernel", .shape = "small", .ms = 2.25e-3},
            {.what = "launch, host's time for a GEMM", .shape = "small", .ms = 6.5e-3}};
}

// A hundred kernels of so many bytes, then GEMMs that take hardly any time. The first launches are in a graph.
StepTrace step_of(double bytes, int in_graph, int gemms) {
    StepTrace trace;
    const auto add = [&](const TracedWork& work) {
        trace.items.push_back({TraceItem::Kind::work, 0, int64_t(trace.work.size())});
        trace.work.push_back(work);
    };
    for (int i = 0; i < 100 + gemms; i++) {
        TracedWork work =
            i < 100 ? kernel_of("gelu_forward", "gelu_forward", bytes) : gemm_of({.m = 8, .n = 8, .k = 8});
        work.in_graph = i < in_graph;
        add(work);
    }
    return trace;
}
double step_of(double bytes, int in_graph, const Gpu& gpu, const ModelCase& model) {
    return step_time(step_of(bytes, in_graph, 0), gpu, model, 1).step_s;
}

}  // namespace

TEST_CASE("calibration: half the bandwidth is twice the time of what memory bounds", "[calibration]") {
    const double half = h100().copy_bytes_per_s() / 2;
    // Beside that copy, kernels are as the model has them: 0.84 of it.
    const auto c =
        Results(Rows{{.what = "gelu_forward", .ms = 1e3 * (1e9 / (0.84 * half) + kKernelStart), .peak = half}})
            .calibration();
    CHECK(c->has_copy);
    CHECK_FALSE(c->has_gemm);
    CHECK(c->gpu.copy_bytes_per_s() == Approx(half));
    CHECK(c->rates.streaming == Approx(0.84));
    CHECK(rate_of_change(kernel_of("gelu_forward", "gelu_forward", 1e9), c->gpu) == Approx(2));
    // Another op, and one whose share the model has a row for.
    CHECK(rate_of_change(kernel_of("swiglu_forward", "swiglu_forward", 1e9), c->gpu) == Approx(2));
    CHECK(rate_of_change(kernel_of("layernorm_backward", "layernorm_backward", 1e9), c->gpu) == Approx(2));
    TracedWork clear = kernel_of("fill_zero", "clear", 1e9);
    clear.kind = TracedWork::Kind::clear;
    CHECK(rate_of_change(clear, c->gpu) == Approx(2));
    // Not what tensor cores bound.
    const TracedWork large = gemm_of({.m = 8192, .n = 8192, .k = 8192});
    CHECK(seconds_of(large, c->gpu) == seconds_of(large, h100()));
    CHECK(c->before.copied == h100().copied);
}

TEST_CASE("calibration: each op has the share that it was measured at", "[calibration]") {
    const double copy = h100().copy_bytes_per_s();
    const auto at = [&](double share) { return 1e3 * (1e9 / (share * copy) + kKernelStart); };
    const auto c = Results(Rows{{.what = "gelu_forward", .ms = at(0.9)},
                                {.what = "residual_layernorm_forward", .ms = at(0.6)},
                                {.what = "adamw_update", .ms = at(0.7)},
                                {.what = "layernorm_backward", .ms = at(0.39)},
                                // Nothing of these: a variant, an op of many launches, fp32, a short one.
                                {.what = "gelu_forward (window)", .ms = at(0.1)},
                                {.what = "embedding_backward", .ms = at(0.1)},
                                {.what = "gelu_forward", .dtype = "fp32", .ms = at(0.1)},
                                {.what = "smear_forward", .ms = 0.003, .bytes = 1e6}})
                       .calibration();
    const auto share = [&](const TracedWork& work) {
        return work.cost.bytes / (seconds_of(work, c->gpu) - kKernelStart) / copy;
    };
    CHECK(share(kernel_of("gelu_forward", "gelu_forward", 1e9)) == Approx(0.9));
    // By the op, whose name another kernel has; only of the launch that does its work.
    CHECK(share(kernel_of("residual_layernorm_forward", "layernorm_forward", 1e9)) == Approx(0.6));
    CHECK(share(kernel_of("layernorm_backward", "layernorm_backward", 1e9)) == Approx(0.39));
    CHECK(share(kernel_of("gelu_forward", "add_partials", 1e9, false)) == Approx(0.7));
    // The median of those without waits for all others; with waits beside it as before.
    CHECK(c->rates.streaming == Approx(0.7));
    CHECK(share(kernel_of("smear_forward", "smear_forward", 1e9)) == Approx(0.7));
    CHECK(share(kernel_of("rmsnorm_backward", "rmsnorm_backward", 1e9)) == Approx(0.78 * 0.7 / 0.84));
    CHECK(c->num_unused == 3);
    REQUIRE(c->rows.size() == 5);
    CHECK(c->rows[1].predicted_s == Approx(1e9 / (0.84 * copy) + kKernelStart));
    CHECK(c->rows[1].measured_s == Approx(1e9 / (0.6 * copy) + kKernelStart));
    CHECK(c->rows[1].calibrated_s == Approx(c->rows[1].measured_s));
}

TEST_CASE("calibration: GEMMs and attention", "[calibration]") {
    // A card whose large GEMM is three quarters of the model's, and whose GEMMs at a model's shapes lose a tenth more.
    const double peak = 0.75e12 * h100().tflops * h100().sustained;
    const MatmulCall call{.m = 32768, .n = 6400, .k = 1600, .transpose_b = true};
    const double model_s = seconds_of(gemm_of(call), h100()) - kKernelStart;
    MatmulCall fp8 = call;
    fp8.a = fp8.b = DType::e4m3;
    const double fp8_s = seconds_of(gemm_of(fp8), h100()) - kKernelStart;
    const double attention_s = seconds_of(attention_of(64, true), h100()) - 3 * kKernelStart;
    const auto c = Results(Rows{{.what = "matmul_forward mlp.c_fc",
                                 .shape = "1558M",
                                 .bound = "compute",
                                 .more = linear(32768, 1600, 6400, 1e3 * (model_s / 0.75 / 0.9 + kKernelStart)),
                                 .peak = peak},
                                {.what = "matmul_fp8_forward",
                                 .shape = "1558M",
                                 .bound = "compute",
                                 .more = linear(32768, 1600, 6400, 9),
                                 .ms = 1e3 * (fp8_s / 0.75 / 0.8 + kKernelStart),
                                 .peak = peak},
                                {.what = "cudnn_attention_backward",
                                 .bound = "compute",
                                 .more = R"(, "rival": "not deterministic", "rival_ms": 0.9)" + heads(1024, 64),
                                 .ms = 1e3 * (2 * attention_s + 3 * kKernelStart),
                                 .flops = 1e12,
                                 .peak = peak},
                                {.what = "sustained GEMM, at first", .bound = "compute", .ms = 1, .peak = peak},
                                {.what = "sustained GEMM, at last", .bound = "compute", .ms = 1.25, .peak = peak}})
                       .calibration();
    CHECK(c->has_gemm);
    CHECK_FALSE(c->has_copy);
    CHECK(c->rates.factor("GEMM") == Approx(0.9));
    CHECK(c->rates.factor("FP8 GEMM") == Approx(0.8));
    CHECK(rate_of_change(gemm_of({.m = 8192, .n = 8192, .k = 8192}), c->gpu) == Approx(1 / 0.75 / 0.9));
    CHECK(rate_of_change(gemm_of(fp8), c->gpu) == Approx(1 / 0.75 / 0.8));
    // Twice the time, of both head sizes: only one was measured. Forward is as the large GEMM says.
    CHECK(rate_of_change(attention_of(64, true), c->gpu, 3) == Approx(2));
    CHECK(rate_of_change(attention_of(128, true), c->gpu, 3) == Approx(2));
    CHECK(rate_of_change(attention_of(64, false), c->gpu) == Approx(1 / 0.75));
    CHECK(c->warm == Approx(0.8));
    CHECK(c->cases[0].gemm == Approx(0.8 * kLow.gemm));
    CHECK(c->cases[1].gemm == 1);
    CHECK(c->cases[2].gemm == kHigh.gemm);
}

TEST_CASE("calibration: our own attention, and cuDNN's beside it", "[calibration]") {
    const auto rows = [](double ms) {
        return Results(Rows{{.what = "attention_forward",
                             .bound = "compute",
                             .more = format(R"(, "rival": "cuDNN", "rival_ms": %g)", ms) + heads(1024, 64),
                             .ms = 2 * ms,
                             .flops = 1e12 * (1 + 1. / 256)},
                            {.what = "attention_backward",
                             .bound = "compute",
                             .more = heads(1024, 64),
                             .ms = 3 * ms,
                             .flops = 1e12}})
            .calibration();
    };
    const auto c = rows(10), slower = rows(20);
    const double twice = 20e-3 - kKernelStart, once = 10e-3 - kKernelStart;
    TracedWork own = kernel_of("attention_forward", "attention_forward", 0);
    own.kernel = "flash_forward_hopper_kernel", own.cost = attention_of(64, false).cost;
    CHECK(seconds_of(own, c->gpu) == Approx(20e-3));
    CHECK(rate_of_change(own, slower->gpu) / rate_of_change(own, c->gpu) == Approx((40e-3 - kKernelStart) / twice));
    CHECK(rate_of_change(attention_of(64, false), slower->gpu) / rate_of_change(attention_of(64, false), c->gpu) ==
          Approx(twice / once));
    // By mma.sync on that card it was not measured.
    own.kernel = "flash_forward_kernel";
    CHECK(seconds_of(own, slower->gpu) == seconds_of(own, h100()));
    own.kernel = "flash_backward_hopper_kernel";
    CHECK(seconds_of(own, slower->gpu) / seconds_of(own, c->gpu) == Approx(2).epsilon(1e-3));
}

TEST_CASE("calibration: what launches cost in a stream, in a graph and the host", "[calibration]") {
    const double us = 1e-6;
    const auto c = Results(launch_rows(1.5, 1.75, 1.25, 2.5, 2)).calibration();
    for (const ModelCase& model : c->cases) {
        CHECK(model.start_s == Approx(1.5 * us));
        CHECK(model.gap_s == Approx(1 * us));
        CHECK(model.graph_gap_s == Approx(0.5 * us));
        CHECK(model.host_s == Approx(2.25 * us));
        CHECK(model.host_gemm_s == Approx(6.5 * us));
    }
    CHECK(c->cases[0].memory == kLow.memory);
    CHECK(c->cases[2].contention == kHigh.contention);
    CHECK(c->num_unused == 0);

    // Assumed are 2 and 0.8 us for each launch, in a graph 2 and 0.44; measured are 2.5 and 2.
    CHECK(step_of(1e9, 0, c->gpu, c->cases[1]) - step_of(1e9, 0, h100(), kMid) == Approx(100 * -0.3 * us));
    CHECK(step_of(1e9, 60, c->gpu, c->cases[1]) - step_of(1e9, 60, h100(), kMid) ==
          Approx((60 * -0.44 + 40 * -0.3) * us));
    // Of 96 kernels and 4 GEMMs outside of a graph, and the graph; on a GPU that they hardly occupy.
    const StepTime small = step_time(step_of(100, 4, 4), c->gpu, c->cases[1], 1);
    CHECK(small.host_launches == 101);
    CHECK(small.host_s == Approx((97 * 2.25 + 4 * 6.5) * us));
    CHECK(step_time(step_of(100, 103, 4), c->gpu, c->cases[1], 1).host_s == Approx((2.25 + 6.5) * us));
    CHECK(step_time(step_of(100, 4, 4), h100(), kMid, 1).host_s == Approx(101 * kMid.host_s));

    REQUIRE(c->rows.size() == 7);
    const auto is = [&](size_t i, const char* what, double predicted, double measured, double calibrated) {
        INFO(what);
        CHECK(c->rows[i].what == what);
        CHECK(c->rows[i].shape == "small");
        CHECK(c->rows[i].predicted_s == Approx(predicted * us));
        CHECK(c->rows[i].measured_s == Approx(measured * us));
        CHECK(c->rows[i].calibrated_s == Approx(calibrated * us));
    };
    is(0, "launch, one alone", 2, 1.5, 1.5);
    is(1, "launch, tiny kernels", 2.8, 1.75, 2.5);
    is(2, "launch, tiny kernels in a graph", 2.44, 1.25, 2);
    is(3, "launch, short kernels, beyond one", 2.8, 2.5, 2.5);
    is(4, "launch, short kernels in a graph, beyond one", 2.44, 2, 2);
    is(5, "launch, host's time for a kernel", 4, 2.25, 2.25);
    is(6, "launch, host's time for a GEMM", 4, 6.5, 6.5);
    const std::string text = text_of(*c);
    INFO(text);
    for (const auto& [name, assumed, measured] : {std::tuple{"start of a kernel, us", 2., 1.5},
                                                  {"gap between launches in a stream, us", 0.8, 1.},
                                                  {"gap between launches in a graph, us", 0.44, 0.5},
                                                  {"host's time for a kernel, us", 4., 2.25},
                                                  {"host's time for a GEMM, us", 4., 6.5}})
        CHECK(contains(text, format("%-44s %10.4g %10.4g %7.2f\n", name, assumed, measured, measured / assumed)));
    CHECK_FALSE(contains(text_of(*Results(Rows{{.what = "gelu_forward"}}).calibration()), "us "));
}

TEST_CASE("calibration: a start is not longer than a launch, and benchmarks have their own", "[calibration]") {
    const double us = 1e-6, copy = h100().copy_bytes_per_s();
    // Alone, with its events, a kernel takes longer than in a chain.
    Rows rows = launch_rows(4, 2.5, 1.75, 2.25, 1.5);
    rows.push_back({.what = "gelu_forward", .ms = 1e3 * (1e9 / (0.7 * copy) + 4 * us)});
    // Three kernels between two events.
    const double attention_s = seconds_of(attention_of(64, true), h100()) - 3 * kKernelStart;
    rows.push_back({.what = "cudnn_attention_backward",
                    .bound = "compute",
                    .more = heads(1024, 64),
                    .ms = 1e3 * (2 * attention_s + (4 + 2 * 2.5) * us),
                    .flops = 1e12});
    const auto c = Results(rows).calibration();
    CHECK(c->cases[1].start_s == Approx(1.75 * us));
    CHECK(c->cases[1].gap_s == Approx(0.75 * us));
    CHECK(c->cases[1].graph_gap_s == 0);
    CHECK(c->rates.shares.at("gelu_forward") == Approx(0.7));
    CHECK(c->rows[0].calibrated_s == Approx(c->rows[0].measured_s));
    CHECK(c->rates.factor("cudnn_attention_backward, HS 64") == Approx(0.5));
    CHECK(c->rows[1].predicted_s == Approx(attention_s + 3 * kKernelStart));
    CHECK(c->rows[1].calibrated_s == Approx(c->rows[1].measured_s));
    CHECK(c->rows[2].calibrated_s == Approx(4 * us));
    CHECK(step_of(1e9, 0, c->gpu, c->cases[1]) == Approx(100 * (1e9 / (0.7 * copy) + 2.5 * us)));

    // Rows that are missing, or say nothing: short kernels without what they are compared with, or as fast as that.
    rows = launch_rows(1.5, 2.5, 9, 0, 9);
    rows[2].device = rows[4].device = "NVIDIA A100";
    rows[5].dtype = "fp32";
    rows.push_back({.what = "launch, short kernels", .shape = "x", .ms = 1});
    const auto less = Results(rows).calibration();
    CHECK(less->cases[1].gap_s == Approx(1 * us));
    CHECK(less->cases[1].graph_gap_s == Approx(0.55 * us));
    CHECK(less->cases[0].host_s == kLow.host_s);
    CHECK(less->cases[0].host_gemm_s == Approx(6.5 * us));
    CHECK(less->rows.size() == 3);
    CHECK(less->num_unused == 3);
    rows = launch_rows(1.5, 2.5, 1.75, 2.25, 1.5);
    rows.pop_back();
    CHECK(Results(rows).calibration()->cases[0].host_gemm_s == Approx(2.25 * us));
    // Too slow a start to tell anything of a short launch.
    rows = launch_rows(30, 2.5, 1.75, 2.25, 1.5);
    rows.push_back({.what = "gelu_forward", .ms = 0.05, .bytes = 1e8});
    CHECK(Results(rows).calibration()->rates.shares.empty());
}

TEST_CASE("calibration: collectives of NCCL", "[calibration]") {
    const auto row = [](const char* what, int ranks, int hosts, double bytes, double seconds, const char* more = "",
                        const char* how = "NCCL 2.30.3, some ranks") {
        return format(R"({"type": "comm", "what": "%s", "device": "%s", "how": "%s", "ranks": %d, "hosts": %d, )"
                      R"("buffer": %.0f, "calls": 9, "us": %.17g, "bus_gb_per_s": 1%s})",
                      what, kCard, how, ranks, hosts, bytes, 1e6 * seconds, more) +
               "\n";
    };
    const auto calibrated = [](const std::string& text) { return Results(text).calibration(); };
    // A ring of 8 at 280 GB/s, whose beginning and 7 hops take 1.5 times as long as NCCL's own model says; of the
    // protocols Simple is faster for much, LL for little. LL sends a flag with every word.
    const double simple_s = 1.5e-6 * (8.4 + 7 * 3.4), ll_s = 1.5e-6 * (6.6 + 7 * 0.6), MiB = 1 << 20, KiB = 1 << 10;
    const double large_s = 7. / 8 * 256 * MiB / 280e9 + simple_s;
    const double small_s = 7. / 8 * 16 * KiB / 140e9 + ll_s;
    const std::string one_server =
        row("all-gather", 8, 1, 256 * MiB, large_s) + row("reduce-scatter", 8, 1, 16 * KiB, small_s);
    const auto c = calibrated(one_server);
    CHECK(c->gpu.collective == Approx(280).epsilon(1e-3));
    CHECK(c->gpu.network == h100().network);
    for (const ModelCase& model : c->cases) CHECK(model.latency == Approx(1.5).epsilon(1e-3));
    CHECK(c->cases[0].wire == kLow.wire);
    CHECK(collective_seconds(8e9, 1, c->gpu, c->cases[1], 8) == Approx(7e9 / 280e9 + simple_s).epsilon(1e-3));
    CHECK(all_to_all_seconds(0, c->gpu, c->cases[1], 8) == Approx(1.5e-6 * (8.4 + 3.4) + 7e-6).epsilon(1e-3));
    CHECK(collective_seconds_between(0, 1, c->gpu, c->cases[1], 2) == Approx(1.5e-6 * (6.6 + 2.7)).epsilon(1e-3));
    CHECK(collective_seconds_between(0, 2, c->gpu, c->cases[1], 8) == Approx(1.5e-6 * (6.8 + 6 * 5)).epsilon(1e-3));
    REQUIRE(c->rows.size() == 2);
    CHECK(c->rows[0].what == "all-gather, 8 ranks");
    CHECK(c->rows[0].shape == "256 MB");
    CHECK(c->rows[0].predicted_s == Approx(7. / 8 * 256 * MiB / 350e9 + simple_s / 1.5));
    CHECK(c->rows[0].calibrated_s == Approx(c->rows[0].measured_s).epsilon(1e-3));
    CHECK(c->rows[1].shape == "16 KB");
    const std::string text = text_of(*c);
    INFO(text);
    CHECK(contains(text, format("%-44s %10.4g %10.4g %7.2f\n", "collectives in a server, GB/s", 350., 280., 0.8)));
    CHECK(contains(text, format("%-44s %10.4g %10.4g %7.2f\n", "latency of collectives", 1., 1.5, 1.5)));

    // An all-reduce goes around twice; where no small buffer was measured, its latency is as assumed.
    const double twice_s = 14. / 8 * 256 * MiB / 280e9 + 1e-6 * (8.4 + 14 * 3.4);
    CHECK(calibrated(row("all-reduce", 8, 1, 256 * MiB, twice_s))->gpu.collective == Approx(280).epsilon(1e-3));
    // Two servers: each of 16 GPUs' 15 sixteenths of the buffer leave by 8 network cards at 36 GB/s.
    const auto two = calibrated(row("all-gather", 16, 2, 4096 * MiB, 15. / 16 * 4096 * MiB / 288e9));
    CHECK(two->gpu.network == Approx(36).epsilon(0.02));
    CHECK(two->gpu.collective == h100().collective);
    CHECK(two->cases[1].latency == 1);
    // The last of equal rows counts.
    CHECK(calibrated(row("all-gather", 8, 1, 256 * MiB, 1) + one_server)->gpu.collective == Approx(280).epsilon(1e-3));
    // Nothing of these: half of a server on each of two, virtual ranks, an all-to-all, a size between.
    const auto none = calibrated(row("all-gather", 8, 2, 256 * MiB, 1) +
                                 row("all-reduce", 4, 1, 256 * MiB, 1, "", "4 virtual ranks on one GPU") +
                                 row("all-to-all", 8, 1, 256 * MiB, 1) + row("all-gather", 8, 1, 4 * MiB, 1e-3));
    CHECK_FALSE(none->has_collectives);
    CHECK(none->gpu.collective == h100().collective);
    CHECK(none->num_unused == 3);
    CHECK(none->rows.size() == 1);
    CHECK(Results(one_server).error(*find_gpu("H200")) ==
          std::string("2: --calibrate : measured on ") + kCard +
              ", which is no H200: --gpu names the card of the benchmarks");
    CHECK(Results(row("all-gather", -8, 1, MiB, 1)).error() ==
          "2: --calibrate :1: ranks: expected a number above zero, found -8");
}

TEST_CASE("calibration: low and high are as far apart as the rows", "[calibration]") {
    const double copy = h100().copy_bytes_per_s();
    Rows rows;
    for (const double share : {0.7, 0.75, 0.8, 0.85, 0.9})
        rows.push_back(
            {.what = "gelu_forward", .shape = format("%g", share), .ms = 1e3 * (1e9 / (share * copy) + kKernelStart)});
    const auto c = Results(rows).calibration();
    CHECK(c->rates.shares.at("gelu_forward") == Approx(0.8));
    // A tenth and nine tenths of the way through five rows: 0.72 and 0.88 of a copy where the middle has 0.8.
    CHECK(c->cases[0].memory == Approx(0.72 / 0.8).epsilon(1e-3));
    CHECK(c->cases[1].memory == 1);
    CHECK(c->cases[2].memory == Approx(0.88 / 0.8).epsilon(1e-3));
    rows.resize(3);
    CHECK(Results(rows).calibration()->cases[0].memory == kLow.memory);
}

TEST_CASE("calibration: files, folders, and which row counts", "[calibration]") {
    const Results one(
        Rows{{.what = "gelu_forward", .peak = 1e12}, {.what = "gelu_forward", .device = "NVIDIA GH100 x"}});
    const Results two(Rows{{.what = "gelu_forward", .ms = 2, .peak = 2e12}});
    const auto c = calibrate(one.path + "," + two.folder.path, h100());
    CHECK(c->device == kCard);
    CHECK(c->gpu.copy_bytes_per_s() == Approx(2e12));
    REQUIRE(c->rows.size() == 1);
    CHECK(c->rows[0].measured_s == Approx(2e-3));
    CHECK(calibrate(two.path + "," + one.path, h100())->rows[0].measured_s == Approx(1e-3));
    const std::string text = text_of(*c);
    INFO(text);
    CHECK(contains(text, "calibrated by 1 rows of " + one.path + "," + two.folder.path + ", measured on " + kCard));
    CHECK(contains(text, "a large copy, TB/s"));
    CHECK(contains(text, "gelu_forward"));
    CHECK(contains(text, "ratio: measured over predicted. The model was off by "));
}

TEST_CASE("calibration: what it refuses", "[calibration]") {
    const ScratchFolder empty;
    CHECK(error_of([&] { calibrate(empty / "no", h100()); }) ==
          "2: --calibrate " + (empty / "no") + ": no such file or folder");
    CHECK(error_of([&] { calibrate(empty.path, h100()); }) ==
          "2: --calibrate " + empty.path + ": no results.jsonl in it: expected what scripts/gpu_check.sh left");
    CHECK(Results(std::string("")).error() ==
          "2: --calibrate : no row of a benchmark: expected what dev/bench writes with --json");
    CHECK(Results(Rows{{.what = "gelu_forward", .device = "NVIDIA GH200 480GB"}}).error(*find_gpu("H200")) ==
          "2: --calibrate : measured on NVIDIA GH200 480GB, which is no H200: --gpu names the card of the benchmarks");
    CHECK(Results(Rows{{.what = "gelu_forward", .device = "H100 A"}, {.what = "gelu_forward", .device = "H100 B"}})
              .error() == "2: --calibrate : rows of H100 A and of H100 B: expected those of one card");
    CHECK(Results(Rows{{.what = "gelu_forward", .dtype = "fp32"}}).error() ==
          "2: --calibrate : no row of a benchmark in bf16, in which the model computes: leave --fp32 out of dev/bench");
    const std::string good = line_of({.what = "gelu_forward"});
    CHECK(Results(good + "{\"type\": \"ben").error() ==
          "2: --calibrate :2: not a row: expected a JSON object as dev/bench writes with --json");
    CHECK(Results(std::string("{}\n")).error() == "2: --calibrate :1: type: expected text, found nothing");
    const auto with = [&](const std::string& from, const std::string& to) {
        std::string text = good;
        return Results(text.replace(text.find(from), from.size(), to)).error();
    };
    CHECK(with("\"bound\": \"memory\"", "\"bound\": \"wire\"") ==
          "2: --calibrate :1: bound: expected memory or compute, found wire");
    CHECK(with("\"median_ms\": 1", "\"median_ms\": -1") ==
          "2: --calibrate :1: median_ms: expected a number above zero, found -1");
    CHECK(with("\"median_ms\": 1", "\"median_ms\": \"x\"") ==
          "2: --calibrate :1: median_ms: expected a number above zero, found \"x\"");
    CHECK(with("\"smoke\": false", "\"smoke\": true") == "2: --calibrate :1: a --smoke run measures nothing");
}
