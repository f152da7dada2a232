/*
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
#include <string>
#include "llmc/run/run_flags.h"  // RunFlags
#include "llmc/run/summary.h"    // RunSummary

// Before the run: creates the file if it does not exist. Throws an Error if it is not such a table or not writable.
void check_results(const std::string& path);
// Appends the line; to a new file the header first. Only warns if that fails, so as not to hide how the run ended.
void append_result(const std::string& path, const RunFlags& flags, const RunSummary& summary,
                   const std::string& status);
