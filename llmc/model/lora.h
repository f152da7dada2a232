/*
A low-rank adapter of a linear layer (LoRA: Hu et al., 2021, arXiv:2106.09685):

  out = inp weight^T + bias + (alpha / r) dropout(inp) A^T B^T

  A (r, C)   uniform in +-1/sqrt(C), as PEFT has it     B (OC, r)   zero, so that training begins with the model itself

Only A and B learn: the model's own weights have neither gradients nor optimizer state, and backward has no GEMM for
them. Where a layer stacks matrices that are apart in transformers (Q, K and V; gate and up), each has an adapter of
its own (Lora::is_split). The GEMMs are low_rank_forward and low_rank_backward of llmc/ops/matmul.h.
*/
#pragma once
#include <cmath>
#include <cstdint>
#include "llmc/model/shape.h"  // Lora
#include "llmc/ops/dropout.h"  // DropoutMask
#include "llmc/ops/matmul.h"   // LowRankShape
#include "llmc/ops/ops.h"      // Ops

// Memory that the adapters of all layers share.
template <class T>
struct LoraScratch {
    T *low = nullptr, *dlow = nullptr;  // (N, the most rows of an A)
    T* dropped = nullptr;               // (N, widest input); null: no dropout
};

template <class T>
struct LoraLayer {
    const T *a = nullptr, *b = nullptr;  // null: no adapter
    float *da = nullptr, *db = nullptr;
    LowRankShape shape = {};
    LoraScratch<T> scratch = {};
    DropoutMask mask = {};
    bool has_dropout = false;
};

// The most rows of an A, all its matrices together.
inline int64_t lora_width(const GptShape& s) {
    size_t most = 0;
    for (const LinearKind kind : kLinearKinds)
        if (s.lora.adapts(kind)) most = std::max(most, lora_rows(s, kind).size());
    return int64_t(most) * s.lora.rank;
}

template <class Device, class T>
const T* lora_input(Device& device, const T* inp, const LoraLayer<T>& s) {
    if (!s.has_dropout) return inp;
    ops<T>(device).dropout(device, s.scratch.dropped, inp, s.mask, s.shape.N * s.shape.C);
    return s.scratch.dropped;
}

// Adds to out.
template <class Device, class T>
void lora_forward(Device& device, T* out, const T* inp, const LoraLayer<T>& s) {
    if (!s.a) return;
    ops<T>(device).low_rank_forward(device, out, s.scratch.low, lora_input(device, inp, s), s.a, s.b, s.shape);
}

// Adds to dinp; `write` is for the gradients of A and B.
template <class Device, class T>
void lora_backward(Device& device, T* dinp, const T* dout, const T* inp, const LoraLayer<T>& s, Write write) {
    if (!s.a) return;
    const int64_t n = s.shape.N * s.shape.C;
    T* const own = s.has_dropout ? s.scratch.dropped : dinp;  // dropped is read before it is overwritten
    ops<T>(device).low_rank_backward(device, own, s.da, s.db, s.scratch.low, s.scratch.dlow, dout,
                                     lora_input(device, inp, s), s.a, s.b, s.shape, write,
                                     s.has_dropout ? Write::set : Write::add);
    if (!s.has_dropout) return;
    ops<T>(device).dropout(device, own, own, s.mask, n);
    ops<T>(device).residual_add(device, dinp, dinp, own, n);
}
