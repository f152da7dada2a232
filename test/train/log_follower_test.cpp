// --log-to wandb, with a fake wandb that records its calls; scripts/check_interop.sh uses the real one.
#include "llmc/train/log_follower.h"
#include <nlohmann/json.hpp>
#include "test/program.h"

using nlohmann::json;

namespace {

// A module `wandb` in a folder of its own, which adds a line for each call to WANDB_DOUBLE.
constexpr const char* kDouble = R"(
import json, os
def tell(*call):
    with open(os.environ["WANDB_DOUBLE"], "a") as file:
        file.write(json.dumps(call) + "\n")
class Summary(dict):
    def __setitem__(self, name, value): tell("summary", name, value)
class Run:
    summary = Summary()
    def define_metric(self, name, step_metric=None): tell("define", name, step_metric)
    def log(self, values): tell("log", values)
    def finish(self): tell("finish")
def init(**words):
    if os.environ.get("WANDB_FAILS"): raise RuntimeError("no API key")
    tell("init", words)
    return Run()
)";

std::vector<json> calls_in(const std::string& path) {
    std::vector<json> calls;
    const std::string content = read_file(path);
    for (size_t begin = 0, end; (end = content.find('\n', begin)) != std::string::npos; begin = end + 1)
        calls.push_back(json::parse(content.substr(begin, end - begin)));
    return calls;
}

// The steps at which `name` was sent.
std::vector<int> steps_of(const std::vector<json>& calls, const std::string& name) {
    std::vector<int> steps;
    for (const json& call : calls)
        if (call[0] == "log" && call[1].contains(name)) steps.push_back(call[1]["step"]);
    return steps;
}

std::vector<int> up_to(int from, int to) {
    std::vector<int> all;
    for (; from <= to; from++) all.push_back(from);
    return all;
}

}  // namespace

TEST_CASE("--log-to wandb sends every record once, through resumes", "[log_follower]") {
    const TinyRuns runs;
    make_folders(runs.path("modules"));
    put_file(runs.path("modules/wandb.py"), kDouble);
    put_file(runs.path("calls"), "");
    const std::string environment =
        "env PYTHONPATH='" + runs.path("modules") + "' WANDB_DOUBLE='" + runs.path("calls") + "' ";
    const FlagMap first =
        runs.flags("a", {{"steps", "6"}, {"val-every", "3"}, {"checkpoint-every", "3"}, {"log-to", "wandb"}});
    must_succeed(run(environment + command_of(first)));
    std::vector<json> calls = calls_in(runs.path("calls"));
    REQUIRE(calls.size() > 8);
    CHECK(calls[0][0] == "init");
    CHECK(calls[0][1]["project"] == "anvil");
    CHECK(calls[0][1]["name"] == "a");
    CHECK(calls[0][1]["config"]["steps"] == 6);
    CHECK(calls[0][1]["config"]["machine"]["ranks"] == 1);
    CHECK(calls[2] == json({"define", "*", "step"}));
    CHECK(calls.back() == json(std::vector<json>{"finish"}));
    CHECK(steps_of(calls, "train/loss") == up_to(1, 6));
    CHECK(steps_of(calls, "train/tokens_per_s") == up_to(1, 6));
    CHECK(steps_of(calls, "val/loss") == std::vector<int>{3, 6});
    CHECK(std::count(calls.begin(), calls.end(), json({"summary", "end", "finished"})) == 1);
    const std::string id = calls[0][1]["id"];
    double logged = 0;
    from_json({{"", "loss", &logged, ""}}, records_by_step(runs.path("a"), "step")[4], "log");
    for (const json& call : calls)
        if (call[0] == "log" && call[1]["step"] == 4) CHECK(call[1]["train/loss"] == logged);

    // Steps 4 to 6 are made again; they were sent before.
    std::filesystem::remove_all(runs.path("a/step_00000006"));
    must_succeed(run(environment + command_of(runs.resume_flags("a", {{"steps", "8"}}))));
    calls = calls_in(runs.path("calls"));
    CHECK(steps_of(calls, "train/loss") == up_to(1, 8));
    CHECK(std::count_if(calls.begin(), calls.end(), [&](const json& call) {
              return call[0] == "init" && call[1]["id"] == id && call[1]["resume"] == "allow";
          }) == 2);

    const std::string kept = read_file(runs.path("calls"));
    // Of tasks, each file has a series of its own.
    make_folders(runs.path("tasks"));
    const auto record = [](const std::string& file) {
        return R"({"type":"tasks","step":1,"file":")" + file +
               R"(","score":0.5,"tasks":{"first":{"accuracy":0.25,"centered":0.5,"right":1,"examples":4}},"ms":10})"
               "\n";
    };
    put_file(runs.path("tasks/log.jsonl"), R"({"type":"start","time":1,"config":{}})"
                                           "\n" +
                                               record("x/one.bin") + record("x/two.bin"));
    put_file(runs.path("calls"), "");
    must_succeed(run(environment + "python3 -B scripts/log_to_wandb.py " + runs.path("tasks")));
    CHECK(steps_of(calls_in(runs.path("calls")), "tasks/one/first/accuracy") == up_to(1, 1));
    CHECK(steps_of(calls_in(runs.path("calls")), "tasks/two/score") == up_to(1, 1));
    put_file(runs.path("calls"), kept);

    // By hand nothing is left to send; of a log that was never sent, all is.
    must_succeed(
        run(environment + "python3 -B scripts/log_to_wandb.py " + runs.path("a") + " --name again --project p"));
    CHECK(steps_of(calls_in(runs.path("calls")), "train/loss") == up_to(1, 8));
    CHECK(calls_in(runs.path("calls"))[calls.size()][1]["name"] == "again");
    std::filesystem::remove(runs.path("a/wandb.json"));
    must_succeed(run(environment + "python3 -B scripts/log_to_wandb.py --follow " + runs.path("a")));  // it has ended
    CHECK(steps_of(calls_in(runs.path("calls")), "train/loss").size() == 16);
}

TEST_CASE("without wandb, or if it fails, the run goes on and says so", "[log_follower]") {
    const TinyRuns runs;
    make_folders(runs.path("modules"));
    const FlagMap flags = runs.flags("a", {{"steps", "2"}, {"warmup-steps", "1"}, {"log-to", "wandb"}});
    put_file(runs.path("modules/wandb.py"), "raise ImportError('there is none')\n");
    const Finished without = run("env PYTHONPATH='" + runs.path("modules") + "' " + command_of(flags));
    must_succeed(without);
    CHECK(contains(without.err, "warning: wandb is not there (there is none): pip install wandb"));
    CHECK(records_in(runs.path("a"), "end").size() == 1);

    put_file(runs.path("modules/wandb.py"), kDouble);
    FlagMap others = flags;
    others["out-dir"] = runs.path("b");
    const Finished failing = run("env WANDB_FAILS=1 PYTHONPATH='" + runs.path("modules") + "' " + command_of(others));
    must_succeed(failing);
    CHECK(contains(failing.err, "warning: wandb says: no API key"));

    others["out-dir"] = runs.path("c");
    const Finished no_python = run("env PATH=/nowhere " + command_of(others));
    must_succeed(no_python);
    CHECK(contains(no_python.err, "warning: --log-to wandb: cannot start python3: No such file or directory"));

    const Finished missing =
        run("env PYTHONPATH='" + runs.path("modules") + "' python3 -B scripts/log_to_wandb.py " + runs.path("none"));
    CHECK(missing.exit_code == 2);
    CHECK(contains(missing.err, "error: cannot read " + runs.path("none/log.jsonl")));
}
