/*
ZeRO-1 end to end: a step has the same bits on any number of ranks, however micro-batches are assigned to them; and a
checkpoint resumes on any number of ranks.
*/
#include "llmc/base/json.h"       // Json
#include "llmc/comm/local.h"      // LocalComm
#include "llmc/optim/recipe.h"    // find_recipe
#include "llmc/optim/sharding.h"  // plan_sharding
#include "llmc/train/step.h"      // Stepper
#include "test/train/rank_runs.h"

namespace fs = std::filesystem;

// Under the sanitizers the fewest and the most: the numbers between run no other code.
static const std::vector<std::string> kSeveral =
    kSanitized ? std::vector<std::string>{"2", "8"} : std::vector<std::string>{"2", "4", "8"};

TEST_CASE("loss, norm and every parameter have the same bits at any number of ranks", "[zero]") {
    const TinyRuns runs;
    for (const std::string optimizer : {"adamw", "muon"}) {
        const FlagMap flags = with(kEight, {{"optimizer", optimizer}});
        must_succeed(runs.train(optimizer + "1", flags));
        const std::string one = step_folder(runs.path(optimizer + "1"), 20);
        const auto want = losses_in(runs.path(optimizer + "1"));
        REQUIRE(want.size() == 20);
        int clipped = 0;
        for (const auto& [loss, norm] : want) clipped += norm > 1.5;
        CHECK((clipped > 0 && clipped < 20));
        for (const std::string& ranks : kSeveral) {
            INFO(optimizer << " on " << ranks << " ranks");
            must_succeed(runs.train(optimizer + ranks, with(flags, {{"virtual-ranks", ranks}})));
            CHECK(losses_in(runs.path(optimizer + ranks)) == want);
            CHECK(tensor_difference(step_folder(runs.path(optimizer + ranks), 20), one) == "");
            CHECK(records_in(runs.path(optimizer + ranks), "val")[0].substr(0, 60) ==
                  records_in(runs.path(optimizer + "1"), "val")[0].substr(0, 60));
        }
    }
}

TEST_CASE("recipes have the same bits at any number of ranks", "[zero]") {
    const TinyRuns runs;
    for (const std::string recipe : {"nanochat", "stage-a"}) {
        // So small a model does not bear the embedding's own rate.
        const FlagMap flags = with(kEight, {{"recipe", recipe}, {"steps", "12"}, {"embedding-learning-rate", "0.03"}});
        must_succeed(runs.train(recipe + "1", flags));
        const std::string one = step_folder(runs.path(recipe + "1"), 12);
        const auto want = losses_in(runs.path(recipe + "1"));
        REQUIRE(want.size() == 12);
        CHECK(want.back().first < want.front().first);
        for (const std::string ranks : {"2", "4"}) {
            INFO(recipe << " on " << ranks << " ranks");
            must_succeed(runs.train(recipe + ranks, with(flags, {{"virtual-ranks", ranks}})));
            CHECK(losses_in(runs.path(recipe + ranks)) == want);
            CHECK(tensor_difference(step_folder(runs.path(recipe + ranks), 12), one) == "");
        }
    }
}

TEST_CASE("averages of the last weights are what is validated and exported, and runs go on from the weights themselves",
          "[zero][slow]") {
    const TinyRuns runs;
    for (const std::string dtype : {"fp32", "bf16"}) {
        const FlagMap plain = with(kEight, {{"optimizer", "muon"},
                                            {"muon-norms", "hyperball"},
                                            {"dtype", dtype},
                                            {"steps", "12"},
                                            {"val-every", "4"}});
        const FlagMap flags = with(
            plain, {{"checkpoint-every", "1"}, {"keep", "20"}, {"tail-average", "0.5"}, {"tail-average-memory", "1"}});
        must_succeed(runs.train("plain" + dtype, plain));
        must_succeed(runs.train("one" + dtype, flags));
        const std::string one = runs.path("one" + dtype);
        CHECK(losses_in(one) == losses_in(runs.path("plain" + dtype)));
        const auto vals = records_in(one, "val"), plain_vals = records_in(runs.path("plain" + dtype), "val");
        REQUIRE((vals.size() == 3 && plain_vals.size() == 3));
        for (const size_t i : {0, 1, 2}) CHECK((vals[i].substr(0, 60) == plain_vals[i].substr(0, 60)) == (i == 0));
        // The weights of steps 7 to 12, of each of which half a unit of difference, product and sum may be lost.
        const auto last = tensors_in(step_folder(one, 12));
        const auto plain_last = tensors_in(step_folder(runs.path("plain" + dtype), 12));
        const std::string name = "wpe.weight", model = "transformer." + name, raw = "master." + name;
        CHECK((last.at(raw) == plain_last.at(dtype == "fp32" ? model : raw)));
        std::vector<double> sum(last.at(raw).size());
        for (int step = 7; step <= 12; step++) {
            const Floats weights = tensors_in(step_folder(one, step)).at(raw);
            for (size_t i = 0; i < sum.size(); i++) sum[i] += double(weights[i]) / 6;
        }
        const Floats mean(sum.begin(), sum.end());
        const Floats& average = last.at(dtype == "fp32" ? model : "average." + name);
        check_close("the average", average, mean, 6 * 1.5 * kEpsF32);
        if (dtype == "bf16") {  // whose bits are in the first half of the floats
            std::vector<bf16> halves(average.size());
            std::memcpy(halves.data(), last.at(model).data(), halves.size() * sizeof(bf16));
            for (size_t i = 0; i < halves.size(); i++)
                if (to_float(halves[i]) != to_float(to_bf16(average[i]))) FAIL("the model is not its average at " << i);
        }

        for (const std::string ranks : {"2", "4"}) {
            INFO(dtype << " on " << ranks << " ranks");
            must_succeed(runs.train(dtype + ranks, with(flags, {{"virtual-ranks", ranks}})));
            CHECK(tensor_difference(step_folder(runs.path(dtype + ranks), 12), step_folder(one, 12)) == "");
            CHECK(records_in(runs.path(dtype + ranks), "val")[2].substr(0, 60) == vals[2].substr(0, 60));
        }
        for (const int from : {6, 7, 9}) {
            INFO(dtype << " from step " << from);
            const std::string out = dtype + "from" + std::to_string(from);
            must_succeed(run(
                command_of({{"resume", step_folder(one, from)}, {"out-dir", runs.path(out)}, {"virtual-ranks", "2"}})));
            CHECK(tensor_difference(step_folder(runs.path(out), 12), step_folder(one, 12)) == "");
        }
    }
}

// Grouped heads, a layer more without value embeddings than with them, lambdas of one element, gates of one row.
static FlagMap whole_model(const std::string& architecture) {
    return with(kEight, {{"architecture", architecture},
                         {"recipe", architecture},
                         {"num-layers", "5"},
                         {"num-kv-heads", "1"},
                         {"short-window", "5"},
                         {"steps", "8"},
                         {"checkpoint-every", "4"}});
}

TEST_CASE("models and recipes have the same bits at any number of ranks, before a checkpoint and after it", "[zero]") {
    const TinyRuns runs;
    for (const std::string architecture : {"nanochat", "stage-a"}) {
        // Of one the moments are in bf16: how they are rounded follows from no rank, thread or process.
        const FlagMap flags =
            with(whole_model(architecture), {{"moments", architecture == "stage-a" ? "bf16" : "fp32"}});
        must_succeed(runs.train(architecture + "1", flags));
        const std::string one = runs.path(architecture + "1");
        const auto want = losses_in(one);
        REQUIRE(want.size() == 8);
        for (const std::string& ranks : kSeveral) {
            INFO(architecture << " on " << ranks << " ranks");
            must_succeed(runs.train(architecture + ranks, with(flags, {{"virtual-ranks", ranks}})));
            CHECK(losses_in(runs.path(architecture + ranks)) == want);
            for (const int64_t step : {4, 8})
                CHECK(tensor_difference(step_folder(runs.path(architecture + ranks), step), step_folder(one, step)) ==
                      "");
        }
        const std::vector<std::pair<std::string, std::string>> resumed = {{"8", "1"}, {"1", "8"}, {"2", "4"}};
        for (const auto& [from, to] : resumed) {
            INFO(architecture << " saved at " << from << " ranks, loaded at " << to);
            const std::string out = architecture + "_" + from + "_to_" + to;
            must_succeed(run(command_of({{"resume", step_folder(runs.path(architecture + from), 4)},
                                         {"out-dir", runs.path(out)},
                                         {"virtual-ranks", to}})));
            CHECK(tensor_difference(step_folder(runs.path(out), 8), step_folder(one, 8)) == "");
        }
    }
}

TEST_CASE("however gradients get to their owners, runs have the same bits and go on with each other's checkpoints",
          "[zero]") {
    const TinyRuns runs;
    const FlagMap flags = with(kEight, {{"optimizer", "muon"}, {"steps", "6"}, {"checkpoint-every", "3"}});
    must_succeed(runs.train("one", flags));
    must_succeed(runs.train("four", with(flags, {{"virtual-ranks", "4"}, {"grad-sum", "tree-ordered"}})));
    CHECK(losses_in(runs.path("four")) == losses_in(runs.path("one")));
    const std::string end = step_folder(runs.path("one"), 6);
    CHECK(tensor_difference(step_folder(runs.path("four"), 6), end) == "");
    must_succeed(run(command_of({{"resume", step_folder(runs.path("four"), 3)},
                                 {"out-dir", runs.path("two")},
                                 {"virtual-ranks", "2"},
                                 {"grad-sum", "tree"}})));
    CHECK(tensor_difference(step_folder(runs.path("two"), 6), end) == "");

    // In bf16 the sum is rounded by a reduce-scatter alone, and on the CPU that is never the faster of the two.
    const FlagMap halves = {{"total-batch-size", "192"}, {"warmup-steps", "1"}, {"steps", "3"}, {"virtual-ranks", "3"}};
    for (const std::string how : {"bf16", "bf16-ordered", "bf16-scatter"})
        must_succeed(runs.train(how, with(halves, {{"grad-sum", how}})));
    CHECK(losses_in(runs.path("bf16")) == losses_in(runs.path("bf16-ordered")));
    CHECK(losses_in(runs.path("bf16")) != losses_in(runs.path("bf16-scatter")));
    const Finished wrong = runs.train("wrong", {{"grad-sum", "ring"}});
    CHECK(wrong.exit_code == 2);
    CHECK(contains(wrong.err, "--grad-sum ring"));
    CHECK(contains(wrong.err, "tree-ordered"));
}

TEST_CASE("two levels have the bits of one, and their checkpoints go on at any number of ranks", "[zero][slow]") {
    const TinyRuns runs;
    for (const std::string optimizer : {"adamw", "muon"}) {
        if (kSanitized && optimizer == "adamw") continue;  // the other one does both
        const FlagMap flags = with(kEight, {{"optimizer", optimizer}, {"steps", "6"}, {"checkpoint-every", "3"}});
        const auto name = [&](const std::string& ranks, const std::string& shards) {
            return optimizer + ranks + "by" + shards;
        };
        must_succeed(runs.train(name("1", "0"), flags));
        const std::string one = runs.path(name("1", "0"));
        const std::vector<std::pair<std::string, std::string>> splits = {{"4", "2"}, {"8", "2"}, {"2", "1"}};
        for (const auto& [ranks, shards] : splits) {
            INFO(optimizer << ", " << ranks << " ranks in groups of " << shards);
            must_succeed(
                runs.train(name(ranks, shards), with(flags, {{"virtual-ranks", ranks}, {"shard-ranks", shards}})));
            CHECK(losses_in(runs.path(name(ranks, shards))) == losses_in(one));
            for (const int64_t step : {3, 6})
                CHECK(tensor_difference(step_folder(runs.path(name(ranks, shards)), step), step_folder(one, step)) ==
                      "");
        }
        const auto go_on = [&](const std::string& from, const std::string& ranks, const std::string& shards) {
            const std::string out = from + "_to_" + ranks + "by" + shards;
            INFO(out);
            must_succeed(run(command_of({{"resume", step_folder(runs.path(from), 3)},
                                         {"out-dir", runs.path(out)},
                                         {"virtual-ranks", ranks},
                                         {"shard-ranks", shards}})));
            CHECK(tensor_difference(step_folder(runs.path(out), 6), step_folder(one, 6)) == "");
        };
        go_on(name("4", "2"), "1", "0");
        go_on(name("8", "2"), "4", "4");
        go_on(name("1", "0"), "4", "1");
        // An odd number has the bits of the same number in one level.
        const FlagMap six = {
            {"optimizer", optimizer}, {"total-batch-size", "192"}, {"steps", "5"}, {"virtual-ranks", "6"}};
        must_succeed(runs.train(optimizer + "6", six));
        must_succeed(runs.train(optimizer + "6by3", with(six, {{"shard-ranks", "3"}})));
        CHECK(losses_in(runs.path(optimizer + "6by3")) == losses_in(runs.path(optimizer + "6")));
        CHECK(tensor_difference(step_folder(runs.path(optimizer + "6by3"), 5),
                                step_folder(runs.path(optimizer + "6"), 5)) == "");
    }
    const Finished odd = runs.train("odd", {{"virtual-ranks", "4"}, {"shard-ranks", "3"}});
    CHECK(odd.exit_code == 2);
    CHECK(contains(odd.err, "--shard-ranks 3 does not divide the 4 ranks"));
    const Finished both = runs.train("both", {{"virtual-ranks", "4"}, {"shard-ranks", "2"}, {"grad-sum", "ordered"}});
    CHECK(both.exit_code == 2);
    CHECK(contains(both.err, "--grad-sum ordered does not shard in two levels"));
}

// Six layers, which under Muon lie in several buckets: of some the gradients have the memory of others.
TEST_CASE("with sharded gradients runs have the bits that they have with whole ones, where ranks are a power of two",
          "[zero][slow]") {
    const TinyRuns runs;
    for (const std::string optimizer : {"adamw", "muon"}) {
        if (kSanitized && optimizer == "adamw") continue;  // the other one does both
        const FlagMap flags = with(kEight, {{"optimizer", optimizer},
                                            {"num-layers", "6"},
                                            {"steps", "6"},
                                            {"dropout", "0.1"},
                                            {"moments", optimizer == "adamw" ? "bf16" : "fp32"}});
        const FlagMap sharded = with(flags, {{"zero-stage", "2"}});
        const auto name = [&](const std::string& how) { return optimizer + how; };
        must_succeed(runs.train(name("1"), flags));
        const std::string one = runs.path(name("1"));
        const auto same = [&](const std::string& how, const FlagMap& more) {
            INFO(name(how));
            must_succeed(runs.train(name(how), with(sharded, more)));
            CHECK(losses_in(runs.path(name(how))) == losses_in(one));
            CHECK(tensor_difference(step_folder(runs.path(name(how)), 6), step_folder(one, 6)) == "");
        };
        same("alone", {});  // nothing is sharded
        same("2", {{"virtual-ranks", "2"}});
        same("8", {{"virtual-ranks", "8"}});
        same("4 all-to-all", {{"virtual-ranks", "4"}, {"grad-sum", "tree-ordered"}});
        same("4 by 2", {{"virtual-ranks", "4"}, {"shard-ranks", "2"}});
        // Micro-batches need not be a power of two: three of each of two ranks are a tree of six.
        const FlagMap six = with(flags, {{"total-batch-size", "192"}});
        must_succeed(runs.train(name("of six"), six));
        must_succeed(runs.train(name("3 each"), with(six, {{"virtual-ranks", "2"}, {"zero-stage", "2"}})));
        CHECK(losses_in(runs.path(name("3 each"))) == losses_in(runs.path(name("of six"))));
        CHECK(tensor_difference(step_folder(runs.path(name("3 each")), 6), step_folder(runs.path(name("of six")), 6)) ==
              "");
        // An odd number of ranks, and sums in bf16: of one micro-batch a rank the bits of ZeRO-1, in any order of sums.
        const FlagMap three = with(flags, {{"total-batch-size", "96"}, {"grad-sum", "fp32"}, {"virtual-ranks", "3"}});
        for (const std::string type : {"fp32", "bf16"}) {
            const std::string whole = name("3 whole " + type), parts = name("3 " + type);
            const FlagMap in_type = with(three, {{"grad-sum", type == "bf16" ? "bf16-scatter" : "fp32"}});
            must_succeed(runs.train(whole, in_type));
            must_succeed(runs.train(parts, with(in_type, {{"zero-stage", "2"}})));
            CHECK(losses_in(runs.path(parts)) == losses_in(runs.path(whole)));
            CHECK(tensor_difference(step_folder(runs.path(parts), 6), step_folder(runs.path(whole), 6)) == "");
        }
        // Each rank's gradient, and the sum, rounded to eight digits.
        const double norm = losses_in(runs.path(name("3 fp32")))[0].second,
                     rounded = losses_in(runs.path(name("3 bf16")))[0].second;
        CHECK(rounded != norm);
        CHECK(std::fabs(rounded - norm) <= std::exp2(-8) * norm);
        // Sums of several micro-batches in place are those of ZeRO-1 up to rounding, and repeat to the bit.
        const FlagMap several = with(flags, {{"total-batch-size", "192"},
                                             {"grad-sum", "fp32"},
                                             {"virtual-ranks", "3"},
                                             {"dropout", "0"},
                                             {"zero-stage", "2"}});
        must_succeed(runs.train(name("2 each"), several));
        must_succeed(runs.train(name("again"), several));
        must_succeed(runs.train(name("2 whole"), with(several, {{"zero-stage", "1"}})));
        const auto got = losses_in(runs.path(name("2 each"))), whole = losses_in(runs.path(name("2 whole")));
        CHECK(got == losses_in(runs.path(name("again"))));
        REQUIRE(got.size() == whole.size());
        CHECK(got[0].first == whole[0].first);
        for (size_t i = 0; i < got.size(); i++) {
            CHECK(std::fabs(got[i].first - whole[i].first) <= 1e-5 * whole[i].first);
            CHECK(std::fabs(got[i].second - whole[i].second) <= 1e-4 * whole[i].second);
        }
    }
    const Finished noisy = runs.train("noisy", {{"virtual-ranks", "2"}, {"zero-stage", "2"}, {"noise-scale", "true"}});
    CHECK(noisy.exit_code == 2);
    CHECK(contains(noisy.err, "--noise-scale needs each rank's own gradient of a step"));
    CHECK(runs.train("third", {{"zero-stage", "3"}}).exit_code == 2);
}

TEST_CASE("three ranks agree with one in all but the last bits", "[zero]") {
    const TinyRuns runs;
    for (const std::string optimizer : {"adamw", "muon"}) {
        const FlagMap flags = {{"optimizer", optimizer}, {"total-batch-size", "192"}, {"steps", "10"}};
        must_succeed(runs.train(optimizer, flags));
        must_succeed(runs.train(optimizer + "3", with(flags, {{"virtual-ranks", "3"}})));
        const auto want = losses_in(runs.path(optimizer)), got = losses_in(runs.path(optimizer + "3"));
        REQUIRE(got.size() == want.size());
        // The order of two additions of gradients; ten steps of an optimizer that divides by small numbers.
        for (size_t i = 0; i < got.size(); i++) CHECK(std::fabs(got[i].first - want[i].first) <= 1e-5 * want[i].first);
    }
}

TEST_CASE("saved at any number of ranks, loaded at any other", "[zero][slow]") {
    const TinyRuns runs;
    for (const std::string optimizer : {"adamw", "muon"}) {
        const std::string straight = "straight_" + optimizer;
        must_succeed(runs.train(
            straight,
            with(kEight,
                 {{"optimizer", optimizer}, {"steps", "8"}, {"checkpoint-every", "4"}, {"virtual-ranks", "2"}})));
        const std::string middle = step_folder(runs.path(straight), 4), end = step_folder(runs.path(straight), 8);
        for (const std::string from : {"1", "2", "3", "4", "8"}) {
            if (kSanitized && (from == "2" || from == "4")) continue;
            // Loaded by `from` ranks and written by them again, with nothing done in between.
            const std::string saved = optimizer + "_by" + from;
            must_succeed(run(command_of({{"resume", middle},
                                         {"out-dir", runs.path(saved)},
                                         {"virtual-ranks", from},
                                         {"total-batch-size", "0"},
                                         {"steps", "4"}})));
            const std::string again = step_folder(runs.path(saved), 4);
            REQUIRE(fs::exists(again + "/" + shard_file(kOptimizerStem, 0, std::stoi(from))));
            CHECK(tensor_difference(again, middle) == "");
            for (const std::string to : {"1", "2", "4", "8"}) {  // three cannot share eight micro-batches
                if (from != "3" && to != "2" && from != to) continue;
                INFO(optimizer << " saved at " << from << " ranks, loaded at " << to);
                const std::string out = saved + "_to" + to;
                must_succeed(run(command_of({{"resume", again},
                                             {"out-dir", runs.path(out)},
                                             {"virtual-ranks", to},
                                             {"total-batch-size", "256"},
                                             {"steps", "8"}})));
                CHECK(tensor_difference(step_folder(runs.path(out), 8), end) == "");
                CHECK(state_in(step_folder(runs.path(out), 8)).data.position == state_in(end).data.position);
            }
        }
        // Moments in another type: to bf16 they are rounded to nearest, back from there they are not.
        const auto in_type = [&](const std::string& type, const std::string& from) {
            must_succeed(run(command_of({{"resume", from},
                                         {"out-dir", runs.path(optimizer + type)},
                                         {"virtual-ranks", "3"},
                                         {"total-batch-size", "0"},
                                         {"steps", "4"},
                                         {"moments", type}})));
            return step_folder(runs.path(optimizer + type), 4);
        };
        const std::string in_bf16 = in_type("bf16", middle), back = in_type("fp32", in_bf16);
        CHECK(tensor_difference(back, in_bf16) == "");
        int rounded = 0;
        const auto got = tensors_in(in_bf16);
        for (const auto& [name, values] : tensors_in(middle)) {
            INFO(name);
            // What is smaller than the parameter, NorMuon's second moment, keeps its type.
            const bool is_rounded = name.starts_with("m.") ||
                                    (name.starts_with("v.") && values.size() == got.at("m." + name.substr(2)).size());
            std::vector<float> want = values;
            if (is_rounded)
                for (float& value : want) value = to_float(to_bf16(value));
            CHECK(got.at(name) == want);
            rounded += want != values;
        }
        CHECK(rounded > 0);
    }
}

// Counted, not timed: each rank adds up what it reads.
TEST_CASE("ranks that resume read what they own, and verify a share each", "[zero][plain]") {
    const TinyRuns runs;
    struct Case {
        int ranks, groups;
        FlagMap flags;
    };
    const FlagMap llama = {{"architecture", "llama"}, {"recipe", "gpt2"}};
    for (const Case& c :
         {Case{1, 1, {}}, Case{4, 1, {}}, Case{3, 1, llama}, Case{4, 2, with(llama, {{"shard-ranks", "2"}})},
          Case{4, 1, with(llama, {{"dtype", "bf16"}, {"device", "cpu"}})},
          Case{4, 1, with(llama, {{"optimizer", "muon"}, {"zero-stage", "2"}})}}) {
        std::string name = std::to_string(c.ranks);
        for (const auto& [flag, value] : c.flags) name += " " + flag + " " + value;
        INFO(name);
        const FlagMap flags = with(c.flags, {{"virtual-ranks", std::to_string(c.ranks)},
                                             {"total-batch-size", "384"},
                                             {"warmup-steps", "1"},
                                             {"optimizer", c.flags.contains("optimizer") ? "muon" : "adamw"}});
        must_succeed(runs.train(name, with(flags, {{"steps", "2"}})));
        const std::string folder = step_folder(runs.path(name), 2);
        uint64_t files = 0, largest_file = 0, model = 0, state = 0, most_state = 0;
        for (const auto& entry : fs::directory_iterator(folder)) {
            const std::string file = entry.path().filename();
            if (file == "manifest.json") continue;
            files += entry.file_size();
            largest_file = std::max(largest_file, uint64_t(entry.file_size()));
            if (!file.ends_with(".safetensors")) continue;
            uint64_t bytes = 0;
            const SafetensorsReader reader(entry.path());
            for (const Tensor& tensor : reader.tensors()) bytes += tensor.size_bytes();
            if (file.starts_with(kOptimizerStem)) state += bytes, most_state = std::max(most_state, bytes);
            if (file == kModelFile) model = bytes;
        }
        must_succeed(runs.resume(name, {{"steps", "3"}, {"virtual-ranks", std::to_string(c.ranks)}}));
        const std::vector<std::string> resumed = records_in(runs.path(name), "resume");
        REQUIRE(resumed.size() == 1);
        const Json read = parse_json(resumed[0])["read"];
        const uint64_t verified = read["verified"], most_verified = read["most_verified"], loaded = read["loaded"],
                       most_loaded = read["most_loaded"];
        // Every byte once, a share each up to a part: a header, or the embedding's 60 x 32 floats.
        CHECK(verified == files);
        CHECK(most_verified <= files / uint64_t(c.ranks) + std::max<uint64_t>(64 * 32 * 4, largest_file / 4));
        // Of bf16 the fp32 weights are in the state, and of fp32 in the model's file, of which padding is not. A group
        // of --shard-ranks reads all of it.
        const uint64_t once = c.flags.contains("dtype") ? state : state + model;
        if (c.ranks == 1 || c.flags.contains("architecture")) {
            CHECK(loaded == uint64_t(c.groups) * once);
        } else {
            // The matrices lie transposed there: a row that is cut (at most one in a bucket's cut, of up to 4 C values)
            // is read from both sides.
            CHECK(loaded >= once);
            CHECK(loaded <= once + 3 * 4 * (4 * 32) * 4);
        }
        const uint64_t shard = c.flags.contains("dtype") ? most_state : most_state + (most_state + 1) / 2;
        if (!c.flags.contains("optimizer")) CHECK(most_loaded <= shard + 4 * (4 * 32) * 4);
        CHECK(most_loaded * uint64_t(c.ranks) < 2 * once * uint64_t(c.groups));
    }
}

// The sanitizers watch loading and saving in the tests above.
TEST_CASE("a run goes on from a checkpoint of any way to share its state, in any other way", "[zero][plain][slow]") {
    struct Way {
        int ranks;
        FlagMap how;
        std::string name() const {
            std::string text = std::to_string(ranks);
            for (const auto& [flag, value] : how) text += " " + flag + " " + value;
            return text;
        }
    };
    const FlagMap all_to_all = {{"grad-sum", "tree-ordered"}}, sharded = {{"zero-stage", "2"}};
    const auto by = [](const char* ranks) { return FlagMap{{"shard-ranks", ranks}}; };
    // Powers of two, of four micro-batches, have the bits of one rank. The others share twelve.
    const std::vector<Way> exact_ways = {{1, {}}, {4, {}}, {4, by("2")}, {2, all_to_all}, {2, sharded}};
    const std::vector<Way> other_ways = {
        {3, {}}, {3, all_to_all}, {3, sharded}, {6, by("3")}, {6, with(sharded, by("2"))}, {4, by("2")}};
    // A flag of a way must not come from the checkpoint.
    const FlagMap plain = {{"shard-ranks", "0"}, {"grad-sum", "tree"}, {"zero-stage", "1"}};
    const TinyRuns runs;
    for (const bool exact : {true, false}) {
        const std::vector<Way>& ways = exact ? exact_ways : other_ways;
        const FlagMap flags = with(kEight, {{"optimizer", "muon"},
                                            {"architecture", "llama"},
                                            {"recipe", "gpt2"},
                                            {"total-batch-size", exact ? "128" : "384"},
                                            {"steps", "3"},
                                            {"checkpoint-every", "2"}});
        const auto folder = [&](const std::string& name) { return name + (exact ? ", exact" : ""); };
        const auto flags_of = [](const Way& way) {
            return with(way.how, {{"virtual-ranks", std::to_string(way.ranks)}});
        };
        for (const Way& way : ways) must_succeed(runs.train(folder(way.name()), with(flags, flags_of(way))));
        for (const Way& from : ways)
            for (const Way& to : ways) {
                if (from.ranks == to.ranks) continue;
                const std::string origin = runs.path(folder(from.name())),
                                  out = runs.path(folder(from.name() + " to " + to.name()));
                INFO(out);
                must_succeed(run(command_of(
                    with(with(plain, flags_of(to)), {{"resume", step_folder(origin, 2)}, {"out-dir", out}}))));
                // The loss of the first step is that of the same weights and data, added without rounding.
                const auto want = losses_in(origin), got = losses_in(out);
                REQUIRE((want.size() == 3 && got.size() == 1));
                CHECK(got[0].first == want[2].first);
                const std::string end = step_folder(out, 3), straight = step_folder(origin, 3);
                CHECK(state_in(end).data.position == state_in(straight).data.position);
                if (exact) {
                    CHECK(tensor_difference(end, straight) == "");
                    continue;
                }
                // Weights and moments, up to the order of twelve terms: 12 x 2^-24 is 7e-7, and Newton-Schulz makes
                // more of what is small in a matrix.
                constexpr double kRounding = 1e-5;
                CHECK(std::fabs(got[0].second - want[2].second) <= kRounding * want[2].second);
                const auto reached = tensors_in(end);
                for (const auto& [tensor, values] : tensors_in(straight)) {
                    const std::vector<float>& other = reached.at(tensor);
                    REQUIRE(other.size() == values.size());
                    double difference = 0, size = 0;
                    for (size_t i = 0; i < values.size(); i++) {
                        difference += std::pow(double(other[i]) - double(values[i]), 2);
                        size += std::pow(double(values[i]), 2);
                    }
                    INFO(tensor);
                    CHECK(std::sqrt(difference) <= kRounding * std::sqrt(size));
                }
            }
    }
}

TEST_CASE("a rank's share of the optimizer is its own file, and the index names every part", "[zero]") {
    const TinyRuns runs;
    must_succeed(runs.train("a", with(kEight, {{"virtual-ranks", "4"}, {"steps", "2"}, {"optimizer", "muon"}})));
    const std::string folder = step_folder(runs.path("a"), 2);
    const std::string index = read_file(folder + "/optimizer.safetensors.index.json");
    size_t bytes = 0, largest = 0;
    for (int rank = 0; rank < 4; rank++) {
        const SafetensorsReader file(folder + "/" + shard_file(kOptimizerStem, rank, 4));
        size_t own = 0;
        for (const Tensor& tensor : file.tensors()) {
            CHECK(contains(index, "\"" + tensor.name + "\": \"" + shard_file(kOptimizerStem, rank, 4) + "\""));
            own += tensor.size_bytes();
        }
        bytes += own;
        largest = std::max(largest, own);
    }
    CHECK(contains(index, "\"total_size\": " + std::to_string(bytes)));
    CHECK(double(largest) < 0.5 * double(bytes));
}

TEST_CASE("a rank whose gradient is not finite skips the step on all", "[zero]") {
    // A weight that is not finite on every rank is skip_test's; here one rank alone has a bad gradient.
    struct Poisoned : LocalComm<Cpu> {
        using LocalComm<Cpu>::LocalComm;
        int64_t until = -1, reductions = 0;
        Work reduce_scatter(float* data, int64_t shard) override {
            if (rank == 1 && reductions++ == until) data[0] = std::nanf("");
            return LocalComm<Cpu>::reduce_scatter(data, shard);
        }
    };
    const TinyRuns runs;
    LocalGroup group(3);
    std::vector<std::string> hashes(3);
    group.run([&](int rank) {
        Cpu cpu(1);
        Poisoned comm(group, rank, cpu);
        ParameterList list(GptShape{2, 2, 32, 16, 60});
        const ShardingPlan plan =
            plan_sharding(list, {.world_size = 3, .whole_matrices = true, .bucket_elements = 4096});
        list.place(plan.offsets, plan.buffer_size);
        Gpt<Cpu> model(cpu, list, 2, 16, Recompute::none, comm);
        Optimizer<Cpu> optimizer(cpu, model.parameters, plan, rank, with_rule({}, "muon"));
        model.initialize_weights(1);
        DataLoader data({.pattern = runs.path("data/train_*.bin"),
                         .batch_size = 2,
                         .seq_len = 16,
                         .rank = rank,
                         .world_size = 3,
                         .vocab_size = 60});
        Stepper<Cpu> stepper(model, optimizer, comm, {2, 16, 1, 1.0, 3}, 0);
        const auto bits = [&] {
            std::string all(reinterpret_cast<const char*>(model.weights.data),
                            size_t(model.weights.size) * sizeof(float));
            all.append(reinterpret_cast<const char*>(optimizer.state(0, 0)),
                       size_t(plan.state_size[size_t(rank)]) * sizeof(float));
            return all;
        };
        const auto step = [&] {
            stepper.start(data, find_recipe("gpt2").rules.rates(1));
            return stepper.finish();
        };
        REQUIRE(step().applied);
        for (size_t bucket = 0; bucket < plan.buckets.size(); bucket++) {
            const std::string before = bits();
            comm.reductions = 0;
            comm.until = int64_t(bucket);
            REQUIRE_FALSE(step().applied);
            REQUIRE((bits() == before));
            comm.until = -1;
            REQUIRE(step().applied);
            REQUIRE((bits() != before));
        }
        hashes[size_t(rank)] = bits().substr(0, size_t(model.weights.size) * sizeof(float));
    });
    CHECK((hashes[0] == hashes[1] && hashes[0] == hashes[2]));
}
