// Runs that start with the weights of another model, and checkpoints of older programs with fewer flags.
#include <nlohmann/json.hpp>
#include "llmc/interop/stored_model.h"  // StoredModel
#include "llmc/train/tokens.h"          // first_difference
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
    // YaRN extends a context, for a run that goes on like any other. Adapters keep their base's.
    const auto extend = [&](const std::string& out, FlagMap flags) {
        flags.insert({{"init-from", runs.path("llama")}, {"rotary-scaling", "yarn"}, {"rotary-factor", "4"}});
        return run(command_of(data_flags(runs, out, flags)));
    };
    must_succeed(extend("long", {{"seq-len", "48"}, {"steps", "1"}}));
    const GptShape longer = StoredModel(step_folder(runs.path("long"), 1)).shape();
    CHECK(longer.max_seq_len == 64);
    CHECK(longer.architecture.rotary.scaling == RotaryScaling{4, 1, 32, 16, RotaryScaling::Kind::yarn});
    CHECK(longer.architecture.rotary.scale == float(RotaryScaling::yarn_scale(4)));
    must_succeed(runs.resume("long", {{"steps", "2"}}));
    must_succeed(extend("own", {{"rotary-high-turns", "8"}, {"qk-scale", "1"}, {"seq-len", "64"}}));
    CHECK(StoredModel(step_folder(runs.path("own"), 0)).shape().architecture.rotary.scaling.high_turns == 8);
    CHECK(contains(extend("adapted", {{"lora-rank", "2"}}).err,
                   "rotary-factor = 4 with --lora-rank: adapters keep the positions of their base"));
    CHECK(contains(extend("beyond", {{"seq-len", "65"}}).err, "--seq-len 65 is above the 64 positions"));
    // Without YaRN a model stays what it is.
    CHECK(contains(extend("other", {{"rotary-scaling", "llama3"}}).err, "is of another model"));
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

TEST_CASE("two tokenizers are the same if their ids stand for the same text", "[init_from]") {
    const auto chars = [](const std::string& text) {
        Symbols symbols;
        symbols.add(text, "text");
        return char_tokenizer(symbols);
    };
    CHECK(first_difference(byte_tokenizer(), byte_tokenizer()) == -1);
    CHECK(first_difference(chars("abc"), chars("cba")) == -1);
    CHECK(first_difference(chars("abd"), chars("abc")) == 2);
    CHECK(first_difference(chars("abc"), chars("abcd")) == 3);
    CHECK(first_difference(chars("abcd"), chars("abc")) == 3);
    // Special tokens stand for no text: a model may have more of them.
    Tokenizer gpt2 = load_tokenizer("test/fixtures/tokenizers/gpt2.json"), more = gpt2;
    CHECK(first_difference(gpt2, more) == -1);
    more.symbols.push_back("");
    CHECK(first_difference(gpt2, more) == -1);
    more.symbols.back() = "text";
    CHECK(first_difference(more, gpt2) == gpt2.vocab_size());
}

TEST_CASE("data in other tokens than the model's are refused, and so are those that nobody named", "[init_from]") {
    const TinyRuns runs;
    must_succeed(runs.train("model", {{"steps", "2"}, {"warmup-steps", "0"}}));
    const std::string bytes = runs.path("bytes"), model = step_folder(runs.path("model"), 2);
    must_succeed(run(program("data/tokenize") + " --stories 2000 --tokenizer byte --out " + bytes));
    const FlagMap in_bytes = {{"train-data", bytes + "/train_*.bin"}, {"val-data", bytes + "/val_*.bin"}};
    const auto refused = [&](FlagMap flags, const std::vector<std::string>& parts, const std::string& name = "train") {
        flags.insert({{"out-dir", runs.path("no")}, {"dtype", "fp32"}});
        const Finished finished = run(command_of(flags, name));
        INFO(finished.err);
        CHECK(finished.exit_code == 2);
        for (const std::string& part : parts) CHECK(contains(finished.err, part));
        CHECK_FALSE(fs::exists(runs.path("no/log.jsonl")));
    };
    const auto with = [](FlagMap flags, const FlagMap& more) {
        flags.insert(more.begin(), more.end());
        return flags;
    };
    const std::string again = "data/tokenize TEXT --tokenizer " + model + "/tokenizer.json --out FOLDER";
    const std::vector<std::string> both = {"of different tokenizers: " + model + "/tokenizer.json", " symbols, char)",
                                           bytes + "/tokenizer.json (256 symbols, byte)", again};
    refused(with(in_bytes, {{"init-from", runs.path("model")}, {"seq-len", "16"}}), both);
    refused(with(in_bytes, {{"resume", runs.path("model")}, {"steps", "4"}}), both);
    const std::string apart = "the training data and the validation data are of different tokenizers";
    refused({{"resume", runs.path("model")}, {"steps", "4"}, {"val-data", in_bytes.at("val-data")}}, {apart});
    for (const char* from : {"init-from", "resume"})
        refused({{from, model}, {"val-data", in_bytes.at("val-data")}}, both, "eval");
    // To name a tokenizer does not make the data its own.
    refused(with(in_bytes, {{"init-from", model}, {"seq-len", "16"}, {"tokenizer", model + "/tokenizer.json"}}),
            {"--tokenizer and the training data are of different tokenizers"});
    // Without any model: training and validation.
    refused(runs.flags("no", {{"val-data", in_bytes.at("val-data")}}), {apart});

    // A model without a tokenizer has a size of vocabulary.
    for (const char* name : {"bare", "large"}) fs::create_directory(runs.path(name));
    for (const char* name : {"config.json", "model.safetensors"}) fs::copy(model + "/" + name, runs.path("bare"));
    refused(
        with(in_bytes, {{"init-from", runs.path("bare")}, {"seq-len", "16"}}),
        {"the data are not in the model's tokens: " + bytes + "/tokenizer.json has 256 symbols", "a vocabulary of "});
    const Finished equal = run(command_of(data_flags(runs, "equal", {{"init-from", runs.path("bare")}})));
    must_succeed(equal);
    CHECK_FALSE(contains(equal.err, "warning"));
    must_succeed(runs.train("wide", {{"steps", "1"}, {"warmup-steps", "0"}, {"vocab-size", "64"}}));
    for (const char* name : {"config.json", "model.safetensors"})
        fs::copy(step_folder(runs.path("wide"), 1) + "/" + name, runs.path("large"));
    const Finished wider = run(command_of(data_flags(runs, "wider", {{"init-from", runs.path("large")}})));
    must_succeed(wider);
    CHECK(contains(wider.err, "warning: whether the data are in the model's tokens cannot be known: "));

    // No data is given.
    refused({{"init-from", model}}, {"nothing to evaluate: give --val-data"}, "eval");
    refused({{"init-from", model}, {"train-data", runs.path("data/train_*.bin")}},
            {"--train-data is no flag of `eval`, but of: train, plan, doctor"}, "eval");
    refused({{"init-from", model}, {"steps", "0"}}, {"no data are given: give --train-data"});
    const Finished named =
        run(command_of({{"init-from", model}, {"val-data", runs.path("data/val_*.bin")}, {"dtype", "fp32"}}, "eval"));
    must_succeed(named);
    CHECK(contains(named.out, "bpb "));
}

TEST_CASE("a model of the hub by its name comes from the script beside the program", "[init_from][plain]") {
    const TinyRuns runs;
    must_succeed(runs.train("start", {{"architecture", "gpt2"}, {"steps", "1"}, {"warmup-steps", "0"}}));
    make_folders(runs.path("mirror"));
    must_succeed(run(command_of({{"init-from", runs.path("start")}, {"out-dir", runs.path("mirror/gpt2")}}, "export")));
    // A checkout of its own: nothing is read or written in this one.
    make_folders(runs.path("tree/data"));
    for (const char* script : {"model.sh", "fetch.sh"}) fs::copy(std::string("data/") + script, runs.path("tree/data"));
    fs::copy(program("train_gpt"), runs.path("tree"));
    const auto started = [&](const std::string& name, const std::string& environment) {
        FlagMap flags = data_flags(runs, "from_" + name, {{"init-from", name}});
        std::string command = command_of(flags);
        return run("env " + environment + " " +
                   command.replace(command.find(program("train_gpt")), program("train_gpt").size(),
                                   runs.path("tree/train_gpt")));
    };
    must_succeed(started("gpt2", "ANVIL_MIRROR=" + runs.path("mirror")));
    CHECK(read_file(step_folder(runs.path("from_gpt2"), 0) + "/model.safetensors") ==
          read_file(step_folder(runs.path("start"), 1) + "/model.safetensors"));
    const Finished none = started("gpt2-xl", "ANVIL_MIRROR=" + runs.path("mirror"));
    CHECK(none.exit_code == 2);
    CHECK(contains(none.err, "mirror/gpt2-xl/config.json: no such file; put the model there, or unset ANVIL_MIRROR"));
    const Finished typo = started("gtp2", "ANVIL_MIRROR=" + runs.path("mirror"));
    CHECK(typo.exit_code == 2);
    CHECK(contains(typo.err,
                   "error: gtp2: no such file or folder, and no model that is known by name: expected one of gpt2,"));
}

TEST_CASE("what is no model here gets the way to one", "[init_from]") {
    const ScratchFolder scratch;
    const auto error = [](const std::string& path) { return error_of([&] { StoredModel model(path); }); };
    CHECK(contains(error("openai-community/gpt2"), "first: --init-from \"$(data/model.sh openai-community/gpt2)\""));
    for (const char* path : {"gpt2", "./gpt2/model", "/nowhere/gpt2", "a/b/c", "llmc/gone"}) {
        INFO(path);
        CHECK(contains(error(path), "no such file or folder; give a folder with config.json"));
        CHECK_FALSE(contains(error(path), "data/model.sh"));
    }
    for (const std::string& begin : {std::string("PK\3\4", 4), std::string("\x80\2c", 3)}) {
        put_file(scratch / "model.pt", begin + std::string(4000, 'x'));
        CHECK(contains(error(scratch / "model.pt"), "It is a file of torch.save(), as nanochat's are"));
    }
    put_file(scratch / "model.pt", std::string(4000, 'x'));
    CHECK_FALSE(contains(error(scratch / "model.pt"), "torch.save()"));
}

TEST_CASE("export writes what others read, and says what", "[init_from]") {
    const TinyRuns runs;
    must_succeed(runs.train("a", {{"steps", "2"}, {"warmup-steps", "0"}}));
    for (const std::string format_name : {"hf", "llmc", "gguf"}) {
        const std::string out = runs.path(format_name);
        const Finished finished =
            run(command_of({{"format", format_name}, {"init-from", runs.path("a")}, {"out-dir", out}}, "export"));
        must_succeed(finished);
        CHECK(contains(finished.out, out + ": model."));
        CHECK_FALSE(contains(finished.out, "transformers has no class"));
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
    // What transformers has no class for is exported with one; other programs have none, and that is said.
    must_succeed(runs.train("modern", {{"architecture", "nanochat"}, {"steps", "1"}, {"warmup-steps", "0"}}));
    const auto export_modern = [&](const std::string& format_name) {
        return run(command_of({{"format", format_name},
                               {"init-from", runs.path("modern")},
                               {"out-dir", runs.path("modern_" + format_name)}},
                              "export"));
    };
    const Finished ours = export_modern("hf");
    must_succeed(ours);
    CHECK(contains(ours.out, "modeling_anvil.py: transformers has no class for this architecture and takes this one"));
    CHECK(fs::exists(runs.path("modern_hf/modeling_anvil.py")));
    for (const char* format_name : {"llmc", "gguf"}) {
        const Finished refused = export_modern(format_name);
        CHECK(refused.exit_code == 2);
        CHECK(contains(refused.err, "and this is another model; use --format hf, which writes it with its code"));
    }
    const Finished no_model = run(command_of({{"out-dir", runs.path("no")}}, "export"));
    CHECK(no_model.exit_code == 2);
    CHECK(contains(no_model.err, "expected the model to export: give --resume"));
}

TEST_CASE("a checkpoint from before a flag was there goes on with what that flag is by default", "[init_from]") {
    const TinyRuns runs;
    must_succeed(runs.train("a", {{"steps", "3"}, {"keep", "9"}, {"warmup-steps", "0"}}));
    must_succeed(runs.train("b", {{"steps", "3"}, {"keep", "9"}, {"warmup-steps", "0"}}));
    const std::string folder = step_folder(runs.path("a"), 3), path = folder + "/train_config.json";
    json config = json::parse(read_file(path));
    for (const char* name : {"init-from", "log-to", "softcap-kind", "noise-scale"}) {
        REQUIRE(config.contains(name));
        config.erase(name);
    }
    put_file(path, config.dump());
    renew_manifest(folder);
    must_succeed(runs.resume("a", {{"steps", "6"}}));
    must_succeed(runs.resume("b", {{"steps", "6"}}));
    CHECK(read_file(step_folder(runs.path("a"), 6) + "/model.safetensors") ==
          read_file(step_folder(runs.path("b"), 6) + "/model.safetensors"));
    // Its content is checked as before.
    config["batch-size"] = "many";
    put_file(path, config.dump());
    renew_manifest(folder);
    const Finished wrong = run(command_of({{"resume", folder}, {"out-dir", runs.path("c")}}));
    CHECK(wrong.exit_code == 2);
    CHECK(contains(wrong.err, "\"batch-size\": \"many\": expected a number"));
    // An optimizer that another version had.
    config["batch-size"] = 2, config["optimizer"] = "lion";
    put_file(path, config.dump());
    renew_manifest(folder);
    const Finished lion = run(command_of({{"resume", folder}, {"out-dir", runs.path("c")}}));
    CHECK(lion.exit_code == 2);
    CHECK(contains(
        lion.err,
        "\"optimizer\": \"lion\": expected one of recipe, adamw, muon; its weights alone: --init-from " + folder));
    must_succeed(runs.train("c", {{"init-from", folder}, {"steps", "1"}, {"warmup-steps", "0"}}));
}
