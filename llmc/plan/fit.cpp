// `plan --fit`: see plan.h.
#include "llmc/plan/plan.h"
#include <algorithm>
#include <map>
#include "llmc/base/check.h"     // format
#include "llmc/base/flags.h"     // set_field
#include "llmc/base/integers.h"  // nearest_multiple
#include "llmc/model/linear.h"   // most_fp8_codes

namespace {

constexpr int64_t kUsualTokens = 524288;  // per step, as GPT-2's and GPT-3's small models

// What the search may choose.
struct Choice {
    const char *flag, *value;
    enum { always, of_ranks, of_adapters } when;
};
constexpr Choice kChoices[] = {{"zero-stage", "2", Choice::of_ranks},
                               {"moments", "bf16", Choice::always},
                               {"memory", "lean", Choice::always},
                               {"offload", "optimizer:auto", Choice::always},
                               {"dtype", "fp8", Choice::of_adapters}};

// What takes the time of a step, the two largest parts: "tensor cores 71 %, memory 22 %".
std::string bounds_text(const RunPlan& plan) {
    const StepTime& time = plan.times[1];
    if (time.host_bound()) return "the host's launches";
    std::map<std::string, double> seconds = {{"exchange", time.exposed_s}, {"gaps", time.gaps_s}};
    for (const StepTime::Slice& slice : time.slices)
        if (const TracedWork& work = plan.trace.work[slice.work]; work.stream == 0)
            seconds[slice.bound] += double(plan.trace.repeats(work)) * slice.seconds;
    std::vector<std::pair<double, std::string>> sorted;
    for (const auto& [bound, s] : seconds) sorted.push_back({s / time.step_s, bound});
    std::sort(sorted.rbegin(), sorted.rend());
    return format("%s %.0f %%, %s %.0f %%", sorted[0].second.c_str(), 100 * sorted[0].first, sorted[1].second.c_str(),
                  100 * sorted[1].first);
}

double gib(double bytes) { return bytes / (1 << 30); }

}  // namespace

std::vector<Fit> fit_run(const RunFlags& asked, const GptShape& shape, const Gpu& gpu, int world_size,
                         std::shared_ptr<const Calibration> calibration) {
    RunFlags flags = asked;
    if (!flags.batch_size) flags.batch_size = 0;
    if (flags.total_batch_size == 0 && flags.model.depth == 0)
        flags.total_batch_size = nearest_multiple(kUsualTokens, flags.seq_len(shape) * world_size);
    std::vector<Choice> open;
    const bool may_be_fp8 = shape.lora.is_on() && gpu.fp8_tflops > 0 && most_fp8_codes(shape) > 0 &&
                            flags.seq_len(shape) % kFp8Multiple == 0;
    for (const Choice& choice : kChoices)
        if (flags.source_of(choice.flag).empty() && (world_size > 1 || choice.when != Choice::of_ranks) &&
            (may_be_fp8 || choice.when != Choice::of_adapters))
            open.push_back(choice);

    std::vector<Fit> fits;
    for (size_t subset = 0; subset < size_t(1) << open.size(); subset++) {
        RunFlags with = flags;
        Fit fit;
        for (size_t i = 0; i < open.size(); i++) {
            if ((subset >> i & 1) == 0) continue;
            for (const Field& field : with.fields())
                if (std::string(field.name) == open[i].flag) set_field(field, open[i].value, "--fit");
            with.sources[open[i].flag] = "--fit";
            fit.choice += format(" --%s %s", open[i].flag, open[i].value);
        }
        // It implies --moments bf16 and sharded gradients.
        if (with.lean() && (with.source_of("moments") == "--fit" || with.source_of("zero-stage") == "--fit")) continue;
        if (with.lean() && !with.source_of("moments").empty() && with.moments != "bf16") continue;
        GptShape model = shape;
        model.lora.fp8_base = with.fp8();
        fit.plan = plan_run(with, model, gpu, world_size, calibration);
        if (!fit.plan.fits() && with.source_of("recompute").empty()) {  // what is missing at least
            with.recompute = "block", with.batch_size = 1;
            fit.plan = plan_run(with, model, gpu, world_size, calibration);
        }
        fits.push_back(std::move(fit));
    }
    std::stable_sort(fits.begin(), fits.end(), [](const Fit& a, const Fit& b) {
        if (a.plan.fits() != b.plan.fits()) return a.plan.fits();
        return a.plan.fits() ? a.plan.tokens_per_s(1) > b.plan.tokens_per_s(1)
                             : a.plan.memory.total_bytes() < b.plan.memory.total_bytes();
    });
    return fits;
}

std::string text_of(const std::vector<Fit>& fits) {
    const RunPlan& first = fits[0].plan;
    std::string text =
        format("%d x %s of %g GB, %.4g G parameters, %ld tokens per step in sequences of %ld; fastest first, %s\n",
               first.sharding.world_size, first.gpu.name, first.gpu.memory_gb, double(first.num_parameters) * 1e-9,
               first.config.step.num_tokens(), first.config.step.T,
               first.calibration ? "predicted by rates that --calibrate gives" : "predicted, nothing here is measured");
    text += format("%22s %8s %6s  %-34s %s\n", "tokens/s, low to high", "MFU", "GiB", "bound by", "flags");
    for (const auto& [choice, plan] : fits) {
        const StepConfig& step = plan.config.step;
        const std::string flags =
            format("--batch-size %ld --recompute %s%s", step.B, plan.config.flags.recompute.c_str(), choice.c_str());
        const double bytes = double(plan.memory.total_bytes());
        if (plan.fits())
            text += format("%22s %6.0f %% %6.1f  %-34s %s\n",
                           format("%.3g to %.3g", plan.tokens_per_s(0), plan.tokens_per_s(2)).c_str(),
                           100 * plan.mfu(1), gib(bytes), bounds_text(plan).c_str(), flags.c_str());
        else
            text += format("%22s %8s %6.1f  %-34s %s\n", "does not fit", "", gib(bytes),
                           format("memory, by %.1f GiB", gib(bytes - plan.gpu.memory_gb * 1e9)).c_str(), flags.c_str());
    }
    text.pop_back();
    return text;
}
