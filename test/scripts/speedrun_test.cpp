// scripts/speedrun.sh, scripts/run.sh and data/fineweb.sh: their calls of train_gpt, and that they do not repeat
// finished work after an interruption. Downloads and GPU machines are fake shell scripts.
#include <unistd.h>
#include <algorithm>
#include <filesystem>
#include "test/comma_locale.h"
#include "test/program.h"  // Started, records_in
#include "test/testing.h"

namespace {

namespace fs = std::filesystem;

// The folder of this build's programs, and the environment of a script that uses them.
std::string programs() {
    program("data/tokenize");
    const std::string train = fs::absolute(program("train_gpt"));
    return train.substr(0, train.size() - std::string("train_gpt").size());
}
std::string with_programs() { return "env ANVIL_PROGRAMS=" + programs() + " "; }

// A machine with eight GPUs on which nothing is started but told, and a network that has three files.
struct FakeMachine {
    ScratchFolder folder;

    FakeMachine() {
        for (const char* name : {"bin", "remote", "data"}) fs::create_directories(folder / name);
        script("nvidia-smi", "for i in 0 1 2 3 4 5 6 7; do echo \"GPU $i: NVIDIA H100\"; done");
        script("mpirun", "echo mpirun \"$@\"");
        // It sends all but the last 100 bytes to who does not ask for the end of a file alone.
        script("curl", "echo \"$*\" >>" + folder / "fetched" + R"(
            resume=
            while [ $# -gt 1 ]; do [ "$1" != -o ] || file=$2; [ "$1$2" != -C- ] || resume=1; shift; done
            remote=)" + folder / "remote" +
                           R"(/${1##*/}
            [ -f "$remote" ] || exit 22
            have=0; [ -z "$resume" ] || [ ! -f "$file" ] || have=$(stat -c %s "$file")
            size=$(stat -c %s "$remote")
            [ $have = 0 ] || { tail -c +$((have + 1)) "$remote" >>"$file"; exit; }
            head -c $((size - 100)) "$remote" >"$file"; exit 18)");
        for (const char* name : {"val_000000", "train_000001", "train_000002"}) shard(name, 500);
    }

    void script(const std::string& name, const std::string& text) {
        put_file(folder / ("bin/" + name), "#!/bin/sh\n" + text + "\n");
        fs::permissions(folder / ("bin/" + name), fs::perms::owner_all);
    }
    std::string remote(const std::string& name) const { return folder / ("remote/fineweb_" + name + ".bin"); }
    void shard(const std::string& name, int32_t tokens, int32_t bytes_missing = 0) {
        const int32_t header[3] = {20240520, 1, tokens};
        std::string content(size_t(1024 + 2 * tokens - bytes_missing), 'x');
        content.replace(0, sizeof(header), reinterpret_cast<const char*>(header), sizeof(header));
        put_file(remote(name), content);
    }
    std::string here(const std::string& name) const { return folder / ("data/fineweb_" + name + ".bin"); }
    std::string fetched() const { return fs::exists(folder / "fetched") ? read_file(folder / "fetched") : ""; }

    Finished on(const std::string& command, const std::string& environment = "") const {
        return run(comma_locale() + "env -u ANVIL_MIRROR PATH=" + folder / "bin:$PATH " + environment + " " + command);
    }
    Finished fineweb(int shards, const std::string& environment = "") const {
        return on("data/fineweb.sh --shards " + std::to_string(shards) + " --out " + folder / "data", environment);
    }
};

}  // namespace

// [plain]: plans of large models, and the sanitizers watch others in test/plan/plan_test.cpp.
TEST_CASE("run.sh's table says what `plan` says", "[speedrun][plain]") {
    const Finished checked = run(with_programs() + "scripts/run.sh --check");
    INFO(checked.out << checked.err);
    CHECK(checked.exit_code == 0);
}

TEST_CASE("run --check finds what `plan` does not say, and --renew corrects it", "[speedrun][plain][slow]") {
    const ScratchFolder repository;
    fs::create_directory(repository / "scripts");
    fs::copy("scripts/run.sh", repository / "scripts/run.sh");
    const std::string table = read_file("scripts/run.sh");
    std::string wrong = table;
    put_file(repository / "scripts/run.sh", wrong.insert(table.find("#   d20 ") + 17, "9"));
    const std::string command = with_programs() + repository.path + "/scripts/run.sh ";
    const Finished checked = run(command + "--check");
    CHECK(checked.exit_code == 1);
    CHECK(contains(checked.out, "d20 is not what"));
    CHECK_FALSE(contains(checked.out, "d24 is not what"));
    CHECK(run(command + "--renew").exit_code == 0);  // it is rewritten while it runs
    CHECK(read_file(repository / "scripts/run.sh") == table);
}

TEST_CASE("speedrun --dry-run prints the plan of each target, and fetches nothing", "[speedrun][plain]") {
    const FakeMachine machine;
    const auto plan = [&](const std::string& flags) {
        const Finished done =
            machine.on(with_programs() + "scripts/speedrun.sh --dry-run --out " + machine.folder / "out" + " " + flags);
        INFO(done.out << done.err);
        CHECK(done.exit_code == 0);
        for (const char* part : {"parameters", "fits", "FLOP", "tokens/s", " USD"}) CHECK(contains(done.out, part));
        CHECK(machine.fetched() == "");
        CHECK_FALSE(fs::exists(machine.folder / "out"));
        return done.out;
    };
    const std::string stage_a = plan("");
    CHECK(contains(stage_a, "12 layers, 6 heads, 768 channels"));
    CHECK(contains(stage_a, "64 sequences x 1024 tokens x 1 micro-batch x 8 ranks = 524288 tokens per step"));
    CHECK(contains(stage_a, "3250 steps, 1.704 G tokens"));
    CHECK(contains(stage_a, "expected validation loss: 3.279"));
    CHECK(contains(plan("--gpus 1"), "x 8 micro-batches x 1 rank"));
    CHECK(contains(plan("--target gpt2-124M"), "19560 steps, 10.26 G tokens"));
    const std::string d12 = plan("--target=d12 --gpus=4");
    CHECK(contains(d12, "64 sequences x 2048 tokens x 1 micro-batch x 4 ranks"));
    CHECK(contains(d12, "the tokens are GPT-2's"));
    CHECK_FALSE(contains(plan("--target d12 --text books"), "the tokens are GPT-2's"));
    CHECK(contains(plan("--smoke"), "2 layers, 2 heads, 64 channels"));
    CHECK(contains(plan("--smoke --target gpt2-grade"), "2 layers, 2 heads, 64 channels"));
    // nanochat's own numbers.
    const std::string d24 = plan("--target gpt2-grade");
    CHECK(contains(d24, "parameters: 1384122122 in all"));
    CHECK(contains(d24, "after 99 minutes (nanochat's README"));
    CHECK_FALSE(contains(plan("--target gpt2-grade --text books"), "nanochat's README"));
    CHECK(contains(d24, "16 sequences x 2048 tokens x 4 micro-batches x 8 ranks = 1048576 tokens per step"));
    CHECK(contains(d24, "steps: 5568"));
    CHECK(contains(d24, "weights in fp8"));
    CHECK_FALSE(contains(plan("--target gpt2-grade -- --dtype bf16"), "fp8"));
    // doc/speedrun.md compares the time that the plan predicts with nanochat's: "92.3 min (86.8 min to 100.2 min)".
    const std::string page = read_file("doc/speedrun.md");
    const auto minutes = [](const std::string& text) {
        const size_t from = text.find("EFLOP, ") + 7;
        return text.substr(from, text.find(')', from) + 1 - from);
    };
    CHECK(contains(page, minutes(d24)));
    const std::string slower = minutes(plan("--target gpt2-grade -- --fp8-scaling current"));
    CHECK(contains(page, slower.substr(0, slower.find(" ("))));
}

TEST_CASE("speedrun and run refuse what they do not know", "[speedrun]") {
    FakeMachine machine;
    const auto refused = [&](const std::string& command, const std::string& why) {
        const Finished done = machine.on(with_programs() + command);
        INFO(command << "\n" << done.out << done.err);
        CHECK(done.exit_code == 2);
        CHECK(done.err.starts_with("error: "));
        CHECK(contains(done.err, why));
    };
    refused("scripts/speedrun.sh --target gpt3",
            "--target 'gpt3': expected stage-a, record, gpt2-124M, d12 or gpt2-grade");
    refused("scripts/speedrun.sh --target", "--target ''");
    refused("scripts/speedrun.sh --gpus none", "--gpus 'none'");
    refused("scripts/speedrun.sh --gpus 0", "--gpus '0'");
    refused("scripts/speedrun.sh --fast", "--fast: expected --target");
    refused("scripts/speedrun.sh --text books", "--text: expected --target d12 or gpt2-grade with it");
    refused("scripts/run.sh gpt2-grade", "scripts/speedrun.sh --target gpt2-grade makes its tokens");
    refused("scripts/run.sh", "'': expected one of gpt2-124M");
    refused("scripts/run.sh d13", "'d13': expected one of");
    refused("scripts/run.sh d12 --gpus x", "--gpus 'x'");
    refused("scripts/run.sh d12 --dry-run --fast", "--fast");
    refused("data/fineweb.sh --shards 0", "--shards '0'");
    refused("data/fineweb.sh --shards 1031", "--shards '1031'");
    refused("data/fineweb.sh --all", "--all: expected --shards");
    refused("ANVIL_PROGRAMS=/nowhere/ scripts/run.sh d12", "/nowhere/train_gpt is missing");
    machine.script("nvidia-smi", "echo 'no devices were found' >&2; exit 6");
    refused("scripts/run.sh d12", "no GPU here");
    CHECK(machine.fetched() == "");
}

TEST_CASE("run starts a rank on each GPU, with the model's flags and then those that are given", "[speedrun]") {
    const FakeMachine machine;
    const std::string data = " --train-data 'x/train_*.bin' --val-data ''";
    const Finished eight = machine.on(with_programs() + "scripts/run.sh gpt2-124M --steps=7 --seed 3" + data);
    INFO(eight.out << eight.err);
    CHECK(eight.exit_code == 0);
    CHECK(eight.out.starts_with("mpirun -np 8 --bind-to none "));
    for (const char* part : {"train_gpt --val-every 250", "--model gpt2-124M", "--warmup-steps 700",
                             "--learning-rate 6e-4", "--final-lr-fraction 0 ", "--total-batch-size 524288", "--steps=7",
                             "--seed 3", "--out-dir run/gpt2-124M", "--resume auto"})
        CHECK(contains(eight.out, part));
    CHECK(eight.out.find("--steps=7") > eight.out.find("--steps 19560"));  // the last one counts
    CHECK(contains(machine.on(with_programs() + "scripts/run.sh d20 --gpus 2" + data).out, "mpirun -np 2 "));
    CHECK(machine.fetched() == "");

    // One rank needs no launcher.
    put_file(machine.folder / "bin/train_gpt", "#!/bin/sh\necho \"$*\"\n");
    fs::permissions(machine.folder / "bin/train_gpt", fs::perms::owner_all);
    const Finished one = machine.on("scripts/run.sh stage-a --gpus 1 --out-dir a --resume b" + data,
                                    "ANVIL_PROGRAMS=" + machine.folder / "bin/");
    CHECK(one.out.starts_with("--val-every 125 "));
    CHECK(contains(one.out, "--out-dir a --resume b"));
    CHECK_FALSE(contains(one.out, "auto"));
    CHECK_FALSE(contains(one.out, "run/stage-a"));
}

TEST_CASE("speedrun --text trains d12 on that text, in a vocabulary of its own", "[speedrun]") {
    const FakeMachine machine;
    put_file(machine.folder / "book.txt", "It is a truth universally acknowledged, that a truth is a truth.\n");
    const std::string command = with_programs() + "scripts/speedrun.sh --target d12 --gpus 2 --text " +
                                machine.folder / "book.txt --out " + machine.folder / "out";
    // The fake mpirun only prints its command, so there is no log to report.
    for (int again = 0; again < 2; again++) {
        const Finished done = machine.on(command);
        INFO(done.out << done.err);
        CHECK(contains(done.out, "== data") == (again == 0));
        CHECK(contains(done.out, "--vocab-size 32768"));
        CHECK(contains(done.out, "--train-data " + machine.folder / "out/data/train_*.bin"));
        CHECK(contains(read_file(machine.folder / "out/data/tokenizer.json"), "<|bos|>"));
    }
    CHECK(machine.fetched() == "");
}

// What follows the tokens needs Python's packages and is a step of CI: scripts/speedrun.sh --smoke --target gpt2-grade.
TEST_CASE("speedrun --target gpt2-grade downloads what it needs first, and ends where something is missing",
          "[speedrun]") {
    FakeMachine machine;
    for (const char* name : {"repo/scripts", "repo/data", "python"}) fs::create_directories(machine.folder / name);
    fs::copy("scripts/speedrun.sh", machine.folder / "repo/scripts/speedrun.sh");
    machine.script("python3", "exit 0");  // all packages are there
    const auto download = [&](const std::string& name, const std::string& text) {
        const std::string told = "echo " + name + R"( "$@" >>)" + machine.folder / "downloads";
        machine.script("../repo/data/" + name, told + "; " + text);
    };
    download("core.sh", "true");
    download("hellaswag.sh", "true");
    download("climbmix.sh", "echo 'error: no network' >&2; exit 2");
    const auto started = [&](const std::string& flags) {
        return machine.on(with_programs() + machine.folder / "repo/scripts/speedrun.sh --target gpt2-grade --out " +
                          machine.folder / "out" + flags);
    };
    const Finished done = started("");
    INFO(done.out << done.err);
    CHECK(done.exit_code == 2);
    CHECK(done.err == "error: no network\n");
    CHECK(read_file(machine.folder / "downloads") == "core.sh\nhellaswag.sh\nclimbmix.sh 170\n");
    CHECK_FALSE(fs::exists(machine.folder / "out/data"));

    // With --text none is downloaded; this one is missing.
    fs::remove(machine.folder / "downloads");
    const Finished own = started(" --text " + machine.folder / "nothing");
    CHECK(own.exit_code == 2);
    CHECK(contains(own.err, "nothing"));
    CHECK(read_file(machine.folder / "downloads") == "core.sh\nhellaswag.sh\n");
}

TEST_CASE("run gets as many shards as the run reads", "[speedrun]") {
    FakeMachine machine;
    for (const char* name : {"repo/scripts", "repo/data", "repo/tokens"}) fs::create_directories(machine.folder / name);
    for (const char* script : {"run.sh", "run_ranks.sh"})
        fs::copy(std::string("scripts/") + script, machine.folder / (std::string("repo/scripts/") + script));
    machine.script("../repo/data/fineweb.sh", "echo \"shards: $*\"; echo tokens");
    const auto started = [&](const std::string& flags) {
        const Finished done = machine.on(with_programs() + machine.folder / "repo/scripts/run.sh " + flags);
        INFO(done.out << done.err);
        CHECK(done.exit_code == 0);
        return done;
    };
    const Finished stage_a = started("stage-a");
    CHECK(contains(stage_a.err, "shards: --shards 18\n"));
    CHECK(contains(stage_a.out, "no samples"));
    for (const char* part :
         {"--train-data tokens/fineweb_train_*.bin", "--val-data tokens/fineweb_val_*.bin", "--val-tokens 10485760"})
        CHECK(contains(stage_a.out, part));
    CHECK(contains(started("gpt2-774M").err, "--shards 1030\n"));  // there are no more
    CHECK(contains(started("stage-a --steps=10 --val-tokens 9").err, "--shards 1\n"));
    CHECK_FALSE(contains(started("stage-a --val-tokens 9").out, "10485760"));
    CHECK(contains(started("d12 --gpus 2 --steps 191").err, "--shards 2\n"));  // 191 x 2^19 is a little over 10^8
    put_file(machine.folder / "repo/tokens/tokenizer.json", "");
    CHECK_FALSE(contains(started("stage-a").out, "no samples"));
}

TEST_CASE("fineweb goes on where a download was cut, and takes no damaged file", "[speedrun]") {
    FakeMachine machine;
    // Each file takes two runs: the first one is cut.
    for (const char* name : {"val_000000", "train_000001", "train_000002"}) {
        const Finished cut = machine.fineweb(2);
        CHECK(cut.exit_code == 2);
        CHECK(contains(cut.err, "run this again to go on"));
        CHECK(fs::file_size(machine.here(name) + ".part") == 1024 + 1000 - 100);
        CHECK_FALSE(fs::exists(machine.here(name)));
    }
    const Finished done = machine.fineweb(2);
    CHECK(done.exit_code == 0);
    CHECK(done.out.ends_with("\n" + machine.folder / "data" + "\n"));
    for (const char* name : {"val_000000", "train_000001", "train_000002"}) {
        CHECK(read_file(machine.here(name)) == read_file(machine.remote(name)));
        CHECK_FALSE(fs::exists(machine.here(name) + ".part"));
    }
    CHECK(contains(machine.fetched(),
                   "huggingface.co/datasets/kjj0/fineweb10B-gpt2/resolve/main/fineweb_val_000000.bin"));
    const std::string before = machine.fetched();
    CHECK(machine.fineweb(2).exit_code == 0);
    CHECK(machine.fetched() == before);

    // Damaged here: fetched anew. Damaged there: refused, and nothing is left of it.
    fs::resize_file(machine.here("train_000002"), 1500);
    machine.fineweb(2);
    CHECK(machine.fineweb(2).exit_code == 0);
    CHECK(fs::file_size(machine.here("train_000002")) == 2024);
    machine.shard("train_000003", 500, 2);
    machine.fineweb(3);
    const Finished damaged = machine.fineweb(3);
    CHECK(damaged.exit_code == 2);
    CHECK(contains(damaged.err, "is not a shard"));
    CHECK_FALSE(fs::exists(machine.here("train_000003")));
    CHECK_FALSE(fs::exists(machine.here("train_000003") + ".part"));
    put_file(machine.remote("train_000003"), std::string(2024, 'x'));
    machine.fineweb(3);
    CHECK(contains(machine.fineweb(3).err, "is not a shard"));
    machine.fineweb(104);
    CHECK(contains(machine.fetched(), "kjj0/fineweb100B-gpt2"));

    // A folder that has the files stands for the network.
    fs::remove(machine.here("train_000001"));
    const std::string until_now = machine.fetched();
    CHECK(machine.fineweb(2, "ANVIL_MIRROR=" + machine.folder / "remote").exit_code == 0);
    CHECK(read_file(machine.here("train_000001")) == read_file(machine.remote("train_000001")));
    fs::remove(machine.remote("train_000003"));
    CHECK(contains(machine.fineweb(3, "ANVIL_MIRROR=" + machine.folder / "remote").err, "no such file"));
    CHECK(machine.fetched() == until_now);
}

// [plain]: under the sanitizers test/train/kill_test.cpp kills shorter runs, which go on.
TEST_CASE("speedrun --smoke goes on after being killed", "[speedrun][plain][slow]") {
    const ScratchFolder scratch;
    const std::string out = scratch / "out";
    const std::string command = with_programs() + "setsid scripts/speedrun.sh --smoke --target gpt2-124M --out " + out;
    const Started first(command, scratch / "first");
    for (int i = 0; i < 6000 && !fs::exists(step_folder(out, 20)); i++) usleep(10'000);
    kill(-first.pid, SIGKILL);
    const Finished killed = first.finish();
    INFO(killed.out << killed.err);
    REQUIRE(fs::exists(step_folder(out, 20)));

    const Finished second = run(command);
    INFO(second.out << second.err);
    CHECK(second.exit_code == 0);
    CHECK(records_in(out, "start").size() == 1);
    CHECK(records_in(out, "resume").size() == 1);
    REQUIRE(records_in(out, "end").size() == 1);
    CHECK(contains(records_in(out, "end")[0], "\"finished\""));
    CHECK(steps_in(out).size() == 100);
    CHECK(fs::exists(step_folder(out, 100)));
    CHECK(fs::exists(out + "/report.html"));
    CHECK(contains(second.out, "nats per token at step 100\n"));
    CHECK(contains(second.out, "sample at step 100"));

    // Finished: looked at again, trained no more.
    const Finished third = run(command);
    CHECK(third.exit_code == 0);
    CHECK(steps_in(out).size() == 100);
}

TEST_CASE("the report compares with others' losses, and counts the cost", "[speedrun]") {
    const ScratchFolder out;
    std::string log = "{\"type\":\"start\"}\n";
    for (int step = 1; step <= 100; step++)
        log += format("{\"type\":\"step\",\"step\":%d,\"loss\":3,\"ms\":36000}\n", step);
    put_file(out / "log.jsonl", log +
                                    "{\"type\":\"val\",\"step\":50,\"loss\":3.5}\n"
                                    "{\"type\":\"val\",\"step\":100,\"loss\":3.25}\n");
    const auto report = [&](const std::string& flags) {
        const Finished done = run("python3 -B scripts/report.py " + out.path + " " + flags);
        INFO(done.err);
        CHECK(done.exit_code == 0);
        return read_file(out / "report.html");
    };
    const std::string page =
        report("--reference 'a <level>=3.3' --reference 'points=50:3.6,75:2,200:1' --usd-per-hour 24");
    CHECK(contains(page, "a &lt;level&gt;"));
    CHECK(contains(page, "3.3000 nats per token; this run -0.0500 at step 100"));
    CHECK(contains(page, "3.6000 nats per token; this run -0.1000 at step 50"));
    CHECK(contains(page, "24.00 USD at 24 an hour"));
    // The level goes from end to end; of the points, those beyond this run are left out.
    size_t drawn = 0;
    for (size_t at = page.find("line ref"); at != std::string::npos; at = page.find("line ref", at + 1)) {
        drawn++;
        const std::string points = page.substr(at, page.find("/>", at) - at);
        CHECK(std::count(points.begin(), points.end(), ',') == 2);
    }
    CHECK(drawn == 2);
    CHECK(contains(report("--reference 'none=60:1'"), "no validation at any of its steps yet"));

    // The same in bits per byte and in scores, each with its own curve.
    put_file(out / "log.jsonl",
             log +
                 "{\"type\":\"val\",\"step\":50,\"loss\":3.5,\"bpb\":1.25}\n"
                 "{\"type\":\"tasks\",\"step\":50,\"file\":\"x/core.tasks\",\"score\":0.125,\"tasks\":{\"a<b\":"
                 "{\"accuracy\":0.5,\"centered\":0.25,\"right\":3,\"examples\":6}}}\n"
                 "{\"type\":\"tasks\",\"step\":100,\"file\":\"x/core.tasks\",\"score\":0.25,\"tasks\":{}}\n");
    const std::string scored =
        report("--reference-bpb 'of bytes=50:1' --reference-score 'core: GPT-2=0.2' --reference-score 'other: none=1'");
    CHECK(contains(scored, "<h2>Score on core</h2>"));
    CHECK(contains(scored, "1.0000 bits per byte; this run +0.2500 at step 50"));
    CHECK(contains(scored, "0.2000 on core; this run +0.0500 at step 100"));
    CHECK(contains(scored, "no score at any of its steps yet"));
    const std::string published = report("--published gpt2-grade");
    CHECK(contains(published, "GPT-2 1558M"));
    CHECK(contains(published, " bits per byte; this run +"));
    CHECK(contains(published, " on core; this run -"));
    const size_t bytes = scored.find("<h2>Bits per byte</h2>"), core = scored.find("<h2>Score on core</h2>");
    REQUIRE((bytes < core && core < scored.size()));
    CHECK(contains(scored.substr(bytes, core - bytes), "of bytes"));
    CHECK_FALSE(contains(scored.substr(bytes, core - bytes), "GPT-2"));
    const std::string of_core = scored.substr(core, scored.find("</section>", core) - core);
    CHECK(contains(of_core, "GPT-2"));
    CHECK_FALSE(contains(of_core, "a&lt;b"));  // the last ones
    CHECK(contains(run("python3 -B scripts/report.py " + out.path + " --reference-score 'GPT-2=0.2'").err,
                   "expected FILE: LABEL=SCORE"));
    CHECK_FALSE(contains(report(""), "USD"));
    for (const char* wrong : {"3.3", "a=b", "a=1:2,3", "=3"})
        CHECK(contains(run("python3 -B scripts/report.py " + out.path + " --reference '" + wrong + "'").err,
                       "expected LABEL=LOSS or LABEL=STEP:LOSS"));
}
