/*
--summary: the results of a run, for programs that start runs and compare them. Names are those of autoresearch
(Karpathy, 2026), whose harness searches for them:

  ---
  val_loss:           1.905412        of the last validation, nats per token; nan: there was none
  val_bpb:            2.748920        of the last validation, bits per byte; nan: there was none, or no tokenizer
  accuracy_NAME:      0.294900        of each task of --eval-tasks; score_FILE: the mean centered accuracy of a file
  best_val_loss:      1.893127        the lowest of all validations; only with --save-best or --patience
  best_step:          1250            the step of that validation
  training_seconds:   300.1           time in steps, including the run before a resume; --time-budget limits it
  total_seconds:      325.9           since this process started
  ...
*/
#pragma once
#include <chrono>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "llmc/base/check.h"  // format
#include "llmc/eval/loss.h"   // Evaluation

inline const auto program_start = std::chrono::steady_clock::now();

struct RunSummary {
    Evaluation evaluation;
    std::vector<std::pair<std::string, double>> scores = {};  // (name, value) for --eval-tasks
    std::optional<double> best_loss = {};                     // only with --save-best or --patience
    int64_t best_step = -1;
    double training_s, total_s;
    size_t peak_bytes;
    double mfu;            // 0: the device's peak is not known
    double cropped = NAN;  // fraction of the documents' tokens that packing dropped; NaN: no packing
    int64_t tokens, steps, parameters, layers;
};

inline std::string summary_text(const RunSummary& s) {
    std::string text = "---\n";
    const auto line = [&](const char* name, int digits, double value) {
        text += format("%-19s %.*f\n", (std::string(name) + ":").c_str(), digits, value);
    };
    const double peak_mb = double(s.peak_bytes) / (1 << 20);
    line("val_loss", 6, s.evaluation.loss);
    line("val_bpb", 6, s.evaluation.bits_per_byte);
    for (const auto& [name, value] : s.scores) line(name.c_str(), 6, value);
    if (s.best_loss) line("best_val_loss", 6, *s.best_loss), line("best_step", 0, double(s.best_step));
    line("training_seconds", 1, s.training_s);
    line("total_seconds", 1, s.total_s);
    line("peak_memory_mb", 1, peak_mb);
    line("peak_vram_mb", 1, peak_mb);  // autoresearch's name; on a CPU there is no other memory
    line("mfu_percent", 2, 100 * s.mfu);
    if (!std::isnan(s.cropped)) line("cropped_percent", 2, 100 * s.cropped);
    line("total_tokens_M", 3, double(s.tokens) * 1e-6);
    line("num_steps", 0, double(s.steps));
    line("num_params_M", 3, double(s.parameters) * 1e-6);
    line("depth", 0, double(s.layers));
    return text;
}
