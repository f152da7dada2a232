/*
Causal self-attention with a sliding window, document masking and grouped-query heads (llmc/ops/attention.h):

  out[t] = sum over first[t] <= s <= t of softmax_s(scale q[t] . k[s]) v[s],   first[t] = max(t - window, starts[t], 0)

  qkv, dqkv (B, T, NH + 2 NKV, HS) T     out, dout (B, T, NH, HS) T     lse (B, NH, T) f32: saved for backward
  dqkv =     (lse is a natural logarithm, as on the CPU, so that any forward goes with any backward)

Math      GEMMs of bf16 on tensor cores up to HS 128, all others by multiply-adds in f32; scores, softmax and sums in
          f32. In bf16, weights and dS are rounded before they are multiplied
Work      bf16: cuDNN's kernels for the shapes given to plan_attention(), where it has any and Cuda::attention allows
          them (cudnn_attention.h); else our own, for heads of 64 and 128. Smaller heads, and those in between, are
          padded in the kernel and cost as much as 64 or 128: flash_attention_forward.cuh,
          flash_attention_backward.cuh or, on Hopper, flash_attention_hopper.cuh,
          flash_attention_hopper_backward.cuh. fp32, and heads above 128 in bf16, by multiply-adds: attention_fp32.cuh.
          In our kernels blocks share no sums, or add to them in a fixed order: the same bits each time. Only they take
          documents; keys before the first document of a tile of queries cost nothing, nor do queries after the last
          document of a tile of keys
FLOPs     per score that the mask lets through: forward 4 HS, backward 14 HS (scores and dP are computed twice), on
          Hopper 10 HS. A query sees (T + 1) / 2 keys on average, with a window at most window + 1
Bytes     with e = sizeof(T): forward e B T HS (2 NH + 2 NKV) + 4 B NH T; backward at least
          e B T HS (2 (NH + 2 NKV) + 2 NH) + 4 B NH T, and dout, q, k, v once more, from L2 where they fit
Accuracy  half a unit of T of every weight, of dS, and of what is stored (test/cpu/attention_reference.h)
Requires  NH % NKV == 0; HS a multiple of 16 bytes up to 256: of 8 in bf16, of 4 in fp32; tensors 16-byte aligned;
          workspace: 12 bytes per row of scores in backward (attention_stats.cuh), on Hopper also sums of dq for a few
          heads at a time
*/
#pragma once
#include <algorithm>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>
#include "llmc/base/check.h"  // require
#include "llmc/cuda/attention/attention_fp32.cuh"
#include "llmc/cuda/attention/cudnn_attention.h"  // CudnnAttention
#include "llmc/cuda/attention/flash_attention_backward.cuh"
#include "llmc/cuda/attention/flash_attention_forward.cuh"
#include "llmc/cuda/attention/flash_attention_hopper.cuh"
#include "llmc/cuda/attention/flash_attention_hopper_backward.cuh"
#include "llmc/cuda/limits.h"  // check_head_size
#include "llmc/ops/op_cost.h"  // attention_backward_cost, attention_forward_cost

template <class T>
void check_attention(const AttentionShape& s, std::initializer_list<const void*> tensors) {
    require(s.NKV > 0 && s.NH % s.NKV == 0, "attention: %ld query heads over %ld key heads: expected a multiple", s.NH,
            s.NKV);
    check_head_size<T>(s.HS);
    require(s.T < 1 << 29 && s.B < 1 << 16 && s.NH < 1 << 16,
            "attention: %ld sequences of %ld tokens with %ld heads: lower --batch-size or --seq-len", s.B, s.T, s.NH);
    ensure(s.score_scale() > 0);
    for (const void* tensor : tensors) ensure(reinterpret_cast<uintptr_t>(tensor) % 16 == 0);
}

// Calls run(std::integral_constant) with the number of columns per lane.
template <class Run>
void with_columns_per_lane(int64_t HS, Run run) {
    if (HS <= 64)
        run(std::integral_constant<int, 2>());
    else if (HS <= 128)
        run(std::integral_constant<int, 4>());
    else
        run(std::integral_constant<int, 8>());
}

// Whether backward is left to cuDNN, if it supports the shape. On an H100 (doc/performance.md) ours takes 0.83 of the
// time of cuDNN's deterministic one for heads of 64, 0.65 for heads of 128 with a window, but 1.11 without; of its
// fastest one 0.94, 1.04 and 1.21.
inline bool wants_cudnn_backward(Cuda& cuda, const AttentionShape& s) {
    if (cuda.attention != AttentionKernels::automatic) return cuda.attention == AttentionKernels::cudnn;
    const bool has_window = s.window >= 0 && s.window < s.T - 1;
    return !takes_hopper_kernels(cuda) || (s.HS > 64 && !(has_window && cuda.cudnn_attention().deterministic()));
}

// Declares, once at the start of a run, the shapes that it will use in every step. For these cuDNN's kernels run where
// it has any, and their plans are made now, backward's only if `learns`. All other shapes (prompts, samples, tasks,
// windows that grow) are left to our own kernels, because a plan takes most of a second. Returns, for the log, which
// kernels run and why not others. Throws an Error if cuDNN was requested by name and cannot run.
template <class T>
std::string plan_attention(Cuda& cuda, const std::vector<AttentionShape>& shapes, bool learns) {
    auto& [forward, backward] = cuda.planned_attention.emplace();
    if (std::is_same_v<T, float>) return "own kernels (cuDNN's are for bf16)";
    if (cuda.attention == AttentionKernels::own) return "own kernels (--attention own)";
    CudnnAttention& cudnn = cuda.cudnn_attention();
    std::string why;
    for (const AttentionShape& shape : shapes) {
        const bool both = learns && wants_cudnn_backward(cuda, shape);
        if (!(both ? cudnn.supports(shape, &why) : cudnn.supports(shape, false, &why))) continue;
        forward.push_back(key_of(shape));
        if (both) backward.push_back(key_of(shape));
    }
    require(why.empty() || cuda.attention != AttentionKernels::cudnn, "--attention cudnn: %s", why.c_str());
    if (forward.empty()) return "own kernels (cuDNN: " + why + ")";
    return format("%s for batches of %ld x %ld, %s%s; own kernels elsewhere%s", cudnn.name().c_str(), shapes[0].B,
                  shapes[0].T,
                  !learns                 ? "forward"
                  : backward.empty()      ? "forward, and our own backward"
                  : cudnn.deterministic() ? "the same bits each time"
                                          : "backward at its fastest",
                  learns && backward.size() % forward.size() ? ", with our own backward for windows" : "",
                  why.empty() ? "" : (" (" + why + ")").c_str());
}

template <class T>
bool takes_cudnn(const Cuda& cuda, const AttentionShape& shape, bool is_backward) {
    if (std::is_same_v<T, float> || !cuda.planned_attention) return false;
    const auto& [forward, backward] = *cuda.planned_attention;
    const std::vector<AttentionKey>& shapes = is_backward ? backward : forward;
    return std::find(shapes.begin(), shapes.end(), key_of(shape)) != shapes.end();
}

// Bytes of workspace for forward and backward, whichever kernels run; before plan_attention() the most that they may
// take. Throws an Error if no kernel takes heads of this size, so that this is known before a model is allocated.
template <class T>
size_t attention_workspace(Cuda& cuda, const AttentionShape& shape, bool learns = true) {
    check_head_size<T>(shape.HS);
    const bool is_hopper = std::is_same_v<T, bf16> && shape.HS <= 128 && learns && takes_hopper_kernels(cuda);
    const size_t own =
        sizeof(float) * size_t(is_hopper ? hopper_backward_floats(cuda, shape) : attention_stats_size(shape));
    CudnnAttention& cudnn = cuda.cudnn_attention();
    const bool both = learns && wants_cudnn_backward(cuda, shape);
    if (cuda.planned_attention)
        return std::max(own, takes_cudnn<T>(cuda, shape, false) ? cudnn.workspace_bytes(shape, both) : 0);
    const bool never = std::is_same_v<T, float> || cuda.attention == AttentionKernels::own;
    return std::max(own, never || !cudnn.refuses(shape).empty() ? 0 : cudnn.most_workspace_bytes(shape, both));
}

template <class T>
void attention_forward(Cuda& cuda, T* out, float* lse, const T* qkv, const AttentionShape& shape) {
    const OpScope op(cuda, __func__, attention_forward_cost<T>(shape, Cuda::kExpFlops, seen_scores(shape)));
    if constexpr (std::is_same_v<T, bf16>)
        if (takes_cudnn<T>(cuda, shape, false)) return cuda.cudnn_attention().forward(cuda, out, lse, qkv, shape);
    check_attention<T>(shape, {out, qkv});
    if constexpr (std::is_same_v<T, float>)
        with_columns_per_lane(shape.HS, [&](auto J) { attention_fp32_forward<J>(cuda, out, lse, qkv, shape); });
    else if (shape.HS <= 64)
        takes_hopper_kernels(cuda) ? flash_attention_forward_hopper<64>(cuda, out, lse, qkv, shape)
                                   : flash_attention_forward<64>(cuda, out, lse, qkv, shape);
    else if (shape.HS <= 128)
        takes_hopper_kernels(cuda) ? flash_attention_forward_hopper<128>(cuda, out, lse, qkv, shape)
                                   : flash_attention_forward<128>(cuda, out, lse, qkv, shape);
    else
        attention_fp32_forward<8>(cuda, out, lse, qkv, shape);
}

// Overwrites dqkv.
template <class T>
void attention_backward(Cuda& cuda, T* dqkv, const T* dout, const T* out, const float* lse, const T* qkv,
                        const AttentionShape& shape) {
    const OpScope op(cuda, __func__, attention_backward_cost<T>(shape, Cuda::kExpFlops, seen_scores(shape)));
    if constexpr (std::is_same_v<T, bf16>)
        if (takes_cudnn<T>(cuda, shape, true))
            return cuda.cudnn_attention().backward(cuda, dqkv, dout, out, lse, qkv, shape);
    check_attention<T>(shape, {dqkv, dout, out, qkv});
    if constexpr (std::is_same_v<T, float>)
        with_columns_per_lane(shape.HS,
                              [&](auto J) { attention_fp32_backward<J>(cuda, dqkv, dout, out, lse, qkv, shape); });
    else if (shape.HS <= 64)
        takes_hopper_kernels(cuda) ? flash_attention_backward_hopper<64>(cuda, dqkv, dout, out, lse, qkv, shape)
                                   : flash_attention_backward<64>(cuda, dqkv, dout, out, lse, qkv, shape);
    else if (shape.HS <= 128)
        takes_hopper_kernels(cuda) ? flash_attention_backward_hopper<128>(cuda, dqkv, dout, out, lse, qkv, shape)
                                   : flash_attention_backward<128>(cuda, dqkv, dout, out, lse, qkv, shape);
    else
        attention_fp32_backward<8>(cuda, dqkv, dout, out, lse, qkv, shape);
}
