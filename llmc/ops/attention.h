/*
Causal self-attention without a T x T matrix (online softmax: Milakov and Gimelshein, 2018, arXiv:1805.02867; tiles: Dao
et al., 2022, arXiv:2205.14135), with a sliding window (Beltagy et al., 2020, arXiv:2004.05150), with document
masking in packed rows (Krell et al., 2021, arXiv:2107.02027), and with grouped-query attention (Ainslie et al., 2023,
arXiv:2305.13245):

  out[t] = sum over first[t] <= s <= t of softmax_s(scale q[t] . k[s]) v[s]    for each of B sequences and NH heads
  first[t] = max(t - window, starts[t], 0)

  starts (B, T) int32, or null for zeros: the first token of t's document in its row (document_starts.h)
  qkv (B, T, NH + 2 NKV, HS): queries, keys, values; query head h has key head h / (NH / NKV)    out (B, T, NH, HS)
  lse (B, NH, T): natural log of the softmax's denominator, of scaled scores; backward recomputes the softmax from it
Backward overwrites dqkv, shaped like qkv. HS is at most 256, and even in bf16; on a GPU a multiple of 16 bytes.

qkv, out and their gradients are float or bf16; sums, weights and lse are float. With bf16 the operands of GEMMs are
rounded to bf16: weights and, in backward, dS.
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

inline constexpr int64_t kMaxHeadSize = 256;  // the largest head that attention's tiles support

// Causal self-attention with grouped-query heads: NKV key/value heads, each shared by NH / NKV consecutive query heads.
// qkv is (B, T, NH + 2 NKV, HS): the queries of all heads, then the keys, then the values.
struct AttentionShape {
    int64_t B, T, NH, NKV, HS;
    // Query t sees the keys s with t - window <= s <= t, window + 1 of them. Negative: all up to t. This is
    // FlashAttention's window_size = (window, 0).
    int64_t window = -1;
    float scale = 0;  // of the scores; 0: 1 / sqrt(HS)
    // (B, T), in device memory: where in its row the document of each token begins, the first key that the token sees.
    // starts[b, t] <= t, and never decreases along a row (document_starts.h). Null: each row is one document.
    const int32_t* starts = nullptr;

    int64_t row() const { return (NH + 2 * NKV) * HS; }  // from one token of qkv to the next
    float score_scale() const { return scale != 0 ? scale : 1 / std::sqrt(float(HS)); }
    // The first key that query t sees in a row of one document, or in row b if the host can read `starts`.
    int64_t first_key(int64_t t) const { return window < 0 || t < window ? 0 : t - window; }
    int64_t first_key(int64_t b, int64_t t) const {
        return starts ? std::max<int64_t>(starts[b * T + t], first_key(t)) : first_key(t);
    }
};

template <class Device, class T>
struct AttentionOps {
    void (*attention_forward)(Device&, T* out, float* lse, const T* qkv, const AttentionShape& shape);
    void (*attention_backward)(Device&, T* dqkv, const T* dout, const T* out, const float* lse, const T* qkv,
                               const AttentionShape& shape);
};
