/*
Dropout (Srivastava et al., 2014, JMLR 15):   out[i] = inp[i] * (kept(i) ? 1 / (1 - p) : 0)

  inp, out (n) T     out may be inp. Each result is rounded once; NaN stays NaN, as in PyTorch
Backward is the same function of dout with the same mask. No mask is stored: whether an element is kept depends only on
`key` and on its index e = first + i. It is kept if element_bits(key, e) is at least p 2^32. So a row has the same mask
wherever and whenever it is computed: on any rank, in any batch, by any thread, and again when activations are
recomputed.
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include "llmc/base/rng.h"  // Rng, mix64, element_bits

struct DropoutMask {
    uint64_t key = 0, first = 0;
    uint32_t threshold = 0;  // 0: all elements are kept
    float scale = 1;
};

// p in [0, 1)
inline DropoutMask dropout_mask(double p, uint64_t key, uint64_t first) {
    const double threshold = std::min(std::round(p * 0x1p32), 0x1p32 - 1);
    return {key, first, uint32_t(threshold), float(1 / (1 - p))};
}

// A site is one of the places in a model that have dropout. Each has its own key in every step.
inline uint64_t dropout_key(uint64_t seed, uint64_t step, uint64_t site) {
    return mix64(Rng(mix64(seed) + step, Stream::dropout).next() + site * Rng::kStep);
}

template <class Device, class T>
struct DropoutOps {
    void (*dropout)(Device&, T* out, const T* inp, DropoutMask mask, int64_t n);
};
