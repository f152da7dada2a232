/*
Softmax cross-entropy:   loss[n] = log(sum over v < V of exp(logits[n,v])) - logits[n, targets[n]]

  logits  (N, Vp) T, of which the first V columns count; the rest is padding and is never predicted
  targets (N) int32 in [0, V)     losses (N) float, in nats
The fused form turns logits into their gradients in place, dlogits = (softmax - onehot) * dloss, the padding into zeros:
a second buffer of V columns never exists, or in bf16 one row of float a thread, so that nothing is rounded on the way.

With a softcap (llmc/base/op_types.h) of limit c the logits are replaced by l(logits) first, and dlogits gets the factor
dl/dlogits:
  tanh   l = c - 2c / (e + 1),  slope 4e / (e + 1)^2,  with e = exp(2 logits / c)
  isru   l = logits r,          slope r^3,             with r = 1 / sqrt((logits / c)^2 + 1)
Logits of any size have finite ones of both.
*/
#pragma once
#include <cstdint>
#include "llmc/base/op_types.h"  // Softcap

template <class Device, class T>
struct CrossEntropyOps {
    void (*cross_entropy_forward)(Device&, float* losses, const T* logits, const int32_t* targets, int64_t N, int64_t V,
                                  int64_t Vp, Softcap softcap);
    void (*cross_entropy_forward_backward)(Device&, float* losses, T* logits, const int32_t* targets, float dloss,
                                           int64_t N, int64_t V, int64_t Vp, Softcap softcap);
};
