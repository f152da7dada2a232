// Runs that train adapters: the same bits on any ranks and after a resume, what their checkpoints hold, and what reads
// them.
#include <nlohmann/json.hpp>
#include <cmath>
#include "test/train/rank_runs.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// A model in `base`, and flags of a run of twelve steps with adapters beside it.
struct AdapterRuns {
    TinyRuns runs;

    explicit AdapterRuns(const std::string& architecture, const FlagMap& changes = {}) {
        must_succeed(
            runs.train("base", with(changes, {{"architecture", architecture}, {"steps", "3"}, {"warmup-steps", "0"}})));
    }
    std::string path(const std::string& name) const { return runs.path(name); }
    FlagMap flags(const std::string& out, const FlagMap& changes = {}) const {
        FlagMap all = with({{"train-data", path("data/train_*.bin")},
                            {"val-data", path("data/val_*.bin")},
                            {"out-dir", path(out)},
                            {"init-from", path("base")},
                            {"seq-len", "16"},
                            {"batch-size", "2"},
                            {"total-batch-size", "256"},
                            {"steps", "12"},
                            {"warmup-steps", "2"},
                            {"learning-rate", "0.01"},
                            {"grad-sum", "tree"},
                            {"checkpoint-every", "0"},
                            {"val-tokens", "320"},
                            {"sample-tokens", "0"},
                            {"threads", "1"},
                            {"seed", "7"},
                            {"dtype", "fp32"},
                            {"lora-rank", "4"}},
                           changes);
        return all;
    }
    Finished train(const std::string& out, const FlagMap& changes = {}) const {
        return run(command_of(flags(out, changes)));
    }
    double last_loss(const std::string& out) const {
        return double(json::parse(records_in(path(out), "val").back())["loss"]);
    }
};

double evaluated_loss(const Finished& finished) {
    must_succeed(finished);
    const size_t at = finished.out.rfind("loss");
    INFO(finished.out);
    REQUIRE(at != std::string::npos);
    return std::stod(finished.out.substr(at + 4));
}

}  // namespace

TEST_CASE("adapters have the same bits on any ranks and after a resume on others", "[lora_runs]") {
    const AdapterRuns base("llama");
    must_succeed(base.train("one", {{"checkpoint-every", "5"}, {"keep", "9"}}));
    const std::string one = base.path("one");
    const auto want = losses_in(one);
    CHECK(want.back().first < want.front().first);
    for (const std::string ranks : {"2", "4"}) {
        must_succeed(base.train("ranks" + ranks, {{"virtual-ranks", ranks}}));
        CHECK(losses_in(base.path("ranks" + ranks)) == want);
        CHECK(tensor_difference(step_folder(base.path("ranks" + ranks), 12), step_folder(one, 12)) == "");
    }
    must_succeed(run(command_of(
        {{"resume", step_folder(one, 5)}, {"out-dir", base.path("again")}, {"virtual-ranks", "2"}, {"threads", "1"}})));
    CHECK(tensor_difference(step_folder(base.path("again"), 12), step_folder(one, 12)) == "");
    must_succeed(base.train("zero2", {{"virtual-ranks", "2"}, {"zero-stage", "2"}, {"recompute", "block"}}));
    CHECK(tensor_difference(step_folder(base.path("zero2"), 12), step_folder(one, 12)) == "");
}

TEST_CASE("adapters train in bf16, with dropout, islands and Muon, beside every architecture", "[lora_runs]") {
    for (const std::string name : {"gpt2", "llama", "stage-a", "nanochat"}) {
        INFO(name);
        const AdapterRuns base(name);
        FlagMap changes = {{"dtype", "bf16"}, {"dropout", "0.1"}, {"steps", "4"}, {"warmup-steps", "0"}};
        if (name == "stage-a" || name == "nanochat") changes["muon-learning-rate"] = "0.01";
        FlagMap flags = base.flags("run", with(changes, {{"checkpoint-every", "2"}}));
        if (name == "stage-a" || name == "nanochat") flags.erase("learning-rate");
        must_succeed(run(command_of(flags)));
        must_succeed(run(command_of({{"resume", step_folder(base.path("run"), 2)}, {"out-dir", base.path("again")}})));
        CHECK(tensor_difference(step_folder(base.path("again"), 4), step_folder(base.path("run"), 4)) == "");
        flags["out-dir"] = base.path("islands");
        flags["virtual-ranks"] = flags["islands"] = flags["outer-every"] = "2";
        must_succeed(run(command_of(flags)));
    }
}

TEST_CASE("a checkpoint of adapters holds them alone, and is read with its base", "[lora_runs]") {
    const AdapterRuns base("llama");
    must_succeed(base.train("run"));
    const std::string folder = step_folder(base.path("run"), 12);
    CHECK_FALSE(fs::exists(folder + "/model.safetensors"));
    const SafetensorsReader file(folder + "/adapter_model.safetensors");
    CHECK(file.tensors().size() == 2 * 7 * 2);  // A and B, of Q, K, V, output, gate, up and down, in two layers
    CHECK(file.at("base_model.model.model.layers.1.self_attn.k_proj.lora_B.weight").shape == Shape{32, 4});
    const auto config = json::parse(read_file(folder + "/adapter_config.json"));
    CHECK(config["r"] == 4);
    CHECK(config["lora_alpha"] == 8);
    CHECK(config["target_modules"].size() == 7);

    // What is merged has the loss of what was trained, but for roundings of the sums.
    const double want = base.last_loss("run");
    const FlagMap data = {{"val-data", base.path("data/val_*.bin")}, {"val-tokens", "320"}, {"dtype", "fp32"}};
    CHECK(std::fabs(evaluated_loss(run(command_of(with(data, {{"resume", base.path("run")}}), "eval"))) - want) < 1e-4);
    CHECK(std::fabs(evaluated_loss(run(command_of(with(data, {{"init-from", folder}}), "eval"))) - want) < 1e-4);
    for (const std::string format_name : {"hf", "peft"}) {
        const std::string out = base.path("to_" + format_name);
        must_succeed(run(command_of({{"resume", folder}, {"out-dir", out}, {"format", format_name}}, "export")));
        CHECK(std::fabs(evaluated_loss(run(command_of(with(data, {{"init-from", out}}), "eval"))) - want) < 1e-4);
    }
    CHECK(fs::exists(base.path("to_hf/model.safetensors")));
    must_succeed(run(command_of({{"init-from", base.path("to_peft")}, {"out-dir", base.path("from_peft")}}, "export")));
    CHECK(read_file(base.path("from_peft/model.safetensors")) == read_file(base.path("to_hf/model.safetensors")));
    CHECK(read_file(base.path("to_peft/adapter_model.safetensors")) ==
          read_file(folder + "/adapter_model.safetensors"));
    const Finished merged = run(command_of({{"init-from", base.path("to_hf")},
                                            {"prompt", "T"},
                                            {"temperature", "0"},
                                            {"sample-tokens", "9"},
                                            {"dtype", "fp32"}},
                                           "generate"));
    const Finished apart = run(command_of(
        {{"resume", folder}, {"prompt", "T"}, {"temperature", "0"}, {"sample-tokens", "9"}, {"dtype", "fp32"}},
        "generate"));
    must_succeed(apart);
    CHECK(apart.out == merged.out);

    // The base may have moved, and its place is told.
    fs::rename(base.path("base"), base.path("moved"));
    const Finished gone = run(command_of({{"resume", folder}, {"out-dir", base.path("x")}}));
    CHECK(gone.exit_code == kExitUsage);
    CHECK(contains(gone.err, "which is not there any more: give --init-from with its new place"));
    must_succeed(run(command_of(
        {{"resume", folder}, {"out-dir", base.path("more")}, {"init-from", base.path("moved")}, {"steps", "14"}})));
    must_succeed(run(command_of(
        {{"resume", folder}, {"init-from", base.path("moved")}, {"out-dir", base.path("to_gguf")}}, "export")));
}

TEST_CASE("beside a base in FP8, runs have the same bits on any ranks and after a resume", "[lora_runs]") {
    const AdapterRuns base("llama", {{"channels", "128"}});
    for (const std::string scaling : {"current", "delayed"}) {
        INFO(scaling);
        const std::string one = base.path(scaling);
        FlagMap fp8 = {{"dtype", "fp8"}, {"fp8-scaling", scaling}, {"fp8-amax-history", "2"}, {"sample-tokens", "5"}};
        must_succeed(base.train(scaling, with(fp8, {{"checkpoint-every", "6"}, {"keep", "9"}})));
        CHECK(losses_in(one).back().first < losses_in(one).front().first);
        must_succeed(base.train(scaling + "2", with(fp8, {{"virtual-ranks", "2"}, {"recompute", "block"}})));
        CHECK(tensor_difference(step_folder(base.path(scaling + "2"), 12), step_folder(one, 12)) == "");
        must_succeed(run(command_of({{"resume", step_folder(one, 6)}, {"out-dir", one + "3"}, {"threads", "1"}})));
        CHECK(tensor_difference(step_folder(one + "3", 12), step_folder(one, 12)) == "");
        CHECK(base.last_loss(scaling + "3") == base.last_loss(scaling));
    }
    // Each product is off by 2^-4 of a factor at most, twice, and at random; the loss of the merged model in fp32 is
    // near.
    const double want = base.last_loss("current");
    const FlagMap data = {{"val-data", base.path("data/val_*.bin")}, {"val-tokens", "320"}, {"dtype", "fp32"}};
    const double merged =
        evaluated_loss(run(command_of(with(data, {{"init-from", step_folder(base.path("current"), 12)}}), "eval")));
    CHECK(std::fabs(merged - want) < 0.05 * want);
    CHECK(merged != want);
}

TEST_CASE("adapters that cannot be are refused in one line", "[lora_runs]") {
    const AdapterRuns base("gpt2");
    must_succeed(base.train("run", {{"steps", "2"}, {"warmup-steps", "0"}}));
    must_succeed(base.runs.train("other", {{"architecture", "gpt2"}, {"steps", "1"}, {"warmup-steps", "0"}}));
    const auto check_refused = [](const Finished& finished, const std::string& part) {
        INFO(finished.err);
        CHECK(finished.exit_code == kExitUsage);
        CHECK(contains(finished.err, part));
    };
    check_refused(base.train("x", {{"lora-rank", "33"}}), "--lora-rank 33: qkv has a matrix of 96 x 32");
    check_refused(base.train("x", {{"lora-targets", "qkv,gate"}}), "'gate' is no target: expected some of qkv");
    check_refused(base.train("x", {{"lora-targets", ""}}), "'' is no target");
    check_refused(base.train("x", {{"dtype", "fp8"}, {"fp8-scaling", "mx"}}), "--lora-rank with --fp8-scaling mx");
    check_refused(base.train("x", {{"dtype", "fp8"}}), "no linear layer of 128 channels or more");
    check_refused(base.runs.train("x", {{"lora-rank", "4"}}), "--lora-rank trains adapters of an existing model");
    const FlagMap more = {{"resume", base.path("run")}, {"steps", "4"}};
    for (const std::string command : {"train", "generate"}) {
        FlagMap flags = {{"resume", base.path("run")}, {"init-from", base.path("other")}};
        check_refused(run(command_of(flags, command)), "an adapter for another base");
    }
    check_refused(
        run(command_of({{"resume", base.path("run")}, {"init-from", base.path("other")}, {"out-dir", base.path("y")}},
                       "export")),
        "an adapter for another base");
    check_refused(run(command_of(with(more, {{"lora-rank", "8"}}))), "is of a run with another --lora-rank");
    check_refused(run(command_of({{"resume", base.path("base")}, {"steps", "4"}, {"lora-rank", "4"}})),
                  "is of a run with another --lora-rank");
    check_refused(
        run(command_of({{"init-from", base.path("base")}, {"format", "peft"}, {"out-dir", base.path("y")}}, "export")),
        "has no adapter to write for PEFT");
    check_refused(
        run(command_of({{"resume", base.path("base")}, {"init-from", base.path("other")}, {"out-dir", base.path("y")}},
                       "export")),
        "is a whole model, and --init-from another");
    // An adapter of another program.
    fs::create_directory(base.path("peft"));
    const std::string folder = step_folder(base.path("run"), 2);
    fs::copy(folder + "/adapter_model.safetensors", base.path("peft"));
    auto config = json::parse(read_file(folder + "/adapter_config.json"));
    const auto refuses = [&](const std::string& name, const json& value, const std::string& part) {
        auto changed = config;
        changed[name] = value;
        put_file(base.path("peft/adapter_config.json"), changed.dump());
        check_refused(run(command_of({{"init-from", base.path("peft")}}, "generate")), part);
    };
    refuses("use_dora", true, "\"use_dora\": true, which Anvil does not apply");
    refuses("rank_pattern", {{"c_attn", 8}}, "\"rank_pattern\"");
    refuses("r", 2, "it is an adapter of another model");
    refuses("peft_type", "IA3", "expected LORA");
    refuses("base_model_name_or_path", nullptr, "\"base_model_name_or_path\": expected the path");
    refuses("base_model_name_or_path", "owner/no-such", "an adapter of owner/no-such, which is no folder here");
    refuses("r", 33, "it is an adapter of another model");
    put_file(base.path("peft/adapter_config.json"), config.dump());
    const std::string weights = base.path("peft/adapter_model.safetensors");
    std::string bytes = read_file(weights);
    bytes.replace(bytes.find("h.1.attn.c_attn"), 15, "h.1.attn.c_none");
    put_file(weights, bytes);
    const FlagMap peft = {{"init-from", base.path("peft")}};
    check_refused(run(command_of(peft, "generate")), "c_none.lora_A.weight\" belongs to no matrix of the model");
    fs::remove(weights);
    check_refused(run(command_of(peft, "generate")), "(LoRA) without its adapter_model.safetensors");
    fs::remove(base.path("peft/adapter_config.json"));
    put_file(weights, bytes);
    check_refused(run(command_of(peft, "generate")), "(LoRA) without its adapter_config.json");
}
