// The log of a run: the lines on stdout, and log.jsonl through kills, resumes and full disks.
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cfloat>
#include <filesystem>
#include <nlohmann/json.hpp>
#include "llmc/base/file.h"
#include "llmc/base/number_text.h"  // count_text, duration_text
#include "llmc/run/log.h"
#include "test/testing.h"

using nlohmann::json;

namespace {
// Every line must be a JSON object.
std::vector<json> records_of(const std::string& out) {
    const std::string content = read_file(out + "/log.jsonl");
    REQUIRE((content.empty() || content.back() == '\n'));
    std::vector<json> records;
    for (size_t begin = 0; begin < content.size(); begin = content.find('\n', begin) + 1) {
        records.push_back(json::parse(content.substr(begin, content.find('\n', begin) - begin), nullptr, false));
        CHECK(records.back().is_object());
    }
    return records;
}

// Nothing is printed to the terminal of the tests; what was printed is the result.
template <class F>
std::string printed(F f) {
    const ScratchFolder scratch;
    std::fflush(stdout);
    const int terminal = dup(1);
    REQUIRE(std::freopen((scratch / "out").c_str(), "w", stdout));
    f();
    std::fflush(stdout);
    dup2(terminal, 1);
    close(terminal);
    return read_file(scratch / "out");
}

constexpr RunLog::Mode kFresh = RunLog::Mode::fresh, kResume = RunLog::Mode::resume;
}  // namespace

TEST_CASE("a run's records read back exactly", "[log]") {
    const ScratchFolder out;
    const double values[] = {0.1 + 0.2, 1 / 3.0, DBL_MAX, DBL_TRUE_MIN, 4.1743872165679932};
    const std::string shown = printed([&] {
        RunLog log(out.path, kFresh, {.steps = 5});
        log.start({.config_json = "{\"batch-size\":12}",
                   .device = "cpu, 3 threads",
                   .ranks = 2,
                   .data_hash = "00ff",
                   .val_hash = "11ee",
                   .tokenizer_hash = "22dd",
                   .num_parameters = 7,
                   .flops_per_token = 2.5e6});
        log.validation(0, values[4]);
        for (int i = 0; i < 5; i++)
            log.step({.step = i + 1, .loss = values[i], .norm = values[i], .lr = 6e-4, .ms = 250, .tokens = 1000});
        log.sample(5, "RO", "MEO:\n\xFF\"\\");
        log.checkpoint(5, "run/step_00000005", 12.5);
        log.end(5, "finished");
    });

    const std::vector<json> records = records_of(out.path);
    REQUIRE(records.size() == 10);
    CHECK(records[0]["type"] == "start");
    CHECK(records[0]["config"]["batch-size"] == 12);
    CHECK(records[0]["data"] == json({{"train", "00ff"}, {"val", "11ee"}, {"tokenizer", "22dd"}}));
    CHECK(records[0]["model"] == json({{"parameters", 7}, {"flops_per_token", 2.5e6}}));
    CHECK(records[0]["machine"]["ranks"] == 2);
    CHECK(records[0]["machine"]["memory_bytes"] > 1e8);
    CHECK(contains(records[0]["machine"]["os"], ", Linux "));
    CHECK(records[0]["machine"]["device"] == "cpu, 3 threads");
    CHECK(records[0]["machine"]["cores"] >= 1);
    CHECK(records[0]["machine"]["cpu"].get<std::string>().size() > 3);
    CHECK(records[0]["build"]["id"].is_string());
    CHECK(records[0]["time"] > 1700000000);
    CHECK(records[1] == json({{"type", "val"}, {"step", 0}, {"loss", values[4]}}));
    for (int i = 0; i < 5; i++)
        CHECK(records[size_t(2 + i)] == json({{"type", "step"},
                                              {"step", i + 1},
                                              {"loss", values[i]},
                                              {"norm", values[i]},
                                              {"lr", 6e-4},
                                              {"ms", 250.0},
                                              {"tokens_per_s", 4000.0}}));
    CHECK(records[7]["text"] == "MEO:\n\xEF\xBF\xBD\"\\");  // U+FFFD for the byte that is no UTF-8
    CHECK(records[7]["prompt"] == "RO");
    CHECK(records[8] == json({{"type", "checkpoint"}, {"step", 5}, {"path", "run/step_00000005"}, {"ms", 12.5}}));
    CHECK(records[9]["reason"] == "finished");

    CHECK(contains(shown, "val  0/5 | loss  4.1744\n"));
    CHECK(contains(shown,
                   "\nstep 5/5 | loss  4.1744 | norm   4.174 | lr 6.00e-04 |      250 ms | 4.00k tok/s | ETA 0.0 s\n"));
    CHECK(contains(shown, "sample at step 5:\nROMEO:\n"));
}

TEST_CASE("what is not always known is logged when it is", "[log]") {
    const ScratchFolder out;
    const std::string shown = printed([&] {
        RunLog log(out.path, kFresh, {.steps = 5});
        log.validation(0, 2.5, 1 / 3.0);
        log.step({.step = 1, .loss = 2, .norm = 1, .lr = 6e-4, .ms = 250, .tokens = 1000, .mfu = 0.40625});
        log.validation(1, 2.25, NAN, {{"mlp", 0.5}, {"logits", INFINITY}});
    });
    const std::vector<json> records = records_of(out.path);
    REQUIRE(records.size() == 3);
    CHECK(records[2]["sizes"] == json({{"mlp", 0.5}, {"logits", "inf"}}));
    CHECK(records[0] == json({{"type", "val"}, {"step", 0}, {"loss", 2.5}, {"bpb", 1 / 3.0}}));
    CHECK(records[1]["mfu"] == 0.40625);
    CHECK(contains(shown, "val  0/5 | loss  2.5000 | bpb 0.3333\n"));
    CHECK(contains(shown, " | 4.00k tok/s | MFU 40.6% | ETA "));
}

TEST_CASE("numbers that are not finite stay JSON", "[log]") {
    const ScratchFolder out;
    printed([&] {
        RunLog log(out.path, kFresh, {.steps = 5});
        log.step({.step = 1, .loss = NAN, .norm = INFINITY, .lr = -INFINITY, .ms = 0, .tokens = 1});
        log.skip(2, NAN, INFINITY, "the loss is nan");
    });
    const std::vector<json> records = records_of(out.path);
    REQUIRE(records.size() == 2);
    CHECK(records[0]["loss"] == "nan");
    CHECK(records[0]["norm"] == "inf");
    CHECK(records[0]["lr"] == "-inf");
    CHECK(records[0]["tokens_per_s"] == "inf");
    CHECK(records[1] ==
          json({{"type", "skip"}, {"step", 2}, {"loss", "nan"}, {"norm", "inf"}, {"reason", "the loss is nan"}}));
}

TEST_CASE("a resumed run adds to the log, below a line that was cut", "[log]") {
    const ScratchFolder out;
    const std::string path = out / "log.jsonl";
    write_file_atomically(path, "{\"type\":\"step\",\"step\":1}\n{\"type\":\"st");
    printed([&] {
        RunLog log(out.path, kResume, {.steps = 9});
        log.resume({"{\"a\":1}", "cpu", 1, "ff"}, 4, "run/step_00000004",
                   {"run/step_00000008: model.safetensors is missing"});
        log.validation(4, 2);
    });
    const std::string content = read_file(path);
    CHECK(content.starts_with("{\"type\":\"step\",\"step\":1}\n{\"type\":\"st\n{\"type\":\"resume\""));
    write_file_atomically(path, content.substr(content.find("{\"type\":\"resume\"")));
    std::vector<json> records = records_of(out.path);
    REQUIRE(records.size() == 2);
    CHECK(records[0]["step"] == 4);
    CHECK(records[0]["from"] == "run/step_00000004");
    CHECK(records[0]["passed_over"][0] == "run/step_00000008: model.safetensors is missing");
    CHECK(records[0]["config"]["a"] == 1);
    CHECK(records[0]["data"] == json({{"train", "ff"}}));

    // A whole last line gets no empty line below it, and a fresh run begins with an empty file.
    printed([&] { RunLog(out.path, kResume, {}).validation(5, 2); });
    CHECK(records_of(out.path).size() == 3);
    printed([&] { RunLog(out.path, kFresh, {}).validation(0, 2); });
    CHECK(records_of(out.path).size() == 1);
}

TEST_CASE("a log that cannot be written is an error that names it", "[log]") {
    const ScratchFolder out;
    write_file_atomically(out / "file", "");
    CHECK(contains(error_of([&] { RunLog(out / "file/run", kFresh, {}); }),
                   "2: cannot create the folder " + out / "file/run"));
    make_folders(out / "run/log.jsonl");
    CHECK(contains(error_of([&] { RunLog(out / "run", kFresh, {}); }), "2: cannot write " + out / "run/log.jsonl"));

    make_folders(out / "full");
    std::filesystem::create_symlink("/dev/full", out / "full/log.jsonl");
    printed([&] {
        RunLog log(out / "full", kResume, {});
        CHECK(contains(error_of([&] { log.validation(1, 2); }),
                       "2: cannot write " + out / "full/log.jsonl" +
                           ": No space left on device; delete what is not needed there, or use another disk"));
    });

    RunLog first(out / "twice", kFresh, {});
    CHECK(contains(error_of([&] { RunLog(out / "twice", kResume, {}); }), "2: another run is writing to this folder"));
    RunLog moved = std::move(first);
    CHECK(contains(error_of([&] { RunLog(out / "twice", kResume, {}); }), "2: another run"));
    moved = RunLog();
    CHECK(error_of([&] { RunLog(out / "twice", kResume, {}); }) == "");
}

TEST_CASE("a log that is a pipe is refused, also by a resume", "[log]") {
    const ScratchFolder scratch;
    REQUIRE(mkfifo((scratch / "log.jsonl").c_str(), 0600) == 0);
    for (const RunLog::Mode mode : {kFresh, kResume})
        CHECK(
            contains(error_of([&] { RunLog(scratch.path, mode, {}); }), "2: a pipe keeps no records: " + scratch.path));
    CHECK(last_step(scratch.path) == 0);
}

TEST_CASE("a log knows whether it is still where it was opened", "[log]") {
    const ScratchFolder scratch;
    const RunLog log(scratch / "a", kFresh, {});
    CHECK(log.is_in_place());
    std::filesystem::rename(scratch / "a", scratch / "b");
    CHECK_FALSE(log.is_in_place());
    std::filesystem::create_directory(scratch / "a");
    std::filesystem::copy(scratch / "b/log.jsonl", scratch / "a/log.jsonl");
    CHECK_FALSE(log.is_in_place());
    CHECK(RunLog().is_in_place());
}

TEST_CASE("a log line is whole or taken back", "[log]") {
    const ScratchFolder out;
    std::fflush(stdout);
    const pid_t child = fork();  // a limit on file sizes cannot be lifted again
    REQUIRE(child >= 0);
    if (child == 0) {
        if (!std::freopen("/dev/null", "w", stdout)) _exit(2);
        signal(SIGXFSZ, SIG_IGN);
        const rlimit limit = {1000, 1000};
        setrlimit(RLIMIT_FSIZE, &limit);
        RunLog log(out.path, kFresh, {});
        const std::string error = error_of([&] {
            for (int i = 0; i < 100; i++) log.validation(i, 1 / 3.0);
        });
        _exit(contains(error, "2: cannot write " + out / "log.jsonl: File too large") ? 0 : 1);
    }
    int status = 1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    const std::vector<json> records = records_of(out.path);
    CHECK(records.size() >= 10);  // of at most 60 bytes each
    CHECK(records.back()["loss"] == 1 / 3.0);
}

TEST_CASE("only a log that was opened writes", "[log]") {
    CHECK(printed([] {
              RunLog log;
              log.start({.config_json = "not even JSON"});
              log.step({.step = 1, .loss = 1, .norm = 1, .lr = 1, .ms = 1, .tokens = 1});
              log.validation(1, 1);
              log.sample(1, "a", "b");
              log.checkpoint(1, "c", 1);
              log.end(1, "finished");
          }) == "");
}

TEST_CASE("the line of a step keeps its width", "[log]") {
    const StepRecord early = {.step = 1, .loss = 10.8258, .norm = 123.456, .lr = 6e-7, .ms = 12.34, .tokens = 512};
    const StepRecord late = {.step = 2000, .loss = 1.5, .norm = 0.4, .lr = 6e-4, .ms = 88912, .tokens = 524288};
    CHECK(step_line(early, 2000, 3600) ==
          "step    1/2000 | loss 10.8258 | norm 123.456 | lr 6.00e-07 |     12.3 ms | 41.5k tok/s | ETA 1:00:00");
    CHECK(step_line(late, 2000, 0) ==
          "step 2000/2000 | loss  1.5000 | norm   0.400 | lr 6.00e-04 |    88912 ms | 5.90k tok/s | ETA 0.0 s");
    CHECK(duration_text(59.9) == "59.9 s");
    CHECK(duration_text(59.99) == "1:00");
    CHECK(duration_text(3599.4) == "59:59");
    CHECK(duration_text(3599.6) == "1:00:00");
    CHECK(duration_text(273900) == "3d 04:05");
    CHECK(duration_text(NAN) == "?");
    CHECK(count_text(0) == "0");
    CHECK(count_text(999.4) == "999");
    CHECK(count_text(999.6) == "1.00k");
    CHECK(count_text(99960) == "100k");
    CHECK(count_text(1234567) == "1.23M");
}

TEST_CASE("the line of a step fits the terminal, by leaving out what matters least", "[log]") {
    const StepRecord record = {
        .step = 120, .loss = 2.5, .norm = 0.4, .lr = 6e-4, .ms = 99.94, .tokens = 768, .mfu = 0.5, .cropped = 0.25};
    const std::string whole =
        "step    120/100000 | loss  2.5000 | norm   0.400 | lr 6.00e-04 |     99.9 ms | 7.68k tok/s | MFU 50.0% | "
        "cropped "
        "25.0% | ETA 1:00:00";
    CHECK(step_line(record, 100000, 3600) == whole);
    CHECK(step_line(record, 100000, 3600, int(whole.size())) == whole);
    CHECK(step_line(record, 100000, 3600, 80) ==
          "step    120/100000 | loss  2.5000 | lr 6.00e-04 | 7.68k tok/s | ETA 1:00:00");
    for (int columns = 40; columns < 130; columns++)
        CHECK(step_line(record, 100000, 3600, columns).size() <= size_t(columns));
    CHECK(step_line(record, 100000, 3600, 10) == "step    120/100000 | loss  2.5000");  // never less
}

TEST_CASE("the ETA comes from the wall clock and from what is left of the time budget", "[log]") {
    const ScratchFolder out;
    const auto last_line = [&](double left_s) {
        const std::string shown = printed([&] {
            RunLog log(out.path, kFresh, {.steps = 1001, .print_every = 2});
            for (int step = 1; step <= 4; step++) {
                log.step({.step = step, .loss = 1, .norm = 1, .lr = 1, .ms = 20, .tokens = 1, .left_s = left_s});
                usleep(20000);
            }
        });
        CHECK(std::count(shown.begin(), shown.end(), '\n') == 3);  // steps 1, 2 and 4
        CHECK(contains(shown, "1/1001"));
        CHECK_FALSE(contains(shown, "3/1001"));
        return shown.substr(shown.rfind("ETA ") + 4);
    };
    // 997 steps of at least 20 ms are left; a busy machine may take longer, never less.
    const std::string eta = last_line(INFINITY);
    INFO(eta);
    CHECK((contains(eta, ":") || std::stod(eta) >= 19.9));
    // The budget counts time in steps alone: whatever the clock says, this much is left.
    CHECK(last_line(5) == "5.0 s\n");
    CHECK(last_line(-1) == "0.0 s\n");
}
