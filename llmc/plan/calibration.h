/*
Replaces constants of the model (gpu_model.h) by benchmarks of a real card, and reports how far off the model was.

  const auto calibration = calibrate("doc/results/H100-2026-01-01", gpu);   or FILE,FILE: rows of dev/bench
  step_time(trace, calibration->gpu, calibration->cases[1], world_size)
  text_of(*calibration)                                                    row by row: predicted, measured, ratio

Measured are: a large copy; a large GEMM (also when warm); the share of a copy's rate that each memory-bound op of one
pass reaches; GEMMs at the shapes of models, in bf16 and FP8; attention, forward and backward, by head size; what a
launch costs in a stream, in a CUDA graph, and the host (dev/bench/launches.cu); the bandwidth and latency of NCCL's
collectives, in a server or among several (`bench-comm --json`, one rank per GPU).

A file is what `--json` of a benchmark or of bench-comm writes (dev/bench/bench.h, llmc/comm/bench_comm.h), or the
results.jsonl of scripts/gpu_check.sh; for a folder, every results.jsonl in it. Rows of other cards and rows in fp32 are
ignored. Of equal rows the last counts, as for dev/results/perf_table.py.
*/
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>
#include "llmc/plan/gpu_model.h"  // Gpu, MeasuredRates, ModelCase

struct CalibrationRow {
    std::string what, shape;
    double predicted_s, measured_s,
        calibrated_s;  // by the model as it is; by the benchmark; by the model with all rows
};

struct Calibration {
    std::string paths, device;  // "NVIDIA H100 80GB HBM3"
    Gpu before, gpu;            // by the tables; by the benchmarks
    MeasuredRates rates;
    // Low, mid and high, spread as far as the rows are from the model, if there are enough.
    ModelCase cases[3] = {kLow, kMid, kHigh};
    std::vector<CalibrationRow> rows;
    size_t num_unused = 0;  // rows of this card that the model has no use for
    bool has_copy = false, has_gemm = false, has_launches = false, has_host = false, has_collectives = false;
    double warm = 1;  // the factor by which a GEMM's rate changes within half a minute

    Calibration() = default;
    Calibration(const Calibration&) = delete;  // gpu.measured points to rates
    Calibration& operator=(const Calibration&) = delete;
};

// `paths`: files and folders, separated by commas. Throws an Error, for the user, for what cannot be read, is not a
// row, or was not measured on such a card.
std::shared_ptr<const Calibration> calibrate(const std::string& paths, const Gpu& gpu);

// What was replaced, then each row; ends with a newline.
std::string text_of(const Calibration& calibration);
