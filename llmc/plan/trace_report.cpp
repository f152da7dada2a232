// See trace_report.h.
#include "llmc/plan/trace_report.h"
#include <algorithm>
#include <iterator>
#include <map>
#include <vector>
#include "llmc/base/check.h"  // format
#include "llmc/base/json.h"   // Json

namespace {

constexpr double kLossShown = 5e-4;  // of a step; smaller losses are summed up in one line

// All launches of one name in a step.
struct Row {
    std::string name;
    double calls = 0, seconds = 0, bytes = 0, flops = 0, limit_s = 0;
    double lost_s = 0;  // compared with the goals
    int stream = 0;
    std::map<std::string, double> bounds, reasons;  // seconds by bound, and by reason for the loss

    static std::string most(const std::map<std::string, double>& of) {
        return std::max_element(of.begin(), of.end(), [](const auto& a, const auto& b) { return a.second < b.second; })
            ->first;
    }
    std::string bound() const { return most(bounds); }
};

std::vector<Row> rows_of(const StepTrace& trace, const StepTime& time) {
    std::map<std::string, Row> rows;
    for (const StepTime::Slice& slice : time.slices) {
        const TracedWork& work = trace.work[slice.work];
        const double times = double(trace.repeats(work));
        Row& row = rows[launch_name(work)];
        row.stream = work.stream;
        row.calls += times, row.seconds += times * slice.seconds;
        row.bytes += times * work.cost.bytes, row.flops += times * work.cost.flops;
        row.bounds[slice.bound] += times * slice.seconds, row.reasons[slice.why] += times * slice.seconds;
        row.limit_s += times * slice.limit_s;
        row.lost_s += times * std::max(0., slice.seconds - slice.limit_s / share_asked(work));
    }
    std::vector<Row> sorted;
    for (auto& [name, row] : rows) {
        sorted.push_back(row);
        sorted.back().name = name;
    }
    std::sort(sorted.begin(), sorted.end(), [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
    return sorted;
}

const char* part_of(const TracedWork& work) {
    if (work.kind == TracedWork::Kind::gemm || work.kernel == "symmetric_matmul_kernel") return "GEMMs";
    if (work.kind == TracedWork::Kind::attention || work.op.rfind("attention_", 0) == 0) return "attention";
    if (work.phase == "update" || work.phase == "norm") return "optimizer";
    return "other kernels";
}

}  // namespace

std::string launch_name(const TracedWork& work) {
    return work.kind == TracedWork::Kind::gemm ? text_of(work.gemm) : work.name;
}

std::string launch_table(const StepTrace& trace, const StepTime& time, const Gpu& gpu, size_t most) {
    std::vector<Row> rows = rows_of(trace, time), beside;
    const auto is_beside = [](const Row& row) { return row.stream != 0; };
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(beside), is_beside);
    std::erase_if(rows, is_beside);
    const size_t count = most > 0 ? std::min(most, rows.size()) : rows.size();
    size_t width = 26;
    for (size_t i = 0; i < count; i++) width = std::max(width, rows[i].name.size());
    std::string text = format("%-*s %8s %9s %6s %8s %8s %8s  %s\n", int(width), "launch, in a step", "calls", "ms",
                              "share", "TB/s", "TFLOP/s", "of limit", "bound by");
    const auto full_line = [&](const Row& row) {
        text += format("%-*s %8.0f %9.3f %5.1f%% %8.2f %8.1f %7.0f%%  %s\n", int(width), row.name.c_str(), row.calls,
                       row.seconds * 1e3, 100 * row.seconds / time.step_s, row.bytes / row.seconds * 1e-12,
                       row.flops / row.seconds * 1e-12, 100 * row.limit_s / row.seconds, row.bound().c_str());
    };
    const auto line = [&](const std::string& name, const std::string& calls, double seconds) {
        text += format("%-*s %8s %9.3f %5.1f%%\n", int(width), name.c_str(), calls.c_str(), seconds * 1e3,
                       100 * seconds / time.step_s);
    };
    double other_calls = 0, other_seconds = 0;
    for (size_t i = 0; i < rows.size(); i++) {
        if (i < count) full_line(rows[i]);
        if (i >= count) other_calls += rows[i].calls, other_seconds += rows[i].seconds;
    }
    if (other_calls > 0) line(format("%zu others", rows.size() - count), format("%.0f", other_calls), other_seconds);
    line("gaps between them", "", time.gaps_s);
    if (time.exposed_s > 0) line("waiting for collectives", "", time.exposed_s);
    if (time.exposed_copies_s > 0) line("waiting for copies", "", time.exposed_copies_s);
    line(format("a step on %s", gpu.name), format("%ld", long(time.launches)), time.step_s);
    if (!beside.empty()) text += "beside it, on a stream of their own:\n";
    for (const Row& row : beside) full_line(row);
    return text;
}

std::string limits_text(const StepTrace& trace, const StepTime& time) {
    std::vector<Row> rows = rows_of(trace, time);
    std::erase_if(rows, [](const Row& row) { return row.stream != 0; });
    std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.lost_s > b.lost_s; });
    double all = 0, others = 0;
    size_t width = 0, count = 0, num_others = 0;
    for (const Row& row : rows) {
        all += row.lost_s;
        if (row.lost_s >= kLossShown * time.step_s)
            width = std::max(width, row.name.size()), count++;
        else if (row.lost_s > 0)
            others += row.lost_s, num_others++;
    }
    std::string text = format(
        "below their share of the limit (memory %.0f %%, norms' backward %.0f %%, tensor cores %.0f %%): %.3f ms of a "
        "step, %.1f %%\n",
        100 * kMemoryShareAsked, 100 * kNormBackwardShareAsked, 100 * kTensorShareAsked, all * 1e3,
        100 * all / time.step_s);
    for (size_t i = 0; i < count; i++)
        text += format("%-*s %9.3f ms at %3.0f%%  %s\n", int(width), rows[i].name.c_str(), rows[i].lost_s * 1e3,
                       100 * rows[i].limit_s / rows[i].seconds, Row::most(rows[i].reasons).c_str());
    if (num_others > 0)
        text += format("%-*s %9.3f ms\n", int(width), format("%zu others", num_others).c_str(), others * 1e3);
    return text;
}

std::string parts_text(const StepTrace& trace, const StepTime& time) {
    std::vector<std::pair<std::string, double>> parts = {
        {"GEMMs", 0}, {"attention", 0}, {"other kernels", 0}, {"optimizer", 0}};
    for (const StepTime::Slice& slice : time.slices) {
        const TracedWork& work = trace.work[slice.work];
        if (work.stream != 0) continue;
        for (auto& [name, seconds] : parts)
            if (name == part_of(work)) seconds += double(trace.repeats(work)) * slice.seconds;
    }
    parts.push_back({"gaps", time.gaps_s});
    parts.push_back({"waiting for other ranks", time.exposed_s});
    parts.push_back({"waiting for offloaded state", time.exposed_copies_s});
    parts.push_back({"waiting for the host", time.step_s - time.busy_s - time.gaps_s - time.waited_s()});
    std::string text;
    for (const auto& [name, seconds] : parts)
        if (seconds > 5e-4 * time.step_s)
            text += format("%s%s %.*f %%", text.empty() ? "" : ", ", name.c_str(), seconds > 0.1 * time.step_s ? 0 : 1,
                           100 * seconds / time.step_s);
    return text;
}

std::string predicted_chrome_trace(const StepTrace& trace, const StepTime& time, const Gpu& gpu,
                                   const std::string& facts) {
    std::string text = "{\"displayTimeUnit\": \"ms\", \"otherData\": " + facts + ", \"traceEvents\": [\n";
    const auto named = [](int stream, const char* name) {
        return json_text(
            Json({{"ph", "M"}, {"name", "thread_name"}, {"pid", 0}, {"tid", stream}, {"args", {{"name", name}}}}));
    };
    std::map<int, const char*> streams = {{0, "the device's stream"}, {1, "collectives"}};
    for (const TracedWork& work : trace.work)
        if (work.is_beside())
            streams[work.stream] = work.name == "copy_to_device" ? "copies to the device" : "copies to the host";
    for (const auto& [stream, name] : streams) text += (stream > 0 ? ",\n" : "") + named(stream, name);
    for (const StepTime::Slice& slice : time.slices) {
        const TracedWork& work = trace.work[slice.work];
        Json args = {{"op", work.op},
                     {"phase", work.phase},
                     {"micro_batch", work.micro_batch},
                     {"bound by", slice.bound},
                     {"bytes", work.cost.bytes},
                     {"flops", work.cost.flops},
                     {"us at the limit", slice.limit_s * 1e6},
                     {"share asked", share_asked(work)},
                     {"why longer", slice.why}};
        if (work.kind == TracedWork::Kind::kernel) {
            const KernelResources resources = kernel_resources(work, gpu.compute_capability);
            args["kernel"] = work.kernel;
            args["grid"] = work.grid, args["block"] = work.block;
            args["shared bytes"] = work.shared_bytes + resources.static_bytes;
            args["registers"] = resources.registers, args["blocks an SM"] = resident_blocks(work, gpu);
        }
        if (work.kind == TracedWork::Kind::gemm) args["gemm"] = text_of(work.gemm);
        if (work.kind == TracedWork::Kind::collective) args["passes"] = work.passes;
        const Json event = {{"ph", "X"},
                            {"name", work.kind == TracedWork::Kind::gemm ? work.op : work.name},
                            {"cat", work.stream == 0   ? "kernel"
                                    : work.is_beside() ? "copy"
                                                       : "collective"},
                            {"ts", slice.begin_s * 1e6},
                            {"dur", slice.seconds * 1e6},
                            {"pid", 0},
                            {"tid", work.stream},
                            {"args", args}};
        text += ",\n" + json_text(event);
    }
    return text + "\n]}\n";
}
