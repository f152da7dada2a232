// --log-to, with a fake wandb that records its calls and a fake tensorboard that writes its events as lines of JSON;
// dev/interop/check_interop.sh uses the real ones.
#include "llmc/run/log.h"
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
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

// The parts of `tensorboard` that the script uses.
void put_tensorboard(const std::string& modules) {
    make_folders(modules + "/tensorboard/compat/proto");
    make_folders(modules + "/tensorboard/summary/writer");
    put_file(modules + "/tensorboard/compat/proto/event_pb2.py", R"(
import json
class SessionLog: START = 1
class Event:
    def __init__(self, **words): self.words = words
    def SerializeToString(self): return json.dumps(self.words).encode()
)");
    put_file(modules + "/tensorboard/summary/writer/record_writer.py", R"(
class RecordWriter:
    def __init__(self, file): self.flush, self.close, self.file = file.flush, file.close, file
    def write(self, data): self.file.write(data + b"\n")
)");
}

// What TensorBoard shows of a folder: each start makes void what was said of its step and later. A step told twice is a
// failure.
using Curves = std::map<std::string, std::map<int, double>>;
Curves curves_of(const std::string& folder) {
    Curves curves;
    for (const std::string& path : files_matching(folder + "/events.out.tfevents.*.anvil")) {
        std::istringstream lines(read_file(path));
        for (std::string line; std::getline(lines, line);) {
            const json event = json::parse(line);
            const int step = event["step"];
            if (event.contains("session_log"))
                for (auto& [tag, points] : curves) points.erase(points.lower_bound(step), points.end());
            if (!event.contains("summary")) continue;
            for (const json& value : event["summary"]["value"]) {
                INFO(value["tag"] << " at step " << step);
                CHECK(curves[value["tag"]].insert({step, value["simple_value"]}).second);
            }
        }
    }
    return curves;
}

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
    must_succeed(run(environment + "python3 -B scripts/log_to.py wandb " + runs.path("tasks")));
    CHECK(steps_of(calls_in(runs.path("calls")), "tasks/one/first/accuracy") == up_to(1, 1));
    CHECK(steps_of(calls_in(runs.path("calls")), "tasks/two/score") == up_to(1, 1));
    put_file(runs.path("calls"), kept);

    // By hand nothing is left to send; of a log that was never sent, all is.
    must_succeed(
        run(environment + "python3 -B scripts/log_to.py wandb " + runs.path("a") + " --name again --project p"));
    CHECK(steps_of(calls_in(runs.path("calls")), "train/loss") == up_to(1, 8));
    CHECK(calls_in(runs.path("calls"))[calls.size()][1]["name"] == "again");
    std::filesystem::remove(runs.path("a/wandb.json"));
    must_succeed(run(environment + "python3 -B scripts/log_to.py --follow wandb " + runs.path("a")));  // it has ended
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

    others["out-dir"] = "-b";  // no flag of the script
    const std::string command = command_of(others);
    const Finished dashed = run("cd " + runs.path("modules") + " && env PYTHONPATH=. WANDB_DOUBLE=calls " +
                                (std::filesystem::current_path() / command).string());
    must_succeed(dashed);
    CHECK(dashed.err == "");
    CHECK(calls_in(runs.path("modules/calls"))[0][0] == "init");

    others["out-dir"] = runs.path("c");
    const Finished no_python = run("env PATH=/nowhere " + command_of(others));
    must_succeed(no_python);
    CHECK(contains(no_python.err, "warning: --log-to wandb: cannot start python3: No such file or directory"));

    const Finished missing =
        run("env PYTHONPATH='" + runs.path("modules") + "' python3 -B scripts/log_to.py wandb " + runs.path("none"));
    CHECK(missing.exit_code == 2);
    CHECK(contains(missing.err, "error: cannot read " + runs.path("none/log.jsonl")));
}

TEST_CASE("a port that is in use at first is served once it is free", "[log_follower]") {
    const TinyRuns runs;
    make_folders(runs.path("modules"));
    put_file(runs.path("modules/prometheus_client.py"), R"(
import os
asked = []
class CollectorRegistry: pass
class Gauge:
    def __init__(self, *words, registry): pass
    def labels(self, **words): return self
    def set(self, value): pass
    def inc(self, value=1): pass
class Server:
    def shutdown(self): open(os.environ["SERVED"], "a").close()
def start_http_server(port, registry):
    asked.append(port)
    if len(asked) == 1: raise OSError("port %d is in use" % port)
    return Server(), None
)");
    const Finished ended = run("env SERVED='" + runs.path("served") + "' PYTHONPATH='" + runs.path("modules") + "' " +
                               command_of(runs.flags("a", {{"log-to", "prometheus:7"}})));
    must_succeed(ended);
    CHECK(ended.err == "warning: prometheus says: port 7 is in use; nothing is sent until that is over\n");
    CHECK(std::filesystem::exists(runs.path("served")));
}

TEST_CASE("--log-to tensorboard writes every number once, through kills and resumes", "[log_follower]") {
    const TinyRuns runs;
    put_tensorboard(runs.path("modules"));
    put_file(runs.path("modules/wandb.py"), kDouble);
    const std::string python = "env WANDB_FAILS=1 PYTHONPATH='" + runs.path("modules") + "' ";
    make_folders(runs.path("a"));
    const std::string before = runs.path("a/events.out.tfevents.1234567890.anvil"),
                      others = runs.path("a/events.out.tfevents.1234567890.host");
    put_file(before, "of a run that was here before");
    put_file(others, "of another program");
    const FlagMap first = runs.flags(
        "a", {{"steps", "6"}, {"val-every", "3"}, {"checkpoint-every", "3"}, {"log-to", "wandb,tensorboard"}});
    const Finished ended = run(python + command_of(first));
    must_succeed(ended);
    CHECK(contains(ended.err, "warning: wandb says: no API key; nothing more is sent"));  // the other goes on
    CHECK_FALSE(std::filesystem::exists(before));
    CHECK(std::filesystem::exists(others));
    const auto steps = [](const Curves& curves, const std::string& tag) {
        std::vector<int> all;
        for (const auto& [step, value] : curves.at(tag)) all.push_back(step);
        return all;
    };
    const auto check_curves = [&](int last, size_t files) {
        const Curves curves = curves_of(runs.path("a"));
        CHECK(files_matching(runs.path("a/events.out.tfevents.*.anvil")).size() == files);
        CHECK(steps(curves, "train/loss") == up_to(1, last));
        CHECK(steps(curves, "train/tokens_per_s") == up_to(1, last));
        double loss = 0;
        for (const auto& [step, record] : records_by_step(runs.path("a"), "step")) {
            from_json({{"", "loss", &loss, ""}}, record, "log");
            CHECK(curves.at("train/loss").at(int(step)) == loss);
        }
        return curves;
    };
    CHECK(steps(check_curves(6, 1), "val/loss") == std::vector<int>{3, 6});

    // The last checkpoint is lost, and the process was killed before it had written the last step.
    std::filesystem::remove_all(runs.path("a/step_00000006"));
    const std::string state = runs.path("a/tensorboard.json");
    json stored = json::parse(read_file(state));
    stored["sent"] = {{"step", 5}, {"val", 3}, {"checkpoint", 3}};
    put_file(state, stored.dump());
    must_succeed(run(python + command_of(runs.resume_flags("a", {{"steps", "8"}}))));
    CHECK(steps(check_curves(8, 2), "val/loss") == std::vector<int>{3, 6, 8});
    must_succeed(run(python + command_of(runs.resume_flags("a", {{"steps", "9"}}))));
    check_curves(9, 3);
    const std::string newest = files_matching(runs.path("a/events.out.tfevents.*.anvil")).back();
    CHECK_FALSE(contains(read_file(newest), "\"step\": 5,"));  // the resume of before is not gone through again
    // By hand nothing is left to write. Of a log that was never sent, or by an older program, all is.
    const std::string by_hand = python + "python3 -B scripts/log_to.py tensorboard " + runs.path("a");
    must_succeed(run(by_hand));
    check_curves(9, 4);
    std::filesystem::remove(state);
    must_succeed(run(by_hand));
    check_curves(9, 1);

    // What cannot be written, or is not there, costs a run nothing but these.
    std::filesystem::create_directory(state + ".tmp");
    const Finished unwritable = run(python + command_of(runs.resume_flags("a", {{"steps", "10"}})));
    must_succeed(unwritable);
    CHECK(contains(unwritable.err, "warning: tensorboard says: [Errno 21] Is a directory: "));
    std::filesystem::remove_all(runs.path("modules/tensorboard"));
    put_file(runs.path("modules/tensorboard.py"), "raise ImportError('there is none')\n");
    const Finished without = run(python + command_of(runs.resume_flags("a", {{"steps", "11"}})));
    must_succeed(without);
    CHECK(contains(without.err, "warning: tensorboard is not there (there is none): pip install tensorboard"));
    CHECK(records_by_step(runs.path("a"), "step").size() == 11);
}
