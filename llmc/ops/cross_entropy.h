/*
Softmax cross-entropy:   loss[n] = log(sum over v < V of exp(logits[n,v])) - logits[n, targets[n]]

  logits  (N, Vp) T, of which the first V columns count; the others are padding and are never predicted
  targets (N) int32 in [0, V), or below 0: the row is ignored, with loss 0 and gradients 0, whatever its logits are, as
          with PyTorch's ignore_index                                     losses (N) float, in nats
The fused form overwrites logits with their gradients, dlogits = (softmax - onehot) * dloss, and the padding with zeros,
so no second buffer is needed. In bf16 each thread keeps one row in float, so that only results are rounded.

With a softcap (Softcap) of limit c, the logits are first replaced by l(logits), and dlogits gets the factor
dl/dlogits:
  tanh   l = c - 2c / (e + 1),  slope 4e / (e + 1)^2,  with e = exp(2 logits / c)
  isru   l = logits r,          slope r^3,             with r = 1 / sqrt((logits / c)^2 + 1)
l and its slope are finite for logits of any magnitude.
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include "llmc/base/check.h"  // ensure

// A smooth bound on the logits before the softmax, nearly the identity far below its limit.
//   tanh   limit * tanh(logit / limit)                         Gemma 2, 2024, arXiv:2408.00118; nanochat, at 15
//   isru   limit * logit / sqrt(logit^2 + limit^2)             Carlile et al., 2017, arXiv:1710.09967; modded-nanogpt
struct Softcap {
    enum class Kind { none, tanh, isru } kind = Kind::none;
    float limit = 0;  // positive, except for none

    bool operator==(const Softcap&) const = default;
};

inline void check_softcap(Softcap cap) { ensure(cap.kind == Softcap::Kind::none || cap.limit > 0); }

// A logit beyond this many limits is at the limit in every type that we use, and its slope is 0.
inline constexpr float kSoftcapFar = 0x1p60f;

// Softcaps one logit on the host, for samplers, which get the logits as the head stores them.
inline float capped(float logit, Softcap cap) {
    check_softcap(cap);
    if (cap.kind == Softcap::Kind::none) return logit;
    const double limit = double(cap.limit), far = double(kSoftcapFar), x = std::clamp(double(logit) / limit, -far, far);
    return float(limit * (cap.kind == Softcap::Kind::tanh ? std::tanh(x) : x / std::sqrt(x * x + 1)));
}

template <class Device, class T>
struct CrossEntropyOps {
    void (*cross_entropy_forward)(Device&, float* losses, const T* logits, const int32_t* targets, int64_t N, int64_t V,
                                  int64_t Vp, Softcap softcap);
    void (*cross_entropy_forward_backward)(Device&, float* losses, T* logits, const int32_t* targets, float dloss,
                                           int64_t N, int64_t V, int64_t Vp, Softcap softcap);
};
