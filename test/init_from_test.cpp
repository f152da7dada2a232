// Runs that begin with the weights of another model, and checkpoints of programs that had fewer flags.
#include <nlohmann/json.hpp>
#include "llmc/base/hash.h"    // xxh3
#include "llmc/io/manifest.h"  // Manifest
#include "test/program.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// Flags for data alone: the model comes from elsewhere.
FlagMap data_flags(const TinyRuns& runs, const std::string& out, const FlagMap& changes) {
    FlagMap all = changes;
    all.insert({{"train-data", runs.path("data/train_*.bin")}, {"val-data", runs.path("data/val_*.bin")}});
    all.insert({{"out-dir", runs.path(out)}, {"seq-len", "16"}, {"batch-size", "2"}, {"val-tokens", "320"}});
    all.insert({{"sample-tokens", "0"}, {"threads", "1"}, {"steps", "0"}, {"warmup-steps", "0"}});
    all.insert({"dtype", "fp32"});
    return all;
}

std::string last_validation(const std::string& out_dir) {
    const json record = json::parse(records_in(out_dir, "val").back());
    return record["loss"].dump();
}

// A folder's files as they are now get a manifest that says so.
void renew_manifest(const std::string& folder) {
    Manifest manifest{json::parse(read_file(folder + "/manifest.json"))["step"], {}};
    for (const auto& entry : fs::directory_iterator(folder)) {
        const std::string name = entry.path().filename(), content = read_file(entry.path());
        if (name != "manifest.json")
            manifest.files.push_back({name, content.size(), xxh3(content.data(), content.size())});
    }
    put_file(folder + "/manifest.json", to_json(manifest));
}

}  // namespace

TEST_CASE("a run begins with the weights of a checkpoint of any architecture", "[init_from]") {
    const TinyRuns runs;
    for (const std::string name : {"gpt2", "llama", "stage-a", "nanochat"}) {
        INFO(name);
        const std::string out = name + "_again";
        must_succeed(runs.train(name, {{"architecture", name}, {"steps", "3"}, {"warmup-steps", "0"}}));
        must_succeed(run(command_of(data_flags(runs, out, {{"init-from", runs.path(name)}}))));
        // The same weights, so the same loss to the last bit.
        CHECK(last_validation(runs.path(out)) == last_validation(runs.path(name)));
        CHECK(read_file(step_folder(runs.path(out), 0) + "/model.safetensors") ==
              read_file(step_folder(runs.path(name), 3) + "/model.safetensors"));
        // It is a run like any other, which goes on without the other model, or beside it.
        const std::string more = name + "_more";
        must_succeed(run(command_of(data_flags(runs, more, {{"init-from", step_folder(runs.path(name), 3)}}))));
        must_succeed(runs.resume(more, {{"steps", "2"}}));
        must_succeed(runs.resume(more, {{"steps", "3"}, {"init-from", "gone"}}));
        CHECK(checkpoint_steps(runs.path(more)).back() == 3);
    }
    // On several ranks, too.
    must_succeed(run(command_of(
        data_flags(runs, "ranks", {{"init-from", runs.path("llama")}, {"virtual-ranks", "2"}, {"batch-size", "1"}}))));
    CHECK(last_validation(runs.path("ranks")) == last_validation(runs.path("llama")));

    const auto error = [&](FlagMap flags) {
        flags.insert({"init-from", runs.path("gpt2")});
        const Finished finished = run(command_of(data_flags(runs, "no", flags)));
        CHECK(finished.exit_code == 2);
        return finished.err;
    };
    CHECK(contains(error({{"num-layers", "3"}}), "is of another model: it has 2 layers"));
    CHECK(contains(error({{"architecture", "llama"}}), "is of another model"));
    CHECK(contains(error({{"norm", "rmsnorm"}}), "is of another model"));
    CHECK(contains(error({{"model", "gpt2-124M"}}), "is of another model"));
    CHECK(contains(error({{"seq-len", "17"}}), "--seq-len 17 is above the 16 positions"));
    CHECK(contains(error({{"init-from", "gone"}}), "gone: no such file or folder"));
}

TEST_CASE("--export writes what others read, and says what", "[init_from]") {
    const TinyRuns runs;
    must_succeed(runs.train("a", {{"steps", "2"}, {"warmup-steps", "0"}}));
    for (const std::string format_name : {"hf", "llmc", "gguf"}) {
        const std::string out = runs.path(format_name);
        const Finished finished =
            run(command_of({{"export", format_name}, {"init-from", runs.path("a")}, {"out-dir", out}}));
        must_succeed(finished);
        CHECK(contains(finished.out, out + ": model."));
        if (format_name == "gguf") CHECK(contains(finished.out, "without the tokenizer: its symbols are characters"));
        CHECK(fs::exists(out + "/tokenizer_config.json") == (format_name == "hf"));
        if (format_name == "gguf") continue;
        const std::string model = format_name == "llmc" ? out + "/model.bin" : out, again = format_name + "_again";
        must_succeed(run(command_of(data_flags(runs, again, {{"init-from", model}}))));
        CHECK(last_validation(runs.path(again)) == last_validation(runs.path("a")));
    }
    CHECK(read_file(runs.path("hf/model.safetensors")) ==
          read_file(step_folder(runs.path("a"), 2) + "/model.safetensors"));
    CHECK(read_file(runs.path("gguf/model.gguf")).starts_with(std::string("GGUF\3\0\0\0", 8)));
    const Finished no_model = run(command_of({{"export", "hf"}, {"out-dir", runs.path("no")}}));
    CHECK(no_model.exit_code == 2);
    CHECK(contains(no_model.err, "--export hf: expected --init-from MODEL"));
}

TEST_CASE("a checkpoint from before a flag was there goes on with what that flag is by default", "[init_from]") {
    const TinyRuns runs;
    must_succeed(runs.train("a", {{"steps", "3"}, {"keep", "9"}, {"warmup-steps", "0"}}));
    must_succeed(runs.train("b", {{"steps", "3"}, {"keep", "9"}, {"warmup-steps", "0"}}));
    const std::string folder = step_folder(runs.path("a"), 3), path = folder + "/train_config.json";
    json config = json::parse(read_file(path));
    for (const char* name : {"init-from", "export", "softcap-kind", "noise-scale"}) {
        REQUIRE(config.contains(name));
        config.erase(name);
    }
    put_file(path, config.dump());
    renew_manifest(folder);
    must_succeed(runs.resume("a", {{"steps", "6"}}));
    must_succeed(runs.resume("b", {{"steps", "6"}}));
    CHECK(read_file(step_folder(runs.path("a"), 6) + "/model.safetensors") ==
          read_file(step_folder(runs.path("b"), 6) + "/model.safetensors"));
    // What it says is checked as before.
    config["batch-size"] = "many";
    put_file(path, config.dump());
    renew_manifest(folder);
    const Finished wrong = run(command_of({{"resume", folder}, {"out-dir", runs.path("c")}}));
    CHECK(wrong.exit_code == 2);
    CHECK(contains(wrong.err, "\"batch-size\": \"many\": expected a number"));
}
