/*
The results of a run, for programs that start runs and compare them: --summary and --results.

--summary: lines at its end. Names are those of autoresearch (Karpathy, 2026), whose harness searches for them:

  ---
  val_loss:           1.905412        of the last validation, nats per token; nan: there was none
  val_bpb:            2.748920        of the last validation, bits per byte; nan: there was none, or no tokenizer
  accuracy_NAME:      0.294900        of each task of --eval-tasks; score_FILE: the mean centered accuracy of a file
  best_val_loss:      1.893127        the lowest of all validations; only with --save-best or --patience
  best_step:          1250            the step of that validation
  training_seconds:   300.1           time in steps, including the run before a resume; --time-budget limits it
  total_seconds:      325.9           since this process started
  ...

--results FILE: one line per run, to compare many of them: autoresearch's results.tsv (Karpathy, 2026, program.md) with
more columns. Tab-separated, the first line names the columns:

  commit       of the source this program was made of
  config       a hash of all flags but those of names, places and processes: runs that share it differ in seed alone
  seed
  val_bpb, val_loss, tokens, steps, seconds (in steps), memory_mb (the peak), mfu_percent      as --summary has them
  status       finished, time budget, a signal's name, or failed (exit code N)
  out_dir, description

A file with a different first line is refused before the run begins.
*/
#pragma once
#include <chrono>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "llmc/eval/loss.h"      // Evaluation
#include "llmc/run/run_flags.h"  // RunFlags

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

// What --summary prints.
std::string summary_text(const RunSummary& summary);

// --results, before the run: creates the file if it does not exist. Throws an Error if it is not such a table or not
// writable.
void check_results(const std::string& path);
// Appends the line of --results; to a new file the header first. Only warns if that fails, so as not to hide how the
// run ended.
void append_result(const std::string& path, const RunFlags& flags, const RunSummary& summary,
                   const std::string& status);
