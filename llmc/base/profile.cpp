// See profile.h.
#include "llmc/base/profile.h"
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>
#include "llmc/base/check.h"  // ensure, format
#include "llmc/base/json.h"   // Json

void Profile::begin(SliceKind kind, const char* name, const OpCost& cost, int64_t number) {
    const int at = track();
    Slice slice{.kind = kind, .name = name, .cost = cost, .number = number, .track = at};
    slice.depth = int(open_[at].size());
    open_[at].push_back(slices_.size());
    slices_.push_back(slice);
    slices_.back().begin_mark = mark(slice, true);
}

void Profile::end() noexcept {
    std::vector<size_t>& open = open_[track()];
    Slice& slice = slices_[open.back()];
    slice.end_mark = mark(slice, false);
    open.pop_back();
}

void Profile::finish() {
    const std::vector<int64_t> times = this->times();
    for (const auto& open : open_) ensure(open.empty());
    for (Slice& slice : slices_) {
        slice.begin_ns = times.at(size_t(slice.begin_mark));
        slice.end_ns = times.at(size_t(slice.end_mark));
    }
}

int64_t HostProfile::mark(const Slice&, bool) noexcept {
    const Clock::time_point now = Clock::now();
    if (times_.empty()) first_ = now;
    times_.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(now - first_).count());
    return int64_t(times_.size()) - 1;
}

std::string slice_name(const char* name, const OpCost& cost) {
    if (cost.rows == 0) return name;
    return format("%s %ldx%ld -> %ld", name, long(cost.rows), long(cost.in), long(cost.out));
}
static std::string name_of(const Slice& slice) { return slice_name(slice.name, slice.cost); }

// Accumulates rows by name, in the order of their first slices.
class Rows {
public:
    void add(const std::string& name, const Slice& slice) {
        const auto [at, is_new] = index_.emplace(name, rows.size());
        if (is_new) rows.push_back({.name = name, .cost = slice.cost});
        ProfileRow& row = rows[at->second];
        if (is_new) row.cost.bytes = row.cost.flops = 0;
        row.calls++;
        row.ms += slice.ms();
        row.cost.bytes += slice.cost.bytes;
        row.cost.flops += slice.cost.flops;
    }
    // The rows, averaged per step, the longest first.
    std::vector<ProfileRow> taken(double steps, double step_ms, const PeakRates& peaks) {
        for (ProfileRow& row : rows) {
            for (double* sum : {&row.calls, &row.ms, &row.cost.bytes, &row.cost.flops}) *sum /= steps;
            row.share = step_ms > 0 ? row.ms / step_ms : 0;
            const double s = std::max(peaks.bytes > 0 ? row.cost.bytes / peaks.bytes : 0,
                                      peaks.flops > 0 ? row.cost.flops / peaks.flops : 0);
            row.of_peak = row.ms > 0 ? s * 1e3 / row.ms : 0;
        }
        std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.ms > b.ms; });
        return std::move(rows);
    }

    std::vector<ProfileRow> rows;

private:
    std::map<std::string, size_t> index_;
};

ProfileSummary summary_of(const std::vector<Slice>& slices, const PeakRates& peaks) {
    ProfileSummary summary;
    Rows ops, phases, collectives;
    std::map<std::string, Rows> parts;  // by the name of their op
    double all_ms = 0, in_ops_ms = 0;
    int op_depth[Profile::kTracks] = {};  // of the slices directly inside the current op; 0: none
    std::string op_name;
    for (const Slice& slice : slices) {
        int& depth = op_depth[slice.track];
        if (depth > 0 && slice.depth < depth) depth = 0;  // the op has ended
        if (slice.track > 0) {
            if (slice.kind == SliceKind::collective || slice.kind == SliceKind::copy)
                collectives.add(slice.name, slice);
        } else if (slice.kind == SliceKind::phase) {
            if (!std::strcmp(slice.name, "step"))
                summary.steps++, all_ms += slice.ms();
            else if (std::strcmp(slice.name, "block") && std::strcmp(slice.name, "micro_batch"))
                phases.add(slice.name, slice);
        } else if (depth == 0) {
            depth = slice.depth + 1;
            op_name = name_of(slice);
            ops.add(op_name, slice);
            in_ops_ms += slice.ms();
        } else if (slice.depth == depth) {
            parts[op_name].add(name_of(slice), slice);
        }
    }
    if (summary.steps == 0) return summary;
    const double steps = summary.steps;
    summary.step_ms = all_ms / steps;
    summary.phases = phases.taken(steps, summary.step_ms, peaks);
    summary.collectives = collectives.taken(steps, summary.step_ms, peaks);
    for (const ProfileRow& op : ops.taken(steps, summary.step_ms, peaks)) {
        summary.rows.push_back(op);
        summary.peak_ms += op.of_peak * op.ms;
        std::vector<ProfileRow> inside = parts[op.name].taken(steps, summary.step_ms, peaks);
        // An op of one kernel with the same name needs one row only.
        if (inside.size() == 1 && inside[0].name == op.name) continue;
        for (ProfileRow& part : inside) {
            part.nested = true;
            summary.rows.push_back(part);
        }
    }
    const double rest_ms = summary.step_ms - in_ops_ms / steps;
    summary.rows.push_back({.name = "everything else",
                            .ms = rest_ms,
                            .share = summary.step_ms > 0 ? rest_ms / summary.step_ms : 0,
                            .cost = {}});
    return summary;
}

// GB/s or GFLOP/s; empty if not known.
static std::string rate_text(double amount, double ms) {
    return amount > 0 && ms > 0 ? format("%.2f", amount / ms * 1e-6) : "";
}

static std::string line_of(const ProfileRow& row, int width) {
    const std::string name = (row.nested ? "  " : "") + row.name;
    const std::string calls = row.calls > 0 ? format("%g", row.calls) : "";
    const std::string of_peak = row.of_peak > 0 ? format("%.0f %%", 100 * row.of_peak) : "";
    std::string line =
        format("%-*s %8s %10.4f %6.1f %% %9s %10s %8s", width, name.c_str(), calls.c_str(), row.ms, 100 * row.share,
               rate_text(row.cost.bytes, row.ms).c_str(), rate_text(row.cost.flops, row.ms).c_str(), of_peak.c_str());
    line.erase(line.find_last_not_of(' ') + 1);
    return line + "\n";
}

std::string profile_table(const std::vector<Slice>& slices, const PeakRates& peaks) {
    const ProfileSummary summary = summary_of(slices, peaks);
    std::string text = format("profile: %d steps of %.3f ms", summary.steps, summary.step_ms);
    const char* between = ": ";
    for (const ProfileRow& phase : summary.phases) {
        text += format("%s%s %.1f %%", between, phase.name.c_str(), 100 * phase.share);
        between = ", ";
    }
    text += "\n";
    if (peaks.bytes > 0)
        text += format("100 %% of peak: %.1f GB/s (%s) or %.1f GFLOP/s (%s), whichever takes longer\n",
                       peaks.bytes * 1e-9, peaks.bytes_text.c_str(), peaks.flops * 1e-9, peaks.flops_text.c_str());
    int width = 20;
    for (const auto* rows : {&summary.rows, &summary.collectives})
        for (const ProfileRow& row : *rows) width = std::max(width, int(row.name.size()) + (row.nested ? 2 : 0));
    text += format("%-*s %8s %10s %8s %9s %10s %8s\n", width, "op, in a step", "calls", "ms", "share", "GB/s",
                   "GFLOP/s", "of peak");
    for (const ProfileRow& row : summary.rows) text += line_of(row, width);
    text += line_of({.name = "a step",
                     .ms = summary.step_ms,
                     .share = 1,
                     .cost = {},
                     .of_peak = summary.step_ms > 0 ? summary.peak_ms / summary.step_ms : 0},
                    width);
    if (!summary.collectives.empty()) {
        text += "beside it, on a stream of their own:\n";
        for (const ProfileRow& row : summary.collectives) text += line_of(row, width);
    }
    return text;
}

static const char* category_of(SliceKind kind) {
    switch (kind) {
        case SliceKind::phase:
            return "phase";
        case SliceKind::op:
            return "op";
        case SliceKind::kernel:
            return "kernel";
        case SliceKind::collective:
            return "collective";
        case SliceKind::copy:
            return "copy";
    }
    return "";
}

// A time in us with three digits. Whole ns, so that nested slices stay nested.
static std::string us_text(int64_t ns) { return format("%ld.%03ld", long(ns / 1000), long(ns % 1000)); }

static std::string metadata(const char* what, int rank, int track, const std::string& name) {
    const Json event = {{"ph", "M"},    {"name", what}, {"pid", rank},
                        {"tid", track}, {"ts", 0},      {"args", {{"name", name}}}};
    return json_text(event);
}

std::string chrome_trace(const std::vector<Slice>& slices, const TraceFacts& facts, const PeakRates& peaks) {
    const Json about = {{"device", facts.device},
                        {"rank", facts.rank},
                        {"first_step", facts.first_step},
                        {"peak_bytes_per_s", peaks.bytes},
                        {"peak_flops_per_s", peaks.flops}};
    std::string text = "{\"displayTimeUnit\": \"ms\", \"otherData\": " + json_text(about) + ", \"traceEvents\": [\n";
    text += metadata("process_name", facts.rank, 0, format("rank %d: %s", facts.rank, facts.device.c_str()));
    std::map<int, const char*> tracks = {{0, "steps"}};  // the others by their first slice
    for (const Slice& slice : slices)
        tracks.emplace(slice.track, slice.kind == SliceKind::copy ? slice.name : "collectives");
    for (const auto& [track, name] : tracks) text += ",\n" + metadata("thread_name", facts.rank, track, name);
    int64_t steps = 0;
    for (const Slice& slice : slices) {
        std::string name = name_of(slice);
        if (slice.kind == SliceKind::phase && slice.depth == 0)
            name += format(" %ld", long(facts.first_step + steps++));
        else if (slice.number >= 0)
            name += format(" %ld", long(slice.number));
        std::string args;
        const double ns = double(slice.end_ns - slice.begin_ns);
        if (slice.cost.bytes > 0)
            args += format("\"bytes\": %.0f, \"GB/s\": %.4g", slice.cost.bytes, ns > 0 ? slice.cost.bytes / ns : 0);
        if (slice.cost.flops > 0)
            args += format("%s\"flops\": %.0f, \"GFLOP/s\": %.4g", args.empty() ? "" : ", ", slice.cost.flops,
                           ns > 0 ? slice.cost.flops / ns : 0);
        text += format(
            ",\n{\"ph\": \"X\", \"name\": \"%s\", \"cat\": \"%s\", \"ts\": %s, \"dur\": %s, \"pid\": %d, "
            "\"tid\": %d, \"args\": {%s}}",
            name.c_str(), category_of(slice.kind), us_text(slice.begin_ns).c_str(),
            us_text(slice.end_ns - slice.begin_ns).c_str(), facts.rank, slice.track, args.c_str());
    }
    return text + "\n]}\n";
}

std::string profile_path(const std::string& file, int rank) {
    if (rank == 0) return file;
    const std::filesystem::path path(file);
    return (path.parent_path() / (path.stem().string() + format(".rank%d", rank) + path.extension().string())).string();
}
