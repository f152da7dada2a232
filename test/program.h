/*
Tests train_gpt as a user runs it: tiny runs in a scratch folder, their logs and checkpoints.

  const TinyRuns runs;                                             stories as token shards, made by data/tokenize
  must_succeed(runs.train("a", {{"steps", "12"}}));                 a new run in folder a: kTiny's flags and these
  must_succeed(runs.resume("a", {{"threads", "2"}}));               --resume auto and only these flags
  steps_in(runs.path("a"))                                         {step, loss, norm, lr} exactly as in log.jsonl
  difference(runs.path("a/step_00000012"), other)                  "" if two checkpoints are equal, bit for bit
*/
#pragma once
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>
#include "llmc/base/file.h"             // read_file, FileWriter
#include "llmc/base/flags.h"            // from_json
#include "llmc/base/hash.h"             // xxh3
#include "llmc/checkpoint/run_state.h"  // RunState
#include "llmc/cpu/kernels.h"           // Cpu, for run_state.h
#include "llmc/io/checkpoint.h"         // checkpoint_path, checkpoint_steps, verify
#include "llmc/io/manifest.h"           // Manifest
#include "llmc/run/command.h"           // parse_command_line
#include "llmc/run/log.h"               // StepRecord
#include "test/testing.h"               // run, ScratchFolder

// name -> value.
using FlagMap = std::map<std::string, std::string>;

// Three micro-batches of 2 x 16 tokens per step. In fp32, because --dtype auto depends on the processor.
inline const FlagMap kTiny = {{"num-layers", "2"},       {"num-heads", "2"},    {"channels", "32"},
                              {"seq-len", "16"},         {"batch-size", "2"},   {"total-batch-size", "96"},
                              {"steps", "20"},           {"warmup-steps", "5"}, {"grad-clip", "1.5"},
                              {"checkpoint-every", "0"}, {"val-tokens", "320"}, {"sample-tokens", "0"},
                              {"threads", "1"},          {"seed", "7"},         {"dtype", "fp32"}};

inline void put_file(const std::string& path, const std::string& content) {
    FileWriter(path).write(content.data(), content.size());
}

// What is no flag but a line of a file is written to a file whose name begins with `place`, by default --out-dir.
inline std::string command_of(const FlagMap& flags, const std::string& name = "train", const std::string& place = "") {
    std::string command = program("train_gpt") + " " + name, lines;
    const char* const words[] = {"train_gpt", name.c_str()};
    CommandLine known = parse_command_line(2, words);
    const std::vector<Field> fields = known.fields();
    for (const auto& [flag, value] : flags)
        if (std::any_of(fields.begin(), fields.end(),
                        [&](const Field& field) { return !field.is_flag() && field.name == flag; }))
            lines += flag + " = \"" + value + "\"\n";
        else
            command += " --" + flag + "='" + value + "'";
    if (lines.empty()) return command;
    const std::string path =
        (place.empty() ? flags.at("out-dir") : place) + "." + hex64(xxh3(lines.data(), lines.size())) + ".cfg";
    write_file_atomically(path, lines);  // a rank that has started may be reading it
    return command + " --config='" + path + "'";
}

// Overwrites in place, without truncating the file: a program that has it mapped must never find it shorter.
inline void overwrite(const std::string& path, size_t at, const std::string& bytes) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(std::streamoff(at));
    file << bytes;
    file.close();
    REQUIRE(file.good());
}

// OUT/step_00000012, and the state in such a folder.
inline std::string step_folder(const std::string& out_dir, int64_t step) { return checkpoint_path(out_dir, step); }
inline RunState state_in(const std::string& checkpoint) {
    RunState state;
    from_json(state.fields(), read_file(checkpoint + "/state.json"), checkpoint);
    return state;
}

// Writes a manifest for the files of a checkpoint, OUT/step_00000012, as they are now.
inline void renew_manifest(const std::string& folder) {
    Manifest manifest{std::stoll(folder.substr(folder.rfind('_') + 1)), {}};
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        const std::string name = entry.path().filename(), content = read_file(entry.path());
        if (name != "manifest.json")
            manifest.files.push_back({name, content.size(), xxh3(content.data(), content.size())});
    }
    put_file(folder + "/manifest.json", to_json(manifest));
}

// Whether a checkpoint is being saved or removed in this folder: both use names that end in .tmp or .old.
inline bool is_saving(const std::string& out_dir) {
    std::error_code not_there_yet;
    for (const auto& entry : std::filesystem::directory_iterator(out_dir, not_there_yet))
        if (const std::string end = entry.path().extension(); end == ".tmp" || end == ".old") return true;
    return false;
}

// Checks that a run ended with exit code 0, and shows its errors otherwise.
inline void must_succeed(const Finished& finished) {
    INFO(finished.err);
    REQUIRE(finished.exit_code == 0);
}

struct TinyRuns {
    ScratchFolder scratch;

    // 2000 bytes of stories are 112 windows of 16 tokens, so an epoch ends in the 19th step.
    explicit TinyRuns(int stories_bytes = 2000) {
        must_succeed(run(program("data/tokenize") + " --stories " + std::to_string(stories_bytes) +
                         " --tokenizer char --out " + path("data")));
    }

    std::string path(const std::string& name) const { return scratch / name; }

    FlagMap flags(const std::string& out, const FlagMap& changes = {}) const {
        FlagMap all = changes;
        all.insert({{"train-data", path("data/train_*.bin")}, {"val-data", path("data/val_*.bin")}});
        all.insert({"out-dir", path(out)});
        all.insert(kTiny.begin(), kTiny.end());
        return all;
    }
    FlagMap resume_flags(const std::string& out, const FlagMap& changes = {}) const {
        FlagMap all = changes;
        all.insert({{"out-dir", path(out)}, {"resume", "auto"}});
        return all;
    }

    Finished train(const std::string& out, const FlagMap& changes = {}) const {
        return run(command_of(flags(out, changes)));
    }
    Finished resume(const std::string& out, const FlagMap& changes = {}) const {
        return run(command_of(resume_flags(out, changes)));
    }
};

// A program that is started now and waited for later. It prints to the files PREFIX.out and PREFIX.err.
struct Started {
    std::string prefix;
    pid_t pid = -1;

    Started(const std::string& command, const std::string& prefix) : prefix(prefix) {
        for (const char* end : {".out", ".err"}) put_file(prefix + end, "");  // a kill may come before the shell runs
        pid = fork();
        REQUIRE(pid >= 0);
        if (pid > 0) return;
        const std::string all = "exec " + command + " >'" + prefix + ".out' 2>'" + prefix + ".err' </dev/null";
        execl("/bin/sh", "sh", "-c", all.c_str(), nullptr);
        _exit(127);
    }
    // Sends a signal; 0 sends none.
    Finished finish(int signal = 0) const {
        if (signal) kill(pid, signal);
        int status = 0;
        REQUIRE(waitpid(pid, &status, 0) == pid);
        const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        return {code, read_file(prefix + ".out"), read_file(prefix + ".err")};
    }
};

// The lines of one type in a run's log, in file order.
inline std::vector<std::string> records_in(const std::string& out_dir, const std::string& type) {
    std::vector<std::string> lines;
    const std::string log = read_file(out_dir + "/log.jsonl");
    for (size_t begin = 0, end; (end = log.find('\n', begin)) != std::string::npos; begin = end + 1)
        if (log.compare(begin, type.size() + 10, "{\"type\":\"" + type + "\"") == 0)
            lines.push_back(log.substr(begin, end - begin));
    return lines;
}

// The records of one type by step. If a resumed run has repeated a step, the later record counts.
inline std::map<int64_t, std::string> records_by_step(const std::string& out_dir, const std::string& type) {
    std::map<int64_t, std::string> records;
    for (const std::string& line : records_in(out_dir, type)) {
        int64_t step = -1;
        from_json({{"", "step", &step, ""}}, line, out_dir);
        records[step] = line;
    }
    return records;
}

inline std::vector<StepRecord> steps_in(const std::string& out_dir) {
    std::vector<StepRecord> steps;
    for (const auto& [step, line] : records_by_step(out_dir, "step")) {
        StepRecord record{.step = step};
        from_json({{"", "loss", &record.loss, ""}, {"", "norm", &record.norm, ""}, {"", "lr", &record.lr, ""}}, line,
                  out_dir);
        steps.push_back(record);
    }
    return steps;
}

// The first difference between two checkpoints, "" if there is none. Compares all bytes of all files, except for the
// training time, and for the flags, which may change when a run is resumed.
inline std::string difference(const std::string& a, const std::string& b) {
    const auto names = [](const std::string& folder) {
        std::vector<std::string> all;
        for (const auto& entry : std::filesystem::directory_iterator(folder)) all.push_back(entry.path().filename());
        std::sort(all.begin(), all.end());
        return all;
    };
    if (names(a) != names(b)) return "the names of the files";
    for (const std::string& name : names(a)) {
        if (name == "state.json" || name == kRunFlagsFile || name == "manifest.json") continue;  // hold times or flags
        if (read_file(a + "/" + name) != read_file(b + "/" + name)) return name;
    }
    RunState left = state_in(a), right = state_in(b);
    left.training_s = right.training_s = 0;
    const std::string says = to_json(left.fields()), other = to_json(right.fields());
    return says == other ? "" : "state.json: " + says + " against " + other;
}
