// What bad input gets: exit code 2, one line that says what to do, and nothing that a later run would trust.
#include <sys/mount.h>
#include <unistd.h>
#include "test/program.h"

namespace fs = std::filesystem;

namespace {

// One line on stderr, beginning with "error: ", that holds all of `parts`; exit code 2.
void check_refused(const Finished& finished, const std::vector<std::string>& parts) {
    INFO(finished.err);
    CHECK(finished.exit_code == 2);
    CHECK(finished.err.starts_with("error: "));
    CHECK(std::count(finished.err.begin(), finished.err.end(), '\n') == 1);
    for (const std::string& part : parts) {
        INFO("expected: " << part);
        CHECK(contains(finished.err, part));
    }
}

void put_number(const std::string& path, size_t at, uint32_t number, size_t bytes) {
    std::string content = read_file(path);
    content.replace(at, bytes, std::string(reinterpret_cast<const char*>(&number), bytes));
    put_file(path, content);
}

bool can_write(const std::string& path) { return access(path.c_str(), W_OK) == 0; }

}  // namespace

TEST_CASE("who gives --train-data alone does not validate on the default's text", "[train_errors]") {
    const TinyRuns runs;
    FlagMap flags = runs.flags("a", {{"steps", "6"}});
    flags.erase("val-data");
    must_succeed(run(command_of(flags)));
    CHECK(records_in(runs.path("a"), "val").empty());
    CHECK(records_in(runs.path("a"), "end").size() == 1);
}

TEST_CASE("what is tried first works: a few steps, and nothing else said", "[train_errors]") {
    const TinyRuns runs;
    FlagMap flags = runs.flags("a", {{"steps", "5"}});
    flags.erase("warmup-steps");
    const Finished short_run = run(command_of(flags));
    must_succeed(short_run);
    CHECK(steps_in(runs.path("a")).size() == 5);
    // The start is short, and says what was asked and what came of it.
    CHECK(std::count(short_run.out.begin(), short_run.out.end(), '\n') <= 13);
    CHECK(contains(short_run.out, " --channels 32 "));
    CHECK_FALSE(contains(short_run.out, "lr-schedule"));
    CHECK(contains(short_run.out, "M parameters in fp32, "));
    CHECK(contains(short_run.out,
                   "recipe: gpt2, 5 steps; learning rate: cosine, 0 steps of warm-up, to 0.1 of the largest; gradients "
                   "clipped to a norm of 1.5\n  AdamW: learning rate 0.001, betas 0.9, 0.99, "));
    CHECK(contains(records_in(runs.path("a"), "start").at(0), "\"lr-schedule\":\"recipe\""));

    const std::string plan = " --plan --depth 4 --train-data '" + runs.path("data/train_*.bin'");
    const Finished planned = run(program("train_gpt") + plan);
    must_succeed(planned);
    CHECK(contains(planned.out, "\nvocabulary: that of " + runs.path("data/tokenizer.json") + "; --vocab-size"));
    const Finished asked = run(program("train_gpt") + plan + " --vocab-size 32768");
    must_succeed(asked);
    CHECK(contains(asked.out, "a vocabulary of 32768"));
    CHECK_FALSE(contains(asked.out, "\nvocabulary: "));
}

TEST_CASE("shards that are missing or damaged", "[train_errors]") {
    const TinyRuns runs;
    // For training as for validation. A token may be found late, but before a step has learned from it.
    for (const std::string kind : {"train", "val"}) {
        const std::string shard = runs.path("data/" + kind + "_000000.bin"), good = read_file(shard);
        const auto refused = [&](const std::vector<std::string>& parts) {
            INFO(kind);
            check_refused(runs.train("a", {{"val-every", "1"}}), parts);
            CHECK(checkpoint_steps(runs.path("a")).empty());
        };
        fs::remove(shard);
        refused({"no file matches '" + runs.path("data/" + kind + "_*.bin") + "'", "data/tokenize"});
        put_file(shard, "");
        refused({shard + " is empty", "data/tokenize"});
        put_file(shard, good.substr(0, 500));
        refused({shard + " has 500 bytes", "header of 1024 bytes", "data/tokenize"});
        put_file(shard, good.substr(0, good.size() - 1));
        refused({shard + " has ", "it was cut short", "data/tokenize"});
        put_file(shard, good);
        put_number(shard, 0, 20240521, 4);
        refused({shard + " is not a token shard", "20240521", "20240520", "data/tokenize"});
        put_file(shard, good);
        put_number(shard, 4, 3, 4);
        refused({shard + " has version 3", "expected 1"});
        put_file(shard, good);
        put_number(shard, 1024 + 2 * 40, 60, 2);
        refused({shard + ": token 40 has the id 60, outside the vocabulary of ", "prepare the data again"});
        put_file(shard, good);
    }
    must_succeed(runs.train("a"));
    // A folder that is not there has no tokenizer either, but that is not what the user must hear of.
    check_refused(runs.train("b", {{"train-data", runs.path("nowhere/train_*.bin")}}),
                  {"no file matches '" + runs.path("nowhere/train_*.bin") + "'"});
}

TEST_CASE("a shard with fewer tokens than one batch needs", "[train_errors]") {
    const TinyRuns runs;
    const std::string needed = std::to_string(200 * 16 + 1);
    check_refused(runs.train("a", {{"batch-size", "200"}, {"total-batch-size", "0"}}),
                  {runs.path("data/train_*.bin"), " one batch needs " + needed, "lower --batch-size or --seq-len"});
    CHECK_FALSE(fs::exists(runs.path("a")));
}

TEST_CASE("a checkpoint that is damaged, newer, or of another model", "[train_errors]") {
    const TinyRuns runs;
    must_succeed(runs.train("good", {{"steps", "6"}}));
    const std::string out = runs.path("a"), folder = step_folder(out, 6);
    // Refused by its name and as the newest of the run; and the run's folder is left as it is.
    const auto refused = [&](auto damage, const std::vector<std::string>& parts, const FlagMap& flags = {}) {
        fs::remove_all(out);
        fs::copy(runs.path("good"), out, fs::copy_options::recursive);
        damage(folder);
        const std::string log = read_file(out + "/log.jsonl");
        FlagMap named = flags, newest = flags;
        named["resume"] = folder;
        newest.insert({{"resume", "auto"}, {"out-dir", out}});
        for (const FlagMap& how : {named, newest}) check_refused(run(command_of(how)), parts);
        CHECK(read_file(out + "/log.jsonl") == log);
        CHECK(checkpoint_steps(out) == std::vector<int64_t>{6});
    };
    const auto cut = [](const std::string& name) {
        return
            [=](const std::string& path) { fs::resize_file(path + "/" + name, fs::file_size(path + "/" + name) / 2); };
    };
    const auto untouched = [](const std::string&) {};

    for (const std::string& name : std::vector<std::string>{"model.safetensors", "state.json", kTrainConfigFile,
                                                            shard_file(kOptimizerStem, 0, 1), "config.json"})
        refused(cut(name), {folder + ": " + name + " has ", "(cut short)"});
    refused(cut("manifest.json"), {folder + ": manifest.json is damaged or cut short"});
    refused([](const std::string& path) { fs::remove(path + "/model.safetensors"); },
            {folder + ": model.safetensors is missing"});
    refused(
        [](const std::string& path) {
            std::string content = read_file(path + "/model.safetensors");
            content[content.size() - 100] = char(content[content.size() - 100] ^ 1);
            put_file(path + "/model.safetensors", content);
        },
        {folder + ": model.safetensors: tensor transformer.ln_f.bias is damaged"});
    refused(
        [](const std::string& path) {
            std::string content = read_file(path + "/manifest.json");
            const std::string version = "\"format_version\": 2";
            put_file(path + "/manifest.json",
                     content.replace(content.find(version), version.size(), "\"format_version\": 3"));
        },
        {folder + ": it has format version 3, this program reads version 2; use a newer program"});

    refused(untouched, {folder + " is of another model", "2 layers, 2 heads, 32 channels", "64 channels"},
            {{"channels", "64"}});
    refused(untouched, {folder + " is of another model", "3 layers"}, {{"num-layers", "3"}});
    refused(untouched, {folder + " is of another model", "4 heads"}, {{"num-heads", "4"}});
    refused(untouched, {folder + " holds the state of --optimizer adamw", "--optimizer muon cannot go on"},
            {{"optimizer", "muon"}});
    refused(untouched, {"--seq-len 32 is above the 16 positions of the model in " + folder}, {{"seq-len", "32"}});

    // Nothing of this harms the run: shorter sequences are fine, and so is going on.
    must_succeed(runs.resume("good", {{"steps", "8"}, {"seq-len", "8"}}));
}

TEST_CASE("--resume of something that is no run", "[train_errors]") {
    const TinyRuns runs;
    put_file(runs.path("file"), "");
    for (const std::string name : {"nowhere", "data", "file"})
        check_refused(run(command_of({{"resume", runs.path(name)}})),
                      {"--resume " + runs.path(name) + ": there is no checkpoint", "give a run's folder"});
    put_file(runs.path("data/config.json"), "{}");
    check_refused(run(command_of({{"resume", runs.path("data")}})), {"a model of another program is for --init-from"});
    check_refused(run(command_of({{"resume", runs.path("step_00000010")}})),
                  {"step_00000010: no such checkpoint folder"});
}

TEST_CASE("an output folder that cannot be written to", "[train_errors]") {
    const TinyRuns runs;
    put_file(runs.path("file"), "");
    check_refused(runs.train("file/run"), {"cannot create the folder " + runs.path("file/run"), "Not a directory"});
    check_refused(runs.train("file"), {runs.path("file")});
    CHECK(read_file(runs.path("file")) == "");

    fs::create_directory(runs.path("locked"));
    fs::permissions(runs.path("locked"), fs::perms::owner_read | fs::perms::owner_exec);
    if (!can_write(runs.path("locked")))  // nothing is locked for root
        check_refused(runs.train("locked"), {runs.path("locked"), "Permission denied"});
}

TEST_CASE("a full disk costs the checkpoint that does not fit, and no other", "[train_errors]") {
    const TinyRuns runs;
    const auto check = [&](const std::string& out, const std::string& limit, const std::string& reason) {
        const Finished finished = run(limit + command_of({{"resume", "auto"}, {"out-dir", out}, {"steps", "12"}}));
        check_refused(finished, {"cannot write " + step_folder(out, 12) + ".tmp/model.safetensors: " + reason});
        CHECK(checkpoint_steps(out) == std::vector<int64_t>{6});
        CHECK(verify(step_folder(out, 6)).why == "");
        CHECK_FALSE(fs::exists(step_folder(out, 12) + ".tmp"));
    };
    must_succeed(runs.train("a", {{"steps", "6"}}));
    check(runs.path("a"), "ulimit -f 100; ",
          "File too large");  // 50 or 100 KiB, as the shell counts; the model has 110
    must_succeed(runs.resume("a", {{"steps", "12"}}));

    // A small disk of its own, where the tests may mount one: room for one checkpoint, which has 370 KiB.
    const std::string disk = runs.path("disk");
    fs::create_directory(disk);
    if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=480k") != 0) return;
    const Finished first = runs.train("disk/a", {{"steps", "6"}});
    if (first.exit_code == 0) check(disk + "/a", "", "No space left on device");
    umount2(disk.c_str(), MNT_DETACH);
    must_succeed(first);
}

TEST_CASE("flags that are unknown, bad or contradict each other", "[train_errors]") {
    const TinyRuns runs;
    const auto refused = [&](const FlagMap& flags, const std::vector<std::string>& parts) {
        check_refused(runs.train("a", flags), parts);
        CHECK_FALSE(fs::exists(runs.path("a")));
    };
    refused({{"batch-size", "-2"}}, {"--batch-size -2: expected auto or an integer from -1"});
    refused({{"batch-size", "auto"}, {"total-batch-size", "0"}},
            {"--batch-size auto divides --total-batch-size: give that, too"});
    refused({{"window-pattern", "SXL"}}, {"--window-pattern SXL: letter X is neither L (all tokens) nor S"});
    refused({{"num-kv-heads", "2"}, {"num-heads", "3"}, {"channels", "48"}},
            {"--num-kv-heads 2 does not divide --num-heads 3", "the nearest that do are 1 and 3"});
    refused({{"positions", "rotary"}, {"num-heads", "4"}, {"channels", "20"}},
            {"--positions rotary: heads of 5 channels, expected a multiple of 2", "--channels are 16 and 24"});
    refused({{"softcap-kind", "tanh"}, {"softcap", "0"}}, {"--softcap 0: expected more than 0, such as 15"});
    refused({{"softcap", "-1"}}, {"--softcap -1: expected a number of at least 0"});
    refused({{"qk-norm", "true"}}, {"--qk-norm needs --positions rotary"});
    refused({{"embedding-norm", "true"}}, {"--embedding-norm needs --positions rotary"});
    refused({{"biases", "maybe"}}, {"--biases maybe: expected one of preset, true, false"});
    refused({{"depth", "4"}, {"head-size", "8"}, {"aspect-ratio", "8"}}, {"--head-size 8", "the nearest is 16"});
    refused({{"depth", "2"},
             {"head-size", "16"},
             {"aspect-ratio", "16"},
             {"steps", "-1"},
             {"total-batch-size", "64"},
             {"target-param-data-ratio", "0.00001"}},
            {"--target-param-data-ratio 1e-05"});
    refused({{"document-token", "99"}}, {"--document-token 99: the vocabulary has the tokens 0 to"});
    refused({{"batch-size", "two"}}, {"--batch-size two: expected auto or an integer"});
    refused({{"batch-sise", "2"}}, {"unknown flag --batch-sise, did you mean --batch-size?"});
    refused({{"learning-rate", "-2"}}, {"--learning-rate -2: expected a number of at least -1"});
    refused({{"learning-rate", "-0.5"}}, {"--learning-rate -0.5: expected at least 0, or -1 for the recipe's"});
    refused({{"learning-rate", "0"}}, {"--learning-rate 0 learns nothing"});
    refused({{"learning-rate", "nan"}}, {"--learning-rate nan: expected a number"});
    refused({{"lr-schedule", "step"}},
            {"--lr-schedule step: expected one of recipe, cosine, linear, constant, wsd, trapezoid"});
    refused({{"keep", "0"}}, {"--keep 0: expected an integer of at least 1"});
    refused({{"lr-schedule", "wsd"}, {"warmup-steps", "17"}}, {"--warmup-steps 17 and the last --decay-fraction 0.2"});
    refused({{"warmup-steps", "21"}}, {"--warmup-steps 21 is more than --steps 20", "lower one or raise the other"});
    refused({{"num-heads", "3"}}, {"--channels 32 is not a multiple of --num-heads 3: the nearest are 30 and 33"});
    refused({{"total-batch-size", "100"}},
            {"--total-batch-size 100 is not a multiple of --batch-size 2 x --seq-len 16 = 32 tokens",
             "the nearest are 96 and 128"});
    refused({{"total-batch-size", "31"}}, {"the nearest is 32"});
    refused({{"model", "gpt2-124M"}, {"seq-len", "2048"}, {"num-heads", "0"}, {"channels", "0"}},
            {"--seq-len 2048 is above the 1024 positions of --model gpt2-124M"});
    refused({{"vocab-size", "20"}}, {"symbols, but the model a vocabulary of 20: raise --vocab-size"});
    refused({{"prompt", ""}, {"sample-tokens", "5"}}, {"--prompt is empty", "give --prompt or --sample-tokens 0"});
    refused({{"prompt", "~"}, {"sample-tokens", "5"}}, {"--prompt: '~'"});
    refused({{"tokenizer", runs.path("nowhere.json")}}, {runs.path("nowhere.json"), "No such file"});
    refused({{"config", runs.path("nowhere.ini")}}, {runs.path("nowhere.ini"), "No such file"});
    check_refused(run(command_of(runs.flags("a")) + " more"), {"unexpected argument 'more'"});
    check_refused(run(command_of(runs.flags("a")) + " --steps 3"), {"--steps is given 2 times"});
    refused({{"noise-scale", "true"}}, {"--noise-scale compares each rank's gradient", "give --virtual-ranks 2"});
    fs::remove(runs.path("data/tokenizer.json"));
    refused({}, {"no tokenizer.json", "give --vocab-size"});
}

TEST_CASE("a device or type that is not there", "[train_errors]") {
    const TinyRuns runs;
    check_refused(runs.train("a", {{"device", "cuda"}}),
                  {"--device cuda: this build of Anvil has no CUDA", "make info"});
    check_refused(runs.train("a", {{"dtype", "fp16"}}), {"--dtype", "fp16", "bf16"});
    CHECK_FALSE(fs::exists(runs.path("a")));
}
