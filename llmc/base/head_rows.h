/*
How many rows of logits the head computes at one time (Gpt::add_loss). Each device has its own number,
Device::head_rows():

  CPU   about 64 MiB of fp32 logits: long enough for full speed, short enough to stay a small part of the memory
  GPU   a 32nd of the card's memory, 2^30 logits at most, but at least 8192 rows: fewer leave multiprocessors idle, and
        the head's gradient is read and written once for each chunk. Where memory is short the trainer halves the
        number (llmc/train/memory_budget.h)

The number decides in which order the head's gradient is added up, so it changes the last bits of a run. On a GPU it
follows from the card, the vocabulary and the batch, and from free memory only where that is short.

ANVIL_HEAD_ROWS=N, a multiple of 64, overrides it, to measure what a number costs.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include "llmc/base/check.h"  // require

inline constexpr int64_t kLeastHeadRows = 64;
inline constexpr int64_t kGpuHeadRows = 8192;

// The value of ANVIL_HEAD_ROWS; 0: not set.
inline int64_t forced_head_rows() {
    const char* text = std::getenv("ANVIL_HEAD_ROWS");
    if (!text || !*text) return 0;
    char* end = nullptr;
    const int64_t rows = std::strtoll(text, &end, 10);
    require(*end == 0 && rows >= kLeastHeadRows && rows % kLeastHeadRows == 0,
            "ANVIL_HEAD_ROWS=%s: expected a multiple of %ld, such as 8192, or nothing", text, long(kLeastHeadRows));
    return rows;
}

// Chunks of equal size, to a tile, of at most `rows` each: a small last one would be slow on every device.
inline int64_t even_head_rows(int64_t N, int64_t rows) {
    const int64_t chunks = (N + rows - 1) / rows, each = (N + chunks - 1) / chunks;
    return std::min(rows, (each + kLeastHeadRows - 1) / kLeastHeadRows * kLeastHeadRows);
}

// Of N rows at most; Vp: of the logits, padded.
inline int64_t cpu_head_rows(int64_t N, int64_t Vp) {
    if (const int64_t forced = forced_head_rows()) return std::min(N, forced);
    return std::min(N, std::max(kLeastHeadRows, (int64_t(16) << 20) / Vp / kLeastHeadRows * kLeastHeadRows));
}
inline int64_t gpu_head_rows(int64_t N, int64_t Vp, size_t value_bytes, size_t memory_bytes) {
    if (const int64_t forced = forced_head_rows()) return std::min(N, forced);
    const auto logits = std::min(int64_t(memory_bytes / 32 / value_bytes), int64_t(1) << 30);
    return even_head_rows(N, std::min(N, std::max(kGpuHeadRows, logits / Vp / kLeastHeadRows * kLeastHeadRows)));
}
