// See calibration.h.
#include "llmc/plan/calibration.h"
#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include "llmc/base/check.h"       // require
#include "llmc/plan/bench_rows.h"  // BenchRow, CommRow, read_rows

namespace {

// Launch overhead hardly matters for longer times. The rate of a shorter launch cannot be derived from its time.
constexpr double kLongEnough = 20e-6;
constexpr size_t kEnoughRows = 4;  // to estimate the spread between low and high

// "NVIDIA H100 80GB HBM3" is an H100, but "NVIDIA GH200 480GB" is not an H200.
bool is_of(const std::string& device, const std::string& gpu) {
    for (size_t at = device.find(gpu); at != std::string::npos; at = device.find(gpu, at + 1)) {
        const size_t end = at + gpu.size();
        const bool begins = at == 0 || !std::isalnum(static_cast<unsigned char>(device[at - 1]));
        if (begins && (end == device.size() || !std::isalnum(static_cast<unsigned char>(device[end])))) return true;
    }
    return false;
}

// A measurement and the launches that the model has for it.
struct Sample {
    std::string what, shape, factor;  // factor: in MeasuredRates::factors; "": a share of the bandwidth of a copy
    double seconds;
    std::vector<TracedWork> work;
};

TracedWork gemm_work(const MatmulCall& call) {
    TracedWork work;
    work.kind = TracedWork::Kind::gemm, work.gemm = call;
    const double out = double(call.m * call.n) * double(size_of(call.out));
    work.cost.bytes = double(call.m * call.k) * double(size_of(call.a)) +
                      double(call.n * call.k) * double(size_of(call.b)) + out * (call.accumulate ? 2 : 1);
    work.cost.flops = 2. * double(call.m * call.n) * double(call.k);
    return work;
}
TracedWork attention_work(const BenchRow& row, bool is_backward, bool deterministic) {
    TracedWork work;
    work.kind = TracedWork::Kind::attention;
    work.cost = {.flops = row.flops, .keys = row.keys, .head_size = row.head_size};
    work.is_backward = is_backward, work.deterministic = deterministic;
    return work;
}
// A kernel that has more blocks than fit on the GPU.
TracedWork kernel_work(const std::string& name, const std::string& kernel, const OpCost& cost) {
    TracedWork work;
    work.name = work.op = name, work.kernel = kernel, work.is_bf16 = true, work.has_op_cost = true;
    work.grid[0] = 1 << 20, work.block[0] = 256, work.cost = cost;
    return work;
}

// The two or three GEMMs of a row for a linear layer, (N, C) to (N, OC).
std::vector<TracedWork> linear_work(const BenchRow& row, bool is_backward, bool fp8) {
    const int64_t N = row.rows, C = row.in, OC = row.out;
    const DType values = fp8 ? DType::e4m3 : DType::bf16, gradients = fp8 ? DType::e5m2 : DType::bf16;
    if (!is_backward) return {gemm_work({.m = N, .n = OC, .k = C, .transpose_b = true, .a = values, .b = values})};
    return {gemm_work({.m = N, .n = C, .k = OC, .transpose_b = fp8, .a = gradients, .b = values}),
            gemm_work({.m = OC,
                       .n = C,
                       .k = N,
                       .transpose_a = !fp8,
                       .transpose_b = fp8,
                       .a = gradients,
                       .b = values,
                       .out = DType::f32})};
}

// Anvil's own attention computes another number of products than the row counts: by mma.sync 7 in backward, of which
// the row counts 5. Its trace also omits the exponentials, one FLOP per score on a GPU.
std::vector<TracedWork> own_attention_work(const BenchRow& row, const Gpu& gpu, bool is_backward) {
    const double HS = double(row.head_size), exp_flops = 1, products = is_backward ? 5 : 2;
    const double a_product = row.flops * 2 * HS / (products * 2 * HS + exp_flops);
    const auto work = [&](const char* kernel, int count) {
        return kernel_work("attention", kernel,
                           {.flops = count * a_product, .keys = row.keys, .head_size = row.head_size});
    };
    const bool on_hopper = gpu.compute_capability == 90 && (row.head_size == 64 || row.head_size == 128);
    if (!is_backward) return {work(on_hopper ? "flash_forward_hopper_kernel" : "flash_forward_kernel", 2)};
    if (!on_hopper) return {work("flash_backward_keys_kernel", 4), work("flash_backward_queries_kernel", 3)};
    return {work("flash_backward_hopper_kernel", 5)};
}

// The samples for the model in a row: none, one or two.
std::vector<Sample> samples_of(const BenchRow& row, const Gpu& gpu) {
    std::vector<Sample> samples;
    const auto add = [&](const std::string& what, const std::string& factor, double seconds,
                         std::vector<TracedWork> work) {
        samples.push_back({what, row.shape, factor, seconds, std::move(work)});
    };
    const auto add_attention = [&](const std::string& what, double seconds, std::vector<TracedWork> work) {
        const std::string kernel = attention_kernel(work[0]);
        add(what, attention_factor_name(kernel, row.head_size), seconds, std::move(work));
    };
    // Ops of one kernel in a pass: longer names are of other shapes or flags.
    const bool is_op = row.what.find_first_of(" ,(") == std::string::npos;
    if (row.is_memory) {
        // The first sorts, in many launches; the others read once and sum twice.
        static const std::set<std::string> several = {"embedding_backward", "document_starts", "attention_decode"};
        if (is_op && several.count(row.what) == 0)
            add(row.what, "", row.seconds,
                {kernel_work(row.what, row.what + "_kernel", {.bytes = row.bytes, .flops = row.flops})});
        return samples;
    }
    const bool is_linear = row.rows > 0 && row.in > 0 && row.out > 0;
    for (const bool is_backward : {false, true}) {
        const std::string pass = is_backward ? "backward" : "forward";
        if (is_linear && row.what.starts_with("matmul_" + pass) && row.rival == "product alone")
            add(row.what + ", alone", "GEMM", row.rival_s, linear_work(row, is_backward, false));
        if (is_linear && row.what == "matmul_fp8_" + pass)
            add(row.what, "FP8 GEMM", row.seconds, linear_work(row, is_backward, true));
        if (row.keys == 0 || row.head_size == 0) continue;
        if (row.what == "attention_" + pass)
            add_attention(row.what, row.seconds, own_attention_work(row, gpu, is_backward));
    }
    if (row.keys == 0 || row.head_size == 0) return samples;
    if (row.what == "attention_forward" && row.rival == "cuDNN")
        add_attention("cudnn_attention_forward", row.rival_s, {attention_work(row, false, true)});
    if (row.what == "cudnn_attention_backward") {
        add_attention(row.what, row.seconds, {attention_work(row, true, true)});
        if (row.rival == "not deterministic")
            add_attention(row.what + ", not deterministic", row.rival_s, {attention_work(row, true, false)});
    }
    return samples;
}

// The quantile `share` of the values, interpolated between neighbors.
double quantile(std::vector<double> values, double share) {
    std::sort(values.begin(), values.end());
    const double at = share * double(values.size() - 1);
    const size_t below = size_t(at), above = std::min(below + 1, values.size() - 1);
    return values[below] + (at - double(below)) * (values[above] - values[below]);
}

// ---- launches ------------------------------------------------------------------------------------------------------

// The rows of dev/bench/launches.cu, which says what they measure. 0: there is no such row.
struct LaunchTimes {
    double alone = 0, tiny = 0, tiny_in_graph = 0, short_kernels = 0, short_in_graph = 0, host = 0, host_gemm = 0;
    std::string shape;

    // What a launch beyond the first costs, apart from its work. For kernels of some length it is more than for tiny
    // ones, because parts of the GPU are idle between them; if it comes out as less, the difference of two large times
    // was disturbed.
    double in_stream() const { return std::max(tiny, short_kernels); }
    double in_graph() const { return std::max(tiny_in_graph, short_in_graph); }
};
struct LaunchRow {
    const char* what;
    double LaunchTimes::*time;
    bool is_beyond_rival;  // a launch costs the difference
    double (*predicted_s)(const ModelCase&);
};
double in_stream_s(const ModelCase& model) { return model.start_s + model.gap_s; }
double in_graph_s(const ModelCase& model) { return model.start_s + model.graph_gap_s; }
constexpr LaunchRow kLaunchRows[] = {
    {"launch, one alone", &LaunchTimes::alone, false, [](const ModelCase& model) { return model.start_s; }},
    {"launch, tiny kernels", &LaunchTimes::tiny, false, in_stream_s},
    {"launch, tiny kernels in a graph", &LaunchTimes::tiny_in_graph, false, in_graph_s},
    {"launch, short kernels", &LaunchTimes::short_kernels, true, in_stream_s},
    {"launch, short kernels in a graph", &LaunchTimes::short_in_graph, true, in_graph_s},
    {"launch, host's time for a kernel", &LaunchTimes::host, false,
     [](const ModelCase& model) { return model.host_s; }},
    {"launch, host's time for a GEMM", &LaunchTimes::host_gemm, false,
     [](const ModelCase& model) { return model.host_gemm_s; }},
};

// Whether the row says what a launch costs.
bool take_launch(LaunchTimes& times, const BenchRow& row) {
    for (const LaunchRow& launch : kLaunchRows) {
        if (row.what != launch.what || launch.is_beyond_rival != (row.rival == "one launch")) continue;
        const double seconds = row.seconds - (launch.is_beyond_rival ? row.rival_s : 0);
        if (seconds > 0) times.*launch.time = seconds, times.shape = row.shape;
        return seconds > 0;
    }
    return false;
}

// Only sums of start and gap are measured. The start is that of a kernel alone unless it, with the events around it, is
// longer than a whole launch of a chain: then there is no gap.
ModelCase with_launches(ModelCase model, const LaunchTimes& times) {
    if (const double in_stream = times.in_stream(); in_stream > 0) {
        const double in_graph = times.in_graph();
        if (times.alone > 0) model.start_s = times.alone;
        model.start_s = std::min({model.start_s, in_stream, in_graph > 0 ? in_graph : in_stream});
        model.gap_s = in_stream - model.start_s;
        model.graph_gap_s = in_graph > 0 ? in_graph - model.start_s : kGraphGap * model.gap_s;
    }
    if (times.host > 0) model.host_s = times.host, model.host_gemm_s = times.host;
    if (times.host_gemm > 0) model.host_gemm_s = times.host_gemm;
    return model;
}

// What is between two events, as in each row of a benchmark, beside the work of the launches.
struct BetweenEvents {
    double first_s = kMid.start_s, next_s = kMid.start_s;
};
BetweenEvents between_events(const LaunchTimes& times) {
    BetweenEvents result;
    if (times.alone > 0) result.first_s = times.alone;
    if (times.in_stream() > 0) result.next_s = times.in_stream();
    return result;
}

// ---- collectives ---------------------------------------------------------------------------------------------------

// Buffers whose time is nearly all bandwidth, or nearly all latency.
constexpr int64_t kLargeBuffer = 64 << 20, kSmallBuffer = 64 << 10;

double predicted_s(const CommRow& row, const Gpu& gpu, const ModelCase& model) {
    return collective_seconds(double(row.bytes), row.passes, gpu, model, int(row.ranks));
}
// The factor for `constant` of the model with which the median of these rows is predicted as measured; 0: there are
// none, or none can be.
double fitted(const std::vector<CommRow>& rows, const Gpu& gpu, ModelCase model, double ModelCase::*constant) {
    std::vector<double> factors;
    for (const CommRow& row : rows) {
        ModelCase low = model, high = model, mid = model;
        low.*constant /= 1e3, high.*constant *= 1e3;
        const bool rises = predicted_s(row, gpu, high) > predicted_s(row, gpu, low);
        for (int i = 0; i < 60; i++) {
            mid.*constant = std::sqrt(low.*constant * high.*constant);
            ((predicted_s(row, gpu, mid) < row.seconds) == rises ? low : high) = mid;
        }
        const double factor = mid.*constant / (model.*constant);
        if (factor > 2e-3 && factor < 500) factors.push_back(factor);
    }
    return factors.empty() ? 0 : quantile(factors, 0.5);
}

// Sets the bandwidths of c.gpu, and returns the factor of latencies; 1: not measured.
double fit_collectives(Calibration& c, const std::vector<CommRow>& rows) {
    ModelCase model = kMid;
    const auto of = [&](bool in_server, bool large) {
        std::vector<CommRow> some;
        for (const CommRow& row : rows)
            if (row.passes > 0 && (row.ranks <= kGpusPerServer) == in_server &&
                (large ? row.bytes >= kLargeBuffer : row.bytes <= kSmallBuffer))
                some.push_back(row);
        return some;
    };
    // Each is measured beside a little of the other.
    for (int i = 0; i < 4; i++) {
        if (const double factor = fitted(of(true, true), c.gpu, model, &ModelCase::wire); factor > 0)
            c.gpu.collective *= factor, c.has_collectives = true;
        if (const double factor = fitted(of(false, true), c.gpu, model, &ModelCase::wire); factor > 0)
            c.gpu.network = 1e-9 * wire_bytes_per_s(c.gpu, kGpusPerServer + 1) * factor / kGpusPerServer,
            c.has_collectives = true;
        std::vector<CommRow> small = of(true, false);
        for (const CommRow& row : of(false, false)) small.push_back(row);
        if (const double factor = fitted(small, c.gpu, model, &ModelCase::latency); factor > 0)
            model.latency *= factor, c.has_collectives = true;
    }
    return model.latency;
}

// ---- fit -----------------------------------------------------------------------------------------------------------

int num_launches(const Sample& sample) {
    int launches = 0;
    for (const TracedWork& work : sample.work)
        launches += work.kind == TracedWork::Kind::attention && work.is_backward ? 3 : 1;
    return launches;
}
double starts_s(const Sample& sample, const BetweenEvents& between) {
    return between.first_s + (num_launches(sample) - 1) * between.next_s;
}
double work_s(const Sample& sample, const Gpu& gpu) {
    double seconds = -num_launches(sample) * kMid.start_s;
    for (const TracedWork& work : sample.work) seconds += time_of(work, gpu, kMid, 1).seconds;
    return seconds;
}
double predicted_s(const Sample& sample, const Gpu& gpu, const BetweenEvents& between) {
    return work_s(sample, gpu) + starts_s(sample, between);
}
// Whether the sample shows the rate that bounds it, and not launch overhead or the other limit.
bool tells_rate(const Sample& sample, const Gpu& gpu, const BetweenEvents& between) {
    const double enough = std::max(kLongEnough, 2 * starts_s(sample, between));
    if (sample.seconds < enough || predicted_s(sample, gpu, between) < enough) return false;
    return std::all_of(sample.work.begin(), sample.work.end(), [&](const TracedWork& work) {
        return std::string(time_of(work, gpu, kMid, 1).bound) == (sample.factor.empty() ? "memory" : "tensor cores");
    });
}

// Sets each factor and share so that the median of its rows is predicted as measured.
void fit(Calibration& c, const std::vector<Sample>& samples, const BetweenEvents& between) {
    std::map<std::string, std::vector<double>> factors, shares;
    std::vector<double> streaming;
    for (const Sample& sample : samples) {
        if (!tells_rate(sample, c.gpu, between)) continue;
        const double measured = sample.seconds - starts_s(sample, between);
        if (sample.factor.empty()) {
            const double share = sample.work[0].cost.bytes / measured / c.gpu.copy_bytes_per_s();
            shares[sample.what].push_back(share);
            if (share_asked(sample.work[0]) == kMemoryShareAsked) streaming.push_back(share);
        } else {
            factors[sample.factor].push_back(work_s(sample, c.gpu) / measured);
        }
    }
    // Only after all samples: they are compared with the model without these factors.
    for (const auto& [name, values] : factors) c.rates.factors[name] = quantile(values, 0.5);
    for (const auto& [name, values] : shares) c.rates.shares[name] = quantile(values, 0.5);
    if (!streaming.empty()) c.rates.streaming = quantile(streaming, 0.5);
}

// A case of the model whose rates differ from the middle case as much as the rows do. What was measured of launches is
// the same in all cases.
ModelCase spread(const ModelCase& assumed, const Calibration& c, const std::vector<Sample>& samples,
                 const LaunchTimes& launches) {
    const BetweenEvents between = between_events(launches);
    ModelCase result = with_launches(assumed, launches);
    if (&assumed == &kMid) return result;
    std::vector<double> memory, gemm, attention;
    for (const Sample& sample : samples) {
        if (!tells_rate(sample, c.gpu, between)) continue;
        const double off = predicted_s(sample, c.gpu, between) / sample.seconds;
        (sample.factor.empty() ? memory : sample.what.starts_with("matmul_") ? gemm : attention).push_back(off);
    }
    const auto replace = [&](double& rate, const std::vector<double>& off) {
        if (off.size() >= kEnoughRows)
            rate = &assumed == &kLow ? std::min(1., quantile(off, 0.1)) : std::max(1., quantile(off, 0.9));
    };
    replace(result.memory, memory), replace(result.gemm, gemm), replace(result.attention, attention);
    // A GPU that trains for hours is warm.
    if (&assumed == &kLow) result.gemm *= c.warm;
    return result;
}

}  // namespace

std::shared_ptr<const Calibration> calibrate(const std::string& paths, const Gpu& gpu) {
    const auto c = std::make_shared<Calibration>();
    c->paths = paths, c->before = c->gpu = gpu;
    auto [rows, comm_rows] = read_rows(paths);
    require(!rows.empty() || !comm_rows.empty(),
            "--calibrate %s: no row of a benchmark: expected what dev/bench writes with --json", paths.c_str());
    std::set<std::string> cards, others;
    for (const BenchRow& row : rows) (is_of(row.device, gpu.name) ? cards : others).insert(row.device);
    for (const CommRow& row : comm_rows) (is_of(row.device, gpu.name) ? cards : others).insert(row.device);
    require(!cards.empty(), "--calibrate %s: measured on %s, which is no %s: --gpu names the card of the benchmarks",
            paths.c_str(), others.begin()->c_str(), gpu.name);
    require(cards.size() == 1, "--calibrate %s: rows of %s and of %s: expected those of one card", paths.c_str(),
            cards.begin()->c_str(), cards.rbegin()->c_str());
    c->device = *cards.begin();
    std::erase_if(rows, [&](const BenchRow& row) { return row.device != c->device; });
    std::erase_if(comm_rows, [&](const CommRow& row) { return row.device != c->device; });

    double copy = 0, gemm = 0, cold = 0, warm = 0;
    std::vector<Sample> samples;
    LaunchTimes launches;
    for (const BenchRow& row : rows) {
        if (row.dtype != "bf16") {
            c->num_unused++;
            continue;
        }
        // Each benchmark measures the peaks; the largest value is the least disturbed.
        double& peak = row.is_memory ? copy : gemm;
        peak = std::max(peak, row.peak);
        if (row.what == "sustained GEMM, at first") cold = row.flops / row.seconds;
        if (row.what == "sustained GEMM, at last") warm = row.flops / row.seconds;
        if (take_launch(launches, row)) continue;
        const std::vector<Sample> more = samples_of(row, gpu);
        c->num_unused += more.empty();
        samples.insert(samples.end(), more.begin(), more.end());
    }
    require(copy > 0 || gemm > 0 || !comm_rows.empty(),
            "--calibrate %s: no row of a benchmark in bf16, in which the model computes: leave --fp32 out of dev/bench",
            paths.c_str());
    c->has_copy = copy > 0, c->has_gemm = gemm > 0;
    if (c->has_copy) c->gpu.copied = copy / (gpu.bandwidth_tb * 1e12);
    if (c->has_gemm) c->gpu.sustained = gemm / (gpu.tflops * 1e12);
    if (cold > 0 && warm > 0) c->warm = std::min(1., warm / cold);
    c->has_launches = launches.in_stream() > 0, c->has_host = launches.host > 0 || launches.host_gemm > 0;
    const BetweenEvents between = between_events(launches);
    fit(*c, samples, between);
    c->gpu.measured = &c->rates;
    const double latency = fit_collectives(*c, comm_rows);
    for (size_t i = 0; i < 3; i++) {
        c->cases[i] = spread(*kCases[i], *c, samples, launches);
        c->cases[i].latency = latency;
    }
    for (const Sample& sample : samples)
        c->rows.push_back({sample.what, sample.shape, predicted_s(sample, gpu, {}), sample.seconds,
                           predicted_s(sample, c->gpu, between)});
    for (const CommRow& row : comm_rows) {
        c->num_unused += row.passes == 0;
        if (row.passes == 0) continue;
        const bool is_large = row.bytes >= 1 << 20;
        c->rows.push_back(
            {format("%s, %ld ranks", row.what.c_str(), long(row.ranks)),
             format("%.0f %s", double(row.bytes) / (is_large ? 1 << 20 : 1 << 10), is_large ? "MB" : "KB"),
             predicted_s(row, gpu, kMid), row.seconds, predicted_s(row, c->gpu, c->cases[1])});
    }
    for (const LaunchRow& launch : kLaunchRows) {
        const double measured = launches.*launch.time;
        const bool is_alone = launch.time == &LaunchTimes::alone;
        if (measured > 0)
            c->rows.push_back({launch.what + std::string(launch.is_beyond_rival ? ", beyond one" : ""), launches.shape,
                               launch.predicted_s(kMid), measured,
                               is_alone ? between.first_s : launch.predicted_s(c->cases[1])});
    }
    return c;
}

std::string text_of(const Calibration& c) {
    std::string text = format("calibrated by %zu rows of %s, measured on %s; %zu others say nothing about the model\n",
                              c.rows.size(), c.paths.c_str(), c.device.c_str(), c.num_unused);
    text += format("%-44s %10s %10s %7s\n", "constant", "assumed", "measured", "ratio");
    const auto constant = [&](const std::string& name, double assumed, double measured) {
        text += format("%-44s %10.4g %10.4g %7.2f\n", name.c_str(), assumed, measured, measured / assumed);
    };
    if (c.has_copy)
        constant("a large copy, TB/s", c.before.copy_bytes_per_s() * 1e-12, c.gpu.copy_bytes_per_s() * 1e-12);
    if (c.has_gemm)
        constant("a large GEMM, TFLOP/s", c.before.tflops * c.before.sustained, c.gpu.tflops * c.gpu.sustained);
    if (c.warm < 1) constant("the same after half a minute, beside the first", 1, c.warm);
    for (const auto& [name, factor] : c.rates.factors) constant("rate of " + name, 1, factor);
    const auto launch_constant = [&](const char* name, double ModelCase::*seconds) {
        constant(name, 1e6 * kMid.*seconds, 1e6 * c.cases[1].*seconds);
    };
    if (c.has_launches) {
        launch_constant("start of a kernel, us", &ModelCase::start_s);
        launch_constant("gap between launches in a stream, us", &ModelCase::gap_s);
        launch_constant("gap between launches in a graph, us", &ModelCase::graph_gap_s);
    }
    if (c.has_collectives) {
        constant("collectives in a server, GB/s", c.before.collective, c.gpu.collective);
        constant("network of a GPU, GB/s", c.before.network, c.gpu.network);
        constant("latency of collectives", 1, c.cases[1].latency);
    }
    if (c.has_host) {
        launch_constant("host's time for a kernel, us", &ModelCase::host_s);
        launch_constant("host's time for a GEMM, us", &ModelCase::host_gemm_s);
    }
    if (c.rows.empty()) return text;
    text +=
        format("%-44s %-6s %12s %12s %7s %11s\n", "row", "shape", "predicted ms", "measured ms", "ratio", "calibrated");
    std::vector<double> before, after;
    for (const CalibrationRow& row : c.rows) {
        before.push_back(std::abs(row.measured_s / row.predicted_s - 1));
        after.push_back(std::abs(row.measured_s / row.calibrated_s - 1));
        text += format("%-44s %-6s %12.4g %12.4g %7.2f %11.2f\n", row.what.c_str(), row.shape.c_str(),
                       row.predicted_s * 1e3, row.measured_s * 1e3, row.measured_s / row.predicted_s,
                       row.measured_s / row.calibrated_s);
    }
    text += format(
        "ratio: measured over predicted. The model was off by %.0f %% in the median and by %.0f %% at most; calibrated "
        "by %.0f and %.0f %%\n",
        100 * quantile(before, 0.5), 100 * quantile(before, 1), 100 * quantile(after, 0.5), 100 * quantile(after, 1));
    return text;
}
