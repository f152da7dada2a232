/*
Compares runs of several ranks with runs of one, by losses and checkpoints, and finds their processes.

  must_succeed(mpirun(4, command_of(runs.flags("a", kEight))));
  tensor_difference(a, b)                  "" if two checkpoints hold the same bits, in whichever files
  losses_in(out_dir)                       exact loss and norm of every step
  for (const RankOfRun& rank : ranks_of(out_dir)) kill(rank.pid, SIGKILL);
*/
#pragma once
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>
#include "llmc/interop/adapter.h"  // kAdapterFile
#include "llmc/io/safetensors.h"   // SafetensorsReader
#include "test/program.h"          // FlagMap, steps_in

// Eight micro-batches of 2 x 16 tokens per step. Gradients are clipped in some steps and not in others.
inline const FlagMap kEight = {
    {"total-batch-size", "256"}, {"grad-sum", "tree"}, {"checkpoint-every", "0"}, {"warmup-steps", "2"}};

inline FlagMap with(FlagMap flags, const FlagMap& more) {
    for (const auto& [name, value] : more) flags[name] = value;
    return flags;
}

// All tensors of a checkpoint by name, as floats: weights, and the optimizer's state joined from its files.
inline std::map<std::string, std::vector<float>> tensors_in(const std::string& folder) {
    std::map<std::string, std::vector<float>> all;
    const bool adapts = std::filesystem::exists(folder + "/" + kAdapterFile);
    const SafetensorsReader model(folder + "/" + (adapts ? kAdapterFile : kModelFile));
    for (const Tensor& tensor : model.tensors()) {
        all[tensor.name].resize(size_t(tensor.size()));
        std::memcpy(all[tensor.name].data(), tensor.data, tensor.size_bytes());
    }
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        const std::string name = entry.path().filename();
        if (!name.starts_with("optimizer_")) continue;
        const SafetensorsReader file(entry.path());
        for (const Tensor& tensor : file.tensors()) {
            const std::string whole = tensor.name.substr(0, tensor.name.rfind('['));
            const size_t begin = std::stoul(tensor.name.substr(tensor.name.rfind('[') + 1));
            std::vector<float>& values = all[whole];
            values.resize(std::max(values.size(), begin + size_t(tensor.size())), std::nanf(""));
            if (tensor.dtype == DType::bf16) {
                std::vector<bf16> halves(size_t(tensor.size()));
                std::memcpy(halves.data(), tensor.data, tensor.size_bytes());
                for (size_t i = 0; i < halves.size(); i++) values[begin + i] = to_float(halves[i]);
            } else {
                std::memcpy(values.data() + begin, tensor.data, tensor.size_bytes());
            }
        }
    }
    return all;
}

// "" if two checkpoints hold the same tensors, bit for bit; else the first difference.
inline std::string tensor_difference(const std::string& a, const std::string& b) {
    const auto left = tensors_in(a), right = tensors_in(b);
    if (left.size() != right.size()) return "the names of the tensors";
    for (const auto& [name, values] : left) {
        const auto other = right.find(name);
        if (other == right.end()) return name + " is missing";
        if (values.size() != other->second.size()) return name + ": its size";
        if (std::memcmp(values.data(), other->second.data(), values.size() * sizeof(float))) return name;
    }
    return "";
}

// The exact loss and norm of every step.
inline std::vector<std::pair<double, double>> losses_in(const std::string& out_dir) {
    std::vector<std::pair<double, double>> all;
    for (const StepRecord& step : steps_in(out_dir)) all.push_back({step.loss, step.norm});
    return all;
}

// A process of a run.
struct RankOfRun {
    int rank;
    pid_t pid;
};

// The live processes of train_gpt with --out-dir=OUT, in rank order. The rank is that of the launcher's variable or of
// --rank.
inline std::vector<RankOfRun> ranks_of(const std::string& out_dir) {
    std::vector<RankOfRun> all;
    std::error_code gone;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
        const std::string folder = entry.path(), pid = entry.path().filename();
        if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
        const auto words_of = [&](const char* name) {
            std::vector<std::string> words;
            std::FILE* file = std::fopen((folder + "/" + name).c_str(), "r");
            if (!file) return words;
            std::string word;
            for (int c; (c = std::fgetc(file)) != EOF;) {
                if (c)
                    word += char(c);
                else
                    words.push_back(std::exchange(word, ""));
            }
            std::fclose(file);
            return words;
        };
        const std::vector<std::string> words = words_of("cmdline");
        const bool of_run = std::find(words.begin(), words.end(), "--out-dir=" + out_dir) != words.end();
        if (!of_run || std::filesystem::path(words[0]).filename() != "train_gpt") continue;
        int rank = 0;
        for (const char* variable : {"OMPI_COMM_WORLD_RANK=", "RANK="})
            for (const std::string& word : words_of("environ"))
                if (word.starts_with(variable)) rank = std::stoi(word.substr(std::strlen(variable)));
        for (const std::string& word : words)
            if (word.starts_with("--rank=")) rank = std::stoi(word.substr(7));
        all.push_back({rank, pid_t(std::stol(pid))});
    }
    std::sort(all.begin(), all.end(), [](const RankOfRun& a, const RankOfRun& b) { return a.rank < b.rank; });
    return all;
}
