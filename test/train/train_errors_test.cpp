// Bad input: exit code 2, one line that tells what to do, and no files that a later run would trust.
#include <sys/mount.h>
#include <unistd.h>
#include <cmath>
#include <fstream>
#include "llmc/base/hash.h"         // xxh3
#include "llmc/base/host_limits.h"  // host_memory_bytes
#include "llmc/commands/backend.h"  // crowd_warning, CpuShare
#include "llmc/io/manifest.h"       // Manifest
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
                   "clipped to a norm of 1.5\n  AdamW: learning rate 0.001, betas 0.9, 0.95, "));
    CHECK(contains(records_in(runs.path("a"), "start").at(0), "\"lr-schedule\":\"recipe\""));

    const std::string plan = " plan --depth 4 --train-data '" + runs.path("data/train_*.bin'");
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
    // For training as for validation. A token may be found after some steps, but before one has learned from it.
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
        check_refused(runs.train(kind, {{"val-every", "1"}}),
                      {shard + ": token 40 has the id 60, outside the vocabulary of ", "prepare the data again"});
        put_file(shard, good);
    }
    must_succeed(runs.train("a", {{"val-every", "1"}}));
    // What had been learned by then is not lost. The damaged shard may count as other data, which are read from their
    // start: "a token that goes bad during a run" has the bits.
    for (const std::string kind : {"train", "val"}) {
        const std::vector<StepRecord> learned = steps_in(runs.path(kind));
        INFO(kind << ", after " << learned.size() << " steps");
        if (learned.empty()) continue;
        CHECK(checkpoint_steps(runs.path(kind)) == std::vector<int64_t>{learned.back().step});
        must_succeed(runs.resume(kind));
    }
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
    // One sequence fits into each shard but the last, which is left out.
    must_succeed(run(program("data/tokenize") + " --stories 2000 --tokenizer char --shard-tokens 400 --out " +
                     runs.path("short")));
    const Finished some = runs.train("b", {{"train-data", runs.path("short/train_*.bin")},
                                           {"val-data", ""},
                                           {"seq-len", "399"},
                                           {"batch-size", "1"},
                                           {"total-batch-size", "0"},
                                           {"steps", "1"},
                                           {"warmup-steps", "0"}});
    must_succeed(some);
    CHECK(contains(some.out, " tokens are not read: their shards are shorter than --seq-len + 1\n"));
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

    for (const std::string& name : std::vector<std::string>{"model.safetensors", "state.json", kRunFlagsFile,
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
    refused(untouched, {folder + " holds the state of --optimizer adamw", "--optimizer muon cannot continue"},
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

TEST_CASE("a shard that is cut short during a run costs no step", "[train_errors]") {
    const TinyRuns runs(20000);
    const std::string out = runs.path("a"), shard = runs.path("data/train_000000.bin"), good = read_file(shard);
    const Started one(command_of(runs.flags("a", {{"steps", "1000000"}})), out);
    while (!fs::exists(out + "/log.jsonl") || steps_in(out).size() < 3) usleep(1000);
    REQUIRE(truncate(shard.c_str(), 5000) == 0);
    check_refused(one.finish(), {shard + " was cut short", "put the whole file back"});
    const std::string last = std::to_string(steps_in(out).back().step);
    CHECK(checkpoint_steps(out) == std::vector<int64_t>{std::stoll(last)});
    put_file(shard, good);
    const Finished resumed = runs.resume("a", {{"steps", std::to_string(std::stoll(last) + 2)}});
    must_succeed(resumed);
    CHECK(resumed.err == "");
}

TEST_CASE("a token that no step would read soon is found all the same", "[train_errors]") {
    // Behind the last whole window, and beyond what is validated: without a look at all of them this would end well.
    const TinyRuns runs;
    FlagMap flags = {{"steps", "3000"}, {"total-batch-size", "64"}, {"shuffle", "false"}, {"val-tokens", "32"}};
    for (const std::string kind : {"train", "val"}) {
        const std::string shard = runs.path("data/" + kind + "_000000.bin"), good = read_file(shard);
        const int64_t tokens = (int64_t(good.size()) - kShardHeaderBytes) / 2, windows = (tokens - 1) / 16;
        std::string more = good.substr(0, size_t(kShardHeaderBytes + (windows * 16 + 1) * 2)) + std::string("\0\0", 2) +
                           std::string("\xff\xff", 2);
        const auto now = int32_t((int64_t(more.size()) - kShardHeaderBytes) / 2);
        std::memcpy(more.data() + 8, &now, sizeof now);
        put_file(shard, more);
        const std::string token = shard + ": token " + std::to_string(now - 1) + " has the id 65535, outside";
        for (const std::string ranks : {"0", "2"}) {
            const std::string out = kind + ranks;
            flags["virtual-ranks"] = ranks;
            check_refused(runs.train(out, flags), {token});
            const std::vector<StepRecord> learned = steps_in(runs.path(out));
            const std::vector<int64_t> saved = checkpoint_steps(runs.path(out));
            CHECK((learned.empty() ? saved.empty() : saved == std::vector<int64_t>{learned.back().step}));
        }
        put_file(shard, good);
    }
}

TEST_CASE("a token that goes bad during a run costs no step", "[train_errors]") {
    const TinyRuns runs(4000);
    const std::string shard = runs.path("data/train_000000.bin"), good = read_file(shard);
    // In order, two windows to each of two ranks: this one is rank 1's, some steps from now, or in the next epoch.
    const int64_t at = (4 * 48 + 2) * 16 + 3, windows = ((int64_t(good.size()) - kShardHeaderBytes) / 2 - 1) / 16;
    const size_t place = size_t(kShardHeaderBytes + 2 * at);
    const FlagMap flags = {
        {"total-batch-size", "64"}, {"shuffle", "false"}, {"lr-schedule", "constant"}, {"val-data", ""}};
    for (const std::string ranks : {"0", "2"}) {
        const auto flags_of = [&](const std::string& out, int64_t steps) {
            FlagMap all = flags;
            all["virtual-ranks"] = ranks, all["steps"] = std::to_string(steps);
            return runs.flags(out + ranks, all);
        };
        const std::string out = runs.path("a" + ranks);
        const Started one(command_of(flags_of("a", 1000000)), out);
        while (!fs::exists(out + "/log.jsonl") || steps_in(out).size() < 3) usleep(1000);
        overwrite(shard, place, std::string("\x3c\0", 2));
        check_refused(one.finish(), {shard + ": token " + std::to_string(at) + " has the id 60, outside"});
        overwrite(shard, place, good.substr(place, 2));
        // Its state is that after the last step, though the loader of a rank with good data was ahead.
        const int64_t last = steps_in(out).back().step;
        REQUIRE(checkpoint_steps(out) == std::vector<int64_t>{last});
        const LoaderState state = state_in(step_folder(out, last)).data;
        CHECK(int64_t(state.epoch) * windows + int64_t(state.position) == 4 * last);
        must_succeed(runs.resume("a" + ranks, {{"steps", std::to_string(last + 2)}, {"virtual-ranks", ranks}}));
        must_succeed(run(command_of(flags_of("whole", last + 2))));
        CHECK(difference(step_folder(out, last + 2), step_folder(runs.path("whole" + ranks), last + 2)) == "");
    }
}

TEST_CASE("a plan is held against the memory of this host", "[train_errors]") {
    const size_t limit = host_memory_bytes();
    REQUIRE(limit > 0);
    // Of 4096 tokens, the most that `auto` takes on a CPU, these layers need more than there is, and of a quarter less.
    const auto layers = int64_t(1.4 * double(limit) / 470e6);
    if (layers > 1000) return;
    const TinyRuns runs;
    const Finished plan = runs.train("a", {{"dry-run", "true"},
                                           {"num-layers", std::to_string(std::max<int64_t>(layers, 2))},
                                           {"channels", "1024"},
                                           {"num-heads", "16"},
                                           {"batch-size", "auto"},
                                           {"total-batch-size", "4096"}});
    must_succeed(plan);
    INFO(plan.out);
    const size_t total = plan.out.find("  total ");
    REQUIRE(total != std::string::npos);
    const std::string line = plan.out.substr(total), free = format("of %.1f that are free", double(limit) / (1 << 20));
    CHECK(contains(line, free));
    CHECK(std::stod(line.substr(8)) * (1 << 20) <= double(limit));
    CHECK_FALSE(contains(plan.out, " of 4096 rows at a time"));
    CHECK_FALSE(fs::exists(runs.path("a")));
}

TEST_CASE("standard files that are closed, full or broken cost a run nothing", "[train_errors]") {
    const TinyRuns runs;
    const FlagMap talks = {{"steps", "8"}, {"checkpoint-every", "1"}, {"print-every", "1"}, {"keep", "20"}};
    must_succeed(runs.train("a", talks));
    // As `command <&- >&- 2>&- &` starts a daemon: no file that is opened later may get their numbers.
    REQUIRE(run("{ " + command_of(runs.flags("closed", talks)) + "; } <&- >&- 2>&-").exit_code == 0);
    for (int64_t step = 1; step <= 8; step++)
        CHECK(difference(step_folder(runs.path("closed"), step), step_folder(runs.path("a"), step)) == "");
    CHECK(find_checkpoint(runs.path("closed")).step == 8);
    const std::string log = read_file(runs.path("closed/log.jsonl"));
    for (size_t begin = 0; begin < log.size(); begin = log.find('\n', begin) + 1) CHECK(log[begin] == '{');
    REQUIRE(run("{ " + program("data/tokenize") + " --stories 2000 --tokenizer char --out " + runs.path("again") +
                "; } <&- >&- 2>&-")
                .exit_code == 0);
    for (const std::string name : {"train_000000.bin", "val_000000.bin", "tokenizer.json"})
        CHECK(read_file(runs.path("again/" + name)) == read_file(runs.path("data/" + name)));

    // The reader of the output is gone, as with `| head -1`.
    const std::string broken = "mkfifo " + runs.path("pipe") + "; exec 3<>" + runs.path("pipe") + " 4>" +
                               runs.path("pipe") + " 3<&-; rm " + runs.path("pipe") + "; ";
    const std::string generate =
        command_of({{"resume", runs.path("a")}, {"prompt", "a"}, {"sample-tokens", "5"}, {"threads", "1"}}, "generate");
    const std::string evaluate = command_of({{"resume", runs.path("a")}, {"threads", "1"}}, "eval") + " --summary";
    const std::vector<std::string> lost = {"standard output"};
    for (const std::string to : {">&4", ">/dev/full"}) {
        const std::string out = to == ">&4" ? "broken" : "full";
        const Finished finished = run(broken + command_of(runs.flags(out, talks)) + " --summary " + to);
        must_succeed(finished);
        CHECK(finished.err ==
              "warning: standard output could not be written, and some of it is lost; log.jsonl has all "
              "steps\n");
        CHECK(records_in(runs.path(out), "end").size() == 1);
        CHECK(difference(step_folder(runs.path(out), 8), step_folder(runs.path("a"), 8)) == "");
    }
    check_refused(run(command_of(runs.flags("none", {}), "doctor") + " >/dev/full"), lost);
    check_refused(run(program("data/tokenize") + " --help >/dev/full"), lost);
    // What is asked for its output alone ends with that: as programs do, or with an error.
    for (const std::string& command : {generate, evaluate}) {
        check_refused(run(command + " >/dev/full"), lost);
        const Finished quiet = run(broken + "env --default-signal=PIPE " + command + " >&4");
        CHECK(quiet.exit_code == 128 + SIGPIPE);
        CHECK_FALSE(contains(quiet.err, "error"));
    }
}

TEST_CASE("a state or weights that no run can have come to", "[train_errors]") {
    const TinyRuns runs;
    must_succeed(runs.train("a", {{"steps", "2"}, {"warmup-steps", "0"}}));
    const std::string folder = step_folder(runs.path("a"), 2), path = folder + "/state.json";
    // With its checksum made right again.
    const auto put_state = [&](const std::string& name, const std::string& content) {
        std::vector<FileRecord> records;
        put_file(folder + "/" + name, content);
        for (const auto& entry : fs::directory_iterator(folder)) {
            const std::string file = entry.path().filename(), bytes = read_file(entry.path());
            if (file != "manifest.json") records.push_back({file, bytes.size(), xxh3(bytes.data(), bytes.size())});
        }
        put_file(folder + "/manifest.json", to_json(Manifest{2, records}));
    };
    const RunState good = state_in(folder);
    const auto refused = [&](auto RunState::*field, auto value, const std::vector<std::string>& parts) {
        RunState state = good;
        state.*field = value;
        put_state("state.json", to_json(state.fields()));
        check_refused(runs.resume("a", {{"steps", "4"}}), parts);
    };
    refused(&RunState::step, int64_t(3), {folder + ": state.json is of step 3, and manifest.json of step 2"});
    refused(&RunState::step, int64_t(1) << 62, {path + ": step is 4611686018427387904: expected 0 to "});
    refused(&RunState::updates, int64_t(-1), {path + ": updates is -1: expected 0 to 2"});
    refused(&RunState::updates, INT64_MAX, {path + ": updates is 9223372036854775807: expected 0 to 2"});
    refused(&RunState::tokens, INT64_MAX, {path + ": tokens is 9223372036854775807: expected 0 to "});
    refused(&RunState::skipped_in_a_row, int64_t(-1), {path + ": skipped_in_a_row is -1"});
    refused(&RunState::training_s, -1.0, {path + ": training_s is -1"});
    RunState state = good;
    put_state("state.json", to_json(state.fields()));

    // The last weight: NaN.
    std::string model = read_file(folder + "/model.safetensors");
    const float nan = NAN;
    model.replace(model.size() - 4, 4, reinterpret_cast<const char*>(&nan), 4);
    put_state("model.safetensors", model);
    const std::vector<std::string> ruined = {" has values that are not finite", "take an earlier checkpoint"};
    const FlagMap from = {{"init-from", folder}};
    const auto with = [&](const std::string& name, const FlagMap& more) {
        FlagMap all = from;
        all.insert(more.begin(), more.end());
        return run(command_of(all, name));
    };
    check_refused(with("generate", {{"prompt", "a"}, {"dtype", "fp32"}, {"threads", "1"}}), ruined);
    check_refused(with("export", {{"out-dir", runs.path("hf")}}), ruined);
    CHECK_FALSE(fs::exists(runs.path("hf")));
    FlagMap none = runs.flags("b", from);
    for (const char* name : {"num-layers", "num-heads", "channels"}) none.erase(name);
    none["steps"] = "0", none["warmup-steps"] = "0";
    check_refused(run(command_of(none)), ruined);
    CHECK(checkpoint_steps(runs.path("b")).empty());
}

TEST_CASE("wrong flags of a model are known before products are measured", "[train_errors]") {
    const TinyRuns runs;
    check_refused(run(command_of(runs.flags("a", {{"dtype", "auto"}, {"num-heads", "3"}}))), {"--num-heads 3: "});
}

TEST_CASE("what OpenMP's variables ask for must be possible", "[train_errors]") {
    const TinyRuns runs;
    const std::string command = command_of(runs.flags("a", {{"threads", "0"}}));
    for (const char* absurd : {"100000", "2000000000", "99999999999"})
        check_refused(run("env OMP_NUM_THREADS=" + std::string(absurd) + " " + command), {"expected 1 to 4096"});
    for (const char* tiny : {"16", "64k", "65536B"})
        check_refused(run("env OMP_STACKSIZE=" + std::string(tiny) + " " + command),
                      {std::string("OMP_STACKSIZE=") + tiny, "at least 256k"});
    check_refused(run("ulimit -s 64; " + command), {"the stack is limited to 64 KiB", "ulimit -s 8192"});
    CHECK(crowd_warning(nullptr, 2) == "");
    CHECK(crowd_warning("4", 2) == "");
    CHECK(contains(crowd_warning("5", 2), "OMP_NUM_THREADS=5, and this process may use 2 cores: "));
    CHECK(contains(crowd_warning("128", 1), "1 core: threads wait for each other"));
    CHECK(contains(crowd_warning("128", 2), "set it to 2"));
}

TEST_CASE("a rank's threads are its share of the cores, of the quota, and what OpenMP allows", "[train_errors]") {
    const auto of = [](CpuShare share) { return share.threads(); };
    CHECK(of({.cores = 64, .places = 64}) == 64);
    CHECK(of({.cores = 64, .quota = 2.5, .places = 64}) == 2);
    CHECK(of({.cores = 64, .quota = 0.3, .places = 64}) == 1);
    CHECK(of({.cores = 0.25, .processes = 4, .places = 1}) == 1);
    CHECK(of({.cores = 8, .places = 4}) == 4);  // OMP_PLACES names four
    CHECK(of({.cores = 8, .places = 8, .limit = 3}) == 3);
    CHECK(of({.cores = 8, .quota = 2, .is_asked = true, .asked = 6, .places = 8, .limit = 5}) == 5);
    CHECK(CpuShare{.cores = 64, .quota = 2.5, .places = 64}.most() == 2);
    CHECK(CpuShare{.cores = 32, .quota = 2, .processes = 2, .places = 64}.quota_line(64) ==
          "CPU quota of this container or job: 4 of 64 cores for 2 ranks\n");
    CHECK(CpuShare{.cores = 2, .quota = 2, .places = 2}.quota_line(64) == "");

    const std::vector<int> four = {0, 1, 2, 3}, one = {5};
    CHECK(CpuShare{.cores = 4, .places = 4, .is_bound = true}.warnings(four, 4) == "");
    CHECK(CpuShare{.cores = 4, .processes = 2, .places = 4, .is_bound = true}.warnings(four, 8) == "");
    CHECK(CpuShare{.cores = 2, .processes = 2, .places = 4}.warnings(four, 4) == "");
    CHECK(contains(CpuShare{.cores = 2, .processes = 2, .places = 4, .is_bound = true}.warnings(four, 4),
                   "warning: OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY would bind the threads of all 2 ranks of "
                   "this host to the same cores (0-3)"));
    CHECK(contains(CpuShare{.cores = 0.5, .processes = 2}.warnings(one, 4), "may use core 5 alone, of 4: "));
    CHECK(CpuShare{.cores = 0.5, .processes = 2}.warnings(one, 1) == "");  // the host has no other
}

// libgomp binds the main thread before main(). Neither the program nor what it starts may be left with one core.
TEST_CASE("OMP_PROC_BIND and the like cost no core, and the program keeps its name", "[train_errors]") {
    const TinyRuns runs;
    const std::string command = command_of(runs.flags("a", {{"threads", "0"}, {"steps", "0"}}));
    const auto threads = [&](const std::string& variables, const std::string& more = "") {
        std::filesystem::remove_all(runs.path("a"));
        const Finished finished = run("env -u GOMP_SPINCOUNT -u OMP_NUM_THREADS " + variables + " " + command + more);
        must_succeed(finished);
        const size_t at = finished.out.find("device: cpu, ");
        REQUIRE(at != std::string::npos);
        return std::stoi(finished.out.substr(at + 13));
    };
    const int usual = threads("");
    for (const char* variable : {"OMP_PROC_BIND=true", "OMP_PROC_BIND=close", "OMP_PLACES=threads"})
        CHECK(threads(variable) == usual);
    CHECK(threads("OMP_THREAD_LIMIT=1") == 1);
    CHECK(threads("OMP_PROC_BIND=true", " --supervise") == usual);

    std::filesystem::remove_all(runs.path("a"));
    const Started long_run("env -u GOMP_SPINCOUNT OMP_PROC_BIND=true " +
                               command_of(runs.flags("a", {{"steps", "100000"}, {"supervise", "true"}})),
                           runs.path("long"));
    for (int i = 0; i < 6000 && !std::filesystem::exists(runs.path("a/log.jsonl")); i++) usleep(10000);
    std::string name;  // of which stat() tells no size
    std::getline(std::ifstream("/proc/" + std::to_string(long_run.pid) + "/comm"), name);
    CHECK(name == "train_gpt");
    const Finished finished = long_run.finish(SIGTERM);
    CHECK(finished.exit_code == 0);
}

TEST_CASE("an output folder that cannot be written to", "[train_errors]") {
    const TinyRuns runs;
    put_file(runs.path("file"), "");
    check_refused(runs.train("file/run"), {"cannot create the folder " + runs.path("file/run"), "Not a directory"});
    check_refused(runs.train("file"), {runs.path("file")});
    CHECK(read_file(runs.path("file")) == "");

    // Found before the work, not when that step is saved.
    for (const std::string name : {"step_00000020", "step_00000200.tmp"}) {
        fs::create_directory(runs.path("taken"));
        put_file(runs.path("taken/" + name), "");
        check_refused(runs.train("taken"), {runs.path("taken/" + name) + " is in the way", "move it"});
        CHECK_FALSE(fs::exists(runs.path("taken/log.jsonl")));
        fs::remove_all(runs.path("taken"));
    }

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
    refused({{"batch-size", "-2"}}, {"--batch-size -2: expected default, auto or an integer from 1"});
    refused({{"batch-size", "auto"}, {"total-batch-size", "0"}},
            {"--batch-size auto divides --total-batch-size: give that, too"});
    refused({{"window-pattern", "SXL"}}, {"window-pattern = SXL: letter X is neither L (all tokens) nor S"});
    refused({{"num-kv-heads", "2"}, {"num-heads", "3"}, {"channels", "48"}},
            {"--num-kv-heads 2 does not divide --num-heads 3", "the nearest that do are 1 and 3"});
    refused({{"positions", "rotary"}, {"num-heads", "4"}, {"channels", "20"}},
            {"positions = rotary: heads of 5 channels, expected a multiple of 2", "--channels are 16 and 24"});
    refused({{"softcap-kind", "tanh"}, {"softcap", "0"}}, {"softcap = 0: expected at least 1e-06, such as 15"});
    refused({{"softcap", "-1"}}, {"softcap = -1: expected a number from 0 to 1000000"});
    refused({{"qk-norm", "true"}}, {"qk-norm needs positions = rotary"});
    refused({{"embedding-norm", "true"}}, {"embedding-norm needs positions = rotary"});
    refused({{"qkv-biases", "true"}}, {"biases = true has them already"});
    refused({{"rotary-pattern", "RN"}}, {"rotary-pattern = RN: layers without a rotation need positions = rotary"});
    refused({{"rotary-pattern", "RX"}}, {"rotary-pattern = RX: expected letters R (rotates) and N"});
    refused({{"positions", "rotary"}, {"qk-norm", "true"}, {"rotary-pattern", "RN"}}, {"neither qk-norm"});
    refused({{"positions", "rotary"}, {"qk-norm", "true"}, {"qk-rmsnorm", "true"}}, {"leave one out"});
    refused({{"rotary-factor", "8"}}, {"rotary-factor = 8: it stretches positions = rotary"});
    refused({{"positions", "rotary"}, {"rotary-factor", "8"}, {"rotary-low-turns", "4"}},
            {"rotary-low-turns = 4: expected fewer than rotary-high-turns = 4"});
    refused({{"head-channels", "7"}, {"positions", "rotary"}}, {"head-channels 7", "the nearest are 6 and 8"});
    refused({{"head-channels", "8"}, {"depth", "4"}}, {"with --depth it is head-size"});
    refused({{"mup-base-width", "64"}, {"depth", "4"}}, {"mup-base-width = 64 with --depth"});
    refused({{"mup-base-width", "64"}, {"norm", "plain-rmsnorm"}}, {"mup-base-width = 64: with tied-head = true"});
    refused({{"biases", "maybe"}}, {"biases = maybe: expected one of preset, true, false"});
    refused({{"depth", "4"}, {"head-size", "8"}, {"aspect-ratio", "8"}}, {"head-size = 8", "the nearest is 16"});
    refused({{"depth", "2"},
             {"head-size", "16"},
             {"aspect-ratio", "16"},
             {"total-batch-size", "64"},
             {"target-param-data-ratio", "0.00001"}},
            {"--target-param-data-ratio 1e-05"});
    refused({{"document-token", "99"}}, {"--document-token 99: the vocabulary has the tokens 0 to"});
    refused({{"batch-size", "two"}}, {"--batch-size two: expected default, auto or an integer"});
    refused({{"batch-sise", "2"}}, {"unknown flag --batch-sise, did you mean --batch-size?"});
    refused({{"learning-rate", "-2"}}, {"--learning-rate -2: expected recipe or a number of at least 0"});
    refused({{"learning-rate", "-0.5"}}, {"--learning-rate -0.5: expected recipe or a number of at least 0"});
    refused({{"weight-decay", "-0.5"}}, {"--weight-decay -0.5: expected recipe or a number of at least 0"});
    refused({{"learning-rate", "0"}}, {"--learning-rate 0 learns nothing"});
    refused({{"learning-rate", "nan"}}, {"--learning-rate nan: expected recipe or a number of at least 0"});
    refused({{"lr-schedule", "step"}},
            {"--lr-schedule step: expected one of recipe, cosine, linear, constant, wsd, trapezoid, powercool"});
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
    refused({{"train-data", runs.path("data")}},
            {runs.path("data") + " is a folder", runs.path("data") + "/train_*.bin'"});
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
