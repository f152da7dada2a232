/*
RMSNorm of queries and keys with weights, in place:   out = x * rstd * weight,   rstd = 1 / sqrt(mean(x^2) + eps)

  qkv, dqkv (B, T, NH + 2 NKV, HS) T     saved (B, T, NH + NKV, HS) T     rstd (B, T, NH + NKV) f32
  q_weight, k_weight (HS) T              dq_weight, dk_weight (HS) f32, +=             (llmc/ops/qk_rmsnorm.h)

Math      f32
Work      a group of kGroup lanes per head, one pack per lane, or two for a head of more than 32 packs; groups stride
          over the heads of all tokens. backward: each lane sums dweight of its columns in registers, each block the
          sums of its groups in shared memory, then add_partials
Bytes     forward 3, backward 3 times B*T*(NH + NKV)*HS*sizeof(T)
Accuracy  half a unit of T for what is stored, and roundings of f32 (test/cuda/qk_rmsnorm_cuda_test.cu)
Requires  HS % Pack<T>::size == 0, HS <= 256, pointers 16-byte aligned
*/
#pragma once
#include <algorithm>
#include <type_traits>
#include "llmc/base/check.h"     // ensure
#include "llmc/cuda/device.cuh"  // Pack, load16, store16, warp_sum, launch
#include "llmc/cuda/limits.h"    // check_head_size
#include "llmc/cuda/reduce.cuh"  // add_partials
#include "llmc/ops/attention.h"  // AttentionShape
#include "llmc/ops/op_cost.h"    // kQkRmsnormBackward, kQkRmsnormForward

inline constexpr int kQkNormThreads = 256;
inline constexpr int kQkNormBlocksPerSm = 2;  // backward: as few as keep an SM busy, since each has partial sums

template <class T, int kPacks, int kGroup>
__global__ void __launch_bounds__(kQkNormThreads)
    qk_rmsnorm_forward_kernel(T* qkv, T* saved, float* rstd, const T* q_weight, const T* k_weight, int64_t items,
                              AttentionShape shape, float eps) {
    constexpr int P = Pack<T>::size;
    const int heads = int(shape.NH + shape.NKV), HS = int(shape.HS), lane = threadIdx.x % kGroup;
    const auto column = [&](int i) { return (lane + i * kGroup) * P; };
    const int64_t item = int64_t(blockIdx.x) * (kQkNormThreads / kGroup) + threadIdx.x / kGroup;
    const bool active = item < items;  // inactive lanes stay: whole warps reach the sum
    const int64_t token = active ? item / heads : 0, head = active ? item % heads : 0;
    T* row = qkv + (token * (heads + shape.NKV) + head) * HS;
    const T* weight = head < shape.NH ? q_weight : k_weight;
    Pack<T> x[kPacks] = {};
    float squares = 0;
    for (int i = 0; i < kPacks; i++) {
        if (!active || column(i) >= HS) continue;
        x[i] = load16(row + column(i));
        store16(saved + item * HS + column(i), x[i]);
        for (int k = 0; k < P; k++) squares = fmaf(to_float(x[i][k]), to_float(x[i][k]), squares);
    }
    const float s = 1 / sqrtf(warp_sum<kGroup>(squares) / float(HS) + eps);
    if (!active) return;
    if (lane == 0) rstd[item] = s;
    for (int i = 0; i < kPacks; i++) {
        if (column(i) >= HS) continue;
        const Pack<T> w = load16(weight + column(i));
        for (int k = 0; k < P; k++) x[i][k] = from_float<T>(to_float(x[i][k]) * s * to_float(w[k]));
        store16(row + column(i), x[i]);
    }
}

// With x = saved * rstd and g = dout * weight:   dinp = rstd * (g - x * mean(g * x)),   dweight += sum of dout * x
// partials (gridDim.x, 2, HS): dq_weight, then dk_weight
template <class T, int kPacks, int kGroup>
__global__ void __launch_bounds__(kQkNormThreads)
    qk_rmsnorm_backward_kernel(T* dqkv, float* partials, const T* saved, const float* rstd, const T* q_weight,
                               const T* k_weight, int64_t items, AttentionShape shape) {
    constexpr int P = Pack<T>::size, kGroups = kQkNormThreads / kGroup;
    SMEM_DYNAMIC(float, sums);  // (kGroups, 2, HS)
    const int heads = int(shape.NH + shape.NKV), HS = int(shape.HS);
    const int lane = threadIdx.x % kGroup, group = threadIdx.x / kGroup;
    const auto column = [&](int i) { return (lane + i * kGroup) * P; };
    float dq[kPacks][P] = {}, dk[kPacks][P] = {};
    for (int64_t first = int64_t(blockIdx.x) * kGroups; first < items; first += int64_t(gridDim.x) * kGroups) {
        const int64_t item = first + group;
        const bool active = item < items;  // inactive lanes stay: whole warps reach the sum
        const int64_t token = active ? item / heads : 0, head = active ? item % heads : 0;
        const bool is_query = head < shape.NH;
        T* row = dqkv + (token * (heads + shape.NKV) + head) * HS;
        const T* weight = is_query ? q_weight : k_weight;
        const float s = active ? rstd[item] : 0;
        float x[kPacks][P], g[kPacks][P], sum = 0;
        for (int i = 0; i < kPacks; i++) {
            if (!active || column(i) >= HS) continue;
            const Pack<T> x_pack = load16(saved + item * HS + column(i)), d_pack = load16(row + column(i));
            const Pack<T> w = load16(weight + column(i));
            for (int k = 0; k < P; k++) {
                const float d = to_float(d_pack[k]);
                x[i][k] = to_float(x_pack[k]) * s;
                g[i][k] = d * to_float(w[k]);
                sum = fmaf(g[i][k], x[i][k], sum);
                if (is_query)
                    dq[i][k] = fmaf(d, x[i][k], dq[i][k]);
                else
                    dk[i][k] = fmaf(d, x[i][k], dk[i][k]);
            }
        }
        const float mean = warp_sum<kGroup>(sum) / float(HS);
        for (int i = 0; i < kPacks; i++) {
            if (!active || column(i) >= HS) continue;
            Pack<T> dx;
            for (int k = 0; k < P; k++) dx[k] = from_float<T>((g[i][k] - x[i][k] * mean) * s);
            store16(row + column(i), dx);
        }
    }
    for (int i = 0; i < kPacks; i++)
        for (int k = 0; k < P; k++) {
            if (column(i) >= HS) continue;
            sums[(group * 2 + 0) * HS + column(i) + k] = dq[i][k];
            sums[(group * 2 + 1) * HS + column(i) + k] = dk[i][k];
        }
    __syncthreads();
    for (int c = threadIdx.x; c < 2 * HS; c += kQkNormThreads) {
        float sum = 0;
        for (int from = 0; from < kGroups; from++) sum += sums[from * 2 * HS + c];
        partials[int64_t(blockIdx.x) * 2 * HS + c] = sum;
    }
}

// Calls start(packs, group) with the packs per lane and the smallest power of two of lanes that covers a head.
template <class T, class Start>
void with_qk_norm_groups(int64_t HS, Start start) {
    using std::integral_constant;
    check_head_size<T>(HS);
    const int64_t packs = HS / Pack<T>::size;
    constexpr integral_constant<int, 1> one;
    if constexpr (kMaxHeadSize / Pack<T>::size > kWarp)
        if (packs > kWarp) return start(integral_constant<int, 2>(), integral_constant<int, kWarp>());
    const auto try_group = [&](auto group) {
        if (packs <= group && (group == 1 || packs > group / 2)) start(one, group);
    };
    try_group(one), try_group(integral_constant<int, 2>()), try_group(integral_constant<int, 4>());
    try_group(integral_constant<int, 8>()), try_group(integral_constant<int, 16>());
    try_group(integral_constant<int, 32>());
}

template <class T>
void qk_rmsnorm_forward(Cuda& cuda, T* qkv, T* saved, float* rstd, const T* q_weight, const T* k_weight,
                        AttentionShape shape, float eps) {
    const int64_t items = shape.B * shape.T * (shape.NH + shape.NKV);
    const OpScope op(cuda, __func__, elements_cost<T>(kQkRmsnormForward, items * shape.HS));
    with_qk_norm_groups<T>(shape.HS, [&](auto packs, auto group) {
        launch(cuda, "qk_rmsnorm_forward", qk_rmsnorm_forward_kernel<T, packs, group>,
               unsigned(ceil_div(items, int64_t(kQkNormThreads / group))), kQkNormThreads, 0, qkv, saved, rstd,
               q_weight, k_weight, items, shape, eps);
    });
}

template <class T>
void qk_rmsnorm_backward(Cuda& cuda, T* dqkv, float* dq_weight, float* dk_weight, const T* saved, const float* rstd,
                         const T* q_weight, const T* k_weight, AttentionShape shape) {
    const int64_t items = shape.B * shape.T * (shape.NH + shape.NKV), HS = shape.HS;
    const OpScope op(cuda, __func__, elements_cost<T>(kQkRmsnormBackward, items * HS));
    with_qk_norm_groups<T>(HS, [&](auto packs, auto group) {
        constexpr int64_t kGroups = kQkNormThreads / group;
        const int64_t blocks = std::min<int64_t>(ceil_div(items, kGroups), int64_t(kQkNormBlocksPerSm) * cuda.num_sms);
        float* partials = cuda.workspace_of<float>(blocks * 2 * HS);
        launch(cuda, "qk_rmsnorm_backward", qk_rmsnorm_backward_kernel<T, packs, group>, unsigned(blocks),
               kQkNormThreads, size_t(kGroups * 2 * HS) * sizeof(float), dqkv, partials, saved, rstd, q_weight,
               k_weight, items, shape);
        add_partials(cuda, {dq_weight, dk_weight}, partials, blocks, 2 * HS, HS);
    });
}
