/*
Rows that benchmarks leave in files: of dev/bench with --json, of `train_gpt bench-comm --json`, and all of a folder of
scripts/gpu_check.sh.

  const MeasuredRows rows = read_rows("results,comm.jsonl");
*/
#pragma once
#include <cstdint>
#include <string>
#include <vector>

// A row of a benchmark in dev/bench.
struct BenchRow {
    std::string what, shape, device, dtype;
    bool is_memory;
    double seconds, bytes, flops, peak;
    double rival_s;  // of the library that it is compared with; 0: there is none
    std::string rival;
    int64_t rows, in, out, keys, head_size;  // 0: not of this op
};

// A row of bench-comm: a collective of NCCL between GPUs.
struct CommRow {
    std::string what, device;
    int64_t ranks, bytes;
    double seconds;
    int passes;  // 0: the model's collectives are others
};
struct MeasuredRows {
    std::vector<BenchRow> bench;
    std::vector<CommRow> comm;
};

// The rows of files, or of all results.jsonl in folders, with commas between them; of duplicates the last one counts.
// Throws an Error with the file and line of a row that is none.
MeasuredRows read_rows(const std::string& paths);
