/*
Arguments that an op takes as one, the same on every device.
*/
#pragma once
#include <cmath>
#include <cstdint>

// Causal self-attention with grouped heads: NKV key/value heads, each shared by NH / NKV query heads that follow each
// other. In memory (B, T, NH + 2 NKV, HS): the queries of all heads, then the keys, then the values.
struct AttentionShape {
    int64_t B, T, NH, NKV, HS;
    // Query t sees the keys s with t - window <= s <= t, window + 1 of them; negative: all up to t. This is what
    // FlashAttention calls window_size = (window, 0).
    int64_t window = -1;
    float scale = 0;  // of the scores; 0: 1 / sqrt(HS)

    int64_t row() const { return (NH + 2 * NKV) * HS; }  // from one token of qkv to the next
    float score_scale() const { return scale != 0 ? scale : 1 / std::sqrt(float(HS)); }
    // The first key that query t sees.
    int64_t first_key(int64_t t) const { return window < 0 || t < window ? 0 : t - window; }
};
