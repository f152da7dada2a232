// --profile: its arithmetic on given times, its output in runs of train_gpt, and that it changes nothing else.
#include "llmc/base/profile.h"
#include <cmath>
#include "test/program.h"  // TinyRuns
#include "test/testing.h"

namespace {

// Each moment is ten ns after the one before, and `beside` is where the next ones are.
class MadeUpProfile : public Profile {
public:
    bool beside = false;

protected:
    int track() const override { return beside ? 1 : 0; }
    int64_t mark(const Slice&, bool) noexcept override { return moments_++; }
    std::vector<int64_t> times() override {
        std::vector<int64_t> times;
        for (int64_t i = 0; i < moments_; i++) times.push_back(10 * i);
        return times;
    }

private:
    int64_t moments_ = 0;
};

struct FakeDevice {
    OpObserver* observer;
};

void multiply(const FakeDevice& device) {
    const OpScope op(device, "multiply", {.bytes = 60, .flops = 1000, .rows = 2, .in = 3, .out = 4});
    const KernelScope kernel(device, "first"), inside(device, "second");
}

// Moments: step 0 to 13, forward 1 to 12, multiply 2 to 7 with two kernels, clear 8 to 9, all_gather 10 to 11.
void make_step(MadeUpProfile& profile) {
    const FakeDevice device{&profile};
    const PhaseScope step(device, "step"), forward(device, "forward");
    multiply(device);
    { const OpScope op(device, "clear", {.bytes = 30}); }
    profile.beside = true;
    { const Scope collective(&profile, SliceKind::collective, "all_gather"); }
    profile.beside = false;
}

const ProfileRow& row(const std::vector<ProfileRow>& rows, const std::string& name) {
    for (const ProfileRow& row : rows)
        if (row.name == name) return row;
    FAIL("no row " << name);
    return rows[0];
}

// The output of dev/interop/check_trace.py for a trace that it accepts.
std::string counts_in(const std::string& path) {
    const Finished checked = run("python3 dev/interop/check_trace.py '" + path + "'");
    INFO(checked.err);
    REQUIRE(checked.exit_code == 0);
    return checked.out;
}
bool has_line(const std::string& text, const std::string& line) {
    return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

// Those of `lines` that are not in `text`.
std::string lines_missing(const std::string& text, const std::vector<std::string>& lines) {
    std::string missing;
    for (const std::string& line : lines)
        if (!has_line(text, line)) missing += line + "; ";
    return missing;
}

bool same_steps(const std::string& a, const std::string& b) {
    const auto first = steps_in(a), second = steps_in(b);
    if (first.size() != second.size()) return false;
    for (size_t i = 0; i < first.size(); i++)
        if (first[i].loss != second[i].loss || first[i].norm != second[i].norm) return false;
    return !first.empty();
}

}  // namespace

TEST_CASE("slices have their times, and rows their parts of a step", "[profile]") {
    MadeUpProfile profile;
    for (int i = 0; i < 2; i++) make_step(profile);
    profile.finish();
    const std::vector<Slice>& slices = profile.slices();
    REQUIRE(slices.size() == 14);
    const Slice& op = slices[2];
    CHECK(std::string(op.name) == "multiply");
    CHECK(op.depth == 2);
    CHECK(op.begin_ns == 20);
    CHECK(op.end_ns == 70);
    CHECK(slices[6].track == 1);
    CHECK(slices[6].depth == 0);

    // A step takes 130 ns, of which multiply has 50 and clear 10.
    const PeakRates peaks{2e9, 40e9, "", ""};
    const ProfileSummary summary = summary_of(slices, peaks);
    CHECK(summary.steps == 2);
    CHECK(std::fabs(summary.step_ms - 130e-6) < 1e-12);
    const ProfileRow& product = row(summary.rows, "multiply 2x3 -> 4");
    CHECK(product.calls == 1);
    CHECK(std::fabs(product.ms - 50e-6) < 1e-12);
    CHECK(std::fabs(product.share - 5. / 13) < 1e-12);
    CHECK(product.cost.flops == 1000);
    // 60 bytes take 30 ns at the peak, 1000 FLOPs 25.
    CHECK(std::fabs(product.of_peak - 30. / 50) < 1e-12);
    CHECK(row(summary.rows, "first").nested);
    CHECK(std::fabs(row(summary.rows, "first").share - 3. / 13) < 1e-12);
    CHECK(std::fabs(row(summary.rows, "everything else").ms - 70e-6) < 1e-12);
    CHECK(std::fabs(row(summary.phases, "forward").share - 11. / 13) < 1e-12);
    CHECK(row(summary.collectives, "all_gather").calls == 1);
    double shares = 0;
    for (const ProfileRow& one : summary.rows) shares += one.nested ? 0 : one.share;
    CHECK(std::fabs(shares - 1) < 1e-12);
}

TEST_CASE("without an observer a scope is silent", "[profile]") {
    const FakeDevice device{nullptr};
    multiply(device);
}

TEST_CASE("other ranks' traces are beside the first one's", "[profile]") {
    CHECK(profile_path("a/trace.json", 0) == "a/trace.json");
    CHECK(profile_path("a/trace.json", 3) == "a/trace.rank3.json");
    CHECK(profile_path("a.b/trace", 1) == "a.b/trace.rank1");
}

TEST_CASE("a profiled run has every op of its steps, and the losses of any other", "[profile]") {
    const TinyRuns runs;
    const std::string trace = runs.path("new/trace.json");
    must_succeed(runs.train("plain", {{"steps", "8"}}));
    const Finished profiled = runs.train("profiled", {{"steps", "8"}, {"profile", trace}});
    must_succeed(profiled);
    CHECK(same_steps(runs.path("plain"), runs.path("profiled")));
    CHECK(difference(step_folder(runs.path("plain"), 8), step_folder(runs.path("profiled"), 8)) == "");

    // Three steps, the third to the fifth, of three micro-batches through two blocks.
    const std::string counts = counts_in(trace);
    INFO(counts);
    const std::string missing = lines_missing(counts, {"phase step 3",
                                                       "phase micro_batch 9",
                                                       "phase forward 9",
                                                       "phase head 9",
                                                       "phase backward 9",
                                                       "phase norm 3",
                                                       "phase update 3",
                                                       "phase block 36",
                                                       "op embedding_forward 9",
                                                       "op embedding_backward 9",
                                                       "op layernorm_forward 9",
                                                       "op residual_layernorm_forward 36",
                                                       "op layernorm_backward 45",
                                                       "op attention_forward 18",
                                                       "op attention_backward 18",
                                                       "op matmul_gelu_forward 18",
                                                       "op matmul_gelu_backward 18",
                                                       "op gelu_forward 18",
                                                       "op gelu_backward 18",
                                                       "op cross_entropy_forward_backward 9",
                                                       "op add_mean_loss 9",
                                                       "op decide_step 3",
                                                       "op add_squares 6"});
    CHECK(missing == "");
    CHECK(read_file(trace).find("\"name\": \"step 3\"") != std::string::npos);
    CHECK(read_file(trace).find("\"name\": \"step 6\"") == std::string::npos);
    for (const char* text : {"profile: 3 steps of ", "everything else", "attention_backward", "100 % of peak: "})
        CHECK(profiled.out.find(text) != std::string::npos);
}

TEST_CASE("a run of few steps profiles those that it has, a resumed one only if told to", "[profile]") {
    const TinyRuns runs;
    const std::string trace = runs.path("trace.json");
    must_succeed(runs.train("a", {{"steps", "1"}, {"warmup-steps", "1"}, {"profile", trace}}));
    CHECK(has_line(counts_in(trace), "phase step 1"));
    std::filesystem::remove(trace);
    must_succeed(runs.resume("a", {{"steps", "3"}}));
    CHECK(!std::filesystem::exists(trace));
    // No step is left.
    const Finished nothing = runs.resume("a", {{"steps", "3"}, {"profile", trace}});
    must_succeed(nothing);
    CHECK(nothing.err.find("no step to profile") != std::string::npos);
    CHECK(!std::filesystem::exists(trace));
}

TEST_CASE("every rank has its trace, with what it exchanged", "[profile]") {
    const TinyRuns runs;
    const std::string trace = runs.path("trace.json");
    must_succeed(runs.train("a", {{"steps", "4"},
                                  {"warmup-steps", "1"},
                                  {"total-batch-size", "64"},
                                  {"virtual-ranks", "2"},
                                  {"profile-steps", "2"},
                                  {"profile", trace}}));
    for (const std::string& path : {trace, runs.path("trace.rank1.json")}) {
        const std::string counts = counts_in(path);
        INFO(counts);
        CHECK(has_line(counts, "phase step 2"));
        CHECK(has_line(counts, "collective all_reduce 2"));
        for (const char* name : {"collective reduce_scatter ", "collective all_gather ", "op sum_ranks "})
            CHECK(counts.find(name) != std::string::npos);
    }
}

TEST_CASE("a trace that cannot be written ends a run before it begins, and not later", "[profile]") {
    const TinyRuns runs;
    put_file(runs.path("file"), "");
    for (const std::string& path : {runs.path("data"), runs.path("file") + "/trace.json", std::string("/proc/trace")}) {
        const Finished refused = runs.train("a", {{"steps", "1"}, {"warmup-steps", "1"}, {"profile", path}});
        INFO(path << ": " << refused.err);
        CHECK(refused.exit_code == 2);
        CHECK(refused.err.find(path.substr(0, path.rfind('/'))) != std::string::npos);
        CHECK(!std::filesystem::exists(runs.path("a")));
    }
    const Finished no_steps = run(program("train_gpt") + " eval --profile t.json --resume " + runs.path("a"));
    CHECK(no_steps.exit_code == 2);

    // Files may be 256 KiB long: the checkpoint's are, and the trace of twenty steps is not.
    const std::string trace = runs.path("trace.json");
    const FlagMap flags =
        runs.flags("b", {{"steps", "20"}, {"channels", "16"}, {"profile-steps", "20"}, {"profile", trace}});
    const Finished full = run("trap '' XFSZ; ulimit -f 512; " + command_of(flags));
    must_succeed(full);
    CHECK(full.err.find("warning: --profile: ") != std::string::npos);
    CHECK(full.err.find(trace) != std::string::npos);
    CHECK(!std::filesystem::exists(trace));
    CHECK(!std::filesystem::exists(trace + ".tmp"));
    CHECK(std::filesystem::exists(step_folder(runs.path("b"), 20)));
}
