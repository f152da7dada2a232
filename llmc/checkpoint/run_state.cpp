// See run_state.h.
#include "llmc/checkpoint/run_state.h"
#include <cmath>
#include <vector>
#include "llmc/base/check.h"  // require
#include "llmc/base/file.h"   // read_file
#include "llmc/run/shares.h"  // numbers_in

void RunState::check(const std::string& path) const {
    // Far beyond any run, and far enough from 2^63 that sums cannot overflow.
    constexpr int64_t kMostSteps = int64_t(1) << 40, kMostTokens = int64_t(1) << 60;
    const auto within = [&](const char* name, int64_t value, int64_t least, int64_t most) {
        require(value >= least && value <= most,
                "%s: %s is %ld: expected %ld to %ld; use another checkpoint, and report it if a run of Anvil wrote "
                "this one",
                path.c_str(), name, value, least, most);
    };
    within("step", step, 0, kMostSteps);
    within("updates", updates, 0, step);
    within("skipped_in_a_row", skipped_in_a_row, 0, step);
    within("tokens", tokens, 0, kMostTokens);
    within("best_step", best.step, -1, step);
    within("worse_since_best", best.worse, 0, kMostSteps);
    within("validated_step", best.counted_step, 0, step);
    within("average_since", average_since, -1, step);
    const std::vector<int64_t> of_islands = numbers_in(island_updates);
    require(island_updates.empty() || !of_islands.empty(),
            "%s: island_updates is '%s': expected numbers; use another checkpoint", path.c_str(),
            island_updates.c_str());
    for (const int64_t island : of_islands) within("island_updates", island, 0, step);
    require(std::isfinite(training_s) && training_s >= 0,
            "%s: training_s is %g: expected a time; use another checkpoint", path.c_str(), training_s);
    require(std::isfinite(learning_rate) && learning_rate >= 0,
            "%s: learning_rate is %g: expected a rate; use another checkpoint", path.c_str(), learning_rate);
}

int64_t RunState::updates_of(int island) const {
    const std::vector<int64_t> all = numbers_in(island_updates);
    return all.empty() ? updates : all[size_t(island) % all.size()];
}

GptShape checkpoint_shape(const std::string& folder) {
    const std::string path = folder + "/config.json";
    return checkpoint_shape(read_file(path), path);
}

GptShape checkpoint_shape(const std::string& config_json, const std::string& path) {
    return read_model_config(config_json, path).shape;
}

RunState run_state_of(const std::string& text, const std::string& path) {
    RunState run;
    from_older_json(run.fields(), text, path);
    run.check(path);
    return run;
}
