/*
How many rows of logits the head computes at a time (Gpt::add_loss). Each device has its own number,
Device::head_rows():

  CPU   about 64 MiB of fp32 logits: long enough for full speed, yet a small part of the memory
  GPU   1/32 of the card's memory and at most 2^30 logits, but at least 8192 rows: fewer rows leave multiprocessors
        idle, and each chunk reads and writes the head's gradient once. If memory is short, the trainer halves the
        number (llmc/train/memory_budget.h)

The number sets the order in which the head's gradient is summed, so it changes the last bits of a run. On a GPU it
depends on the card, the vocabulary and the batch, and on free memory only if that is short.

ANVIL_HEAD_ROWS=N, a multiple of 64, overrides the number, for measurements.
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

// The rows of each chunk if N rows are cut into the fewest chunks of at most `rows`, all of equal size up to rounding:
// a small last chunk would be slow on every device.
inline int64_t even_head_rows(int64_t N, int64_t rows) {
    const int64_t chunks = (N + rows - 1) / rows, each = (N + chunks - 1) / chunks;
    return std::min(rows, (each + kLeastHeadRows - 1) / kLeastHeadRows * kLeastHeadRows);
}

// The number for N rows of Vp logits (the padded vocabulary); at most N.
inline int64_t cpu_head_rows(int64_t N, int64_t Vp) {
    if (const int64_t forced = forced_head_rows()) return std::min(N, forced);
    return std::min(N, std::max(kLeastHeadRows, (int64_t(16) << 20) / Vp / kLeastHeadRows * kLeastHeadRows));
}
inline int64_t gpu_head_rows(int64_t N, int64_t Vp, size_t value_bytes, size_t memory_bytes) {
    if (const int64_t forced = forced_head_rows()) return std::min(N, forced);
    const auto logits = std::min(int64_t(memory_bytes / 32 / value_bytes), int64_t(1) << 30);
    return even_head_rows(N, std::min(N, std::max(kGpuHeadRows, logits / Vp / kLeastHeadRows * kLeastHeadRows)));
}
