/*
Softmax cross-entropy:   loss[n] = log(sum over v < V of exp(l[n,v])) - l[n, targets[n]],   l = logits, softcapped if a
cap is given;   dlogits = (softmax(l) - onehot) * dloss * dl/dlogits, in place, columns V to Vp zero

  logits (N, Vp) T     targets (N) int32 in [0, V), or below 0: loss and gradients 0     losses (N) f32, in nats
                                                                                    (llmc/ops/cross_entropy.h)

Math      f32; maximum and sum in one pass, the sum rescaled when a larger logit comes; powers of 2 by fast_exp2
Work      one block per row; each thread takes every kEntropyThreads-th pack, with 4 loads in flight
Bytes     1, with gradients 2 times N*Vp*sizeof(T): the second read finds the row in L2
Accuracy  f32: losses 4 eps, dlogits 1.5 |l - max| + 6 eps of each, and in both twice a cap's error: 2c eps of tanh, 3c
          of isru; bf16: half an eps more for stored values (test/cuda/cross_entropy_cuda_test.cu)
Requires  Vp % Pack<T>::size == 0, pointers 16-byte aligned, V < 2^30
*/
#pragma once
#include "llmc/base/check.h"         // require
#include "llmc/cuda/device.cuh"      // Pack, load16, store16, fast_exp2, block_max, block_sum, launch
#include "llmc/ops/cross_entropy.h"  // Softcap, kSoftcapFar, check_softcap, capped
#include "llmc/ops/op_cost.h"        // cross_entropy_forward_backward_cost, cross_entropy_forward_cost

inline constexpr int kEntropyThreads = 512;

template <class T, bool kLearn, Softcap::Kind kCap>
__global__ void __launch_bounds__(kEntropyThreads, 2)
    cross_entropy_kernel(float* losses, std::conditional_t<kLearn, T, const T>* logits, const int32_t* targets,
                         float dloss, int V, int Vp, float limit) {
    constexpr int P = Pack<T>::size, kStep = kEntropyThreads * P;
    constexpr float kLog2E = 1.4426950409f, kLargest = 3.402823466e38f;
    SMEM_STATIC(float, shared, [kWarp]);
    auto* row = logits + int64_t(blockIdx.x) * Vp;
    const float to_power = 2 * kLog2E / limit, to_limits = 1 / limit, far = limit * kSoftcapFar;
    const auto capped = [=](float x, float& slope) {  // as in llmc/cpu/cross_entropy.h
        if constexpr (kCap == Softcap::Kind::tanh) {
            const float e = fast_exp2(x * to_power), rest = __fdividef(1, e + 1);
            slope = 4 * (fminf(e, kLargest) * rest) * rest;  // an infinite e has slope 0, not NaN
            return fmaf(rest, -2 * limit, limit);
        } else if constexpr (kCap == Softcap::Kind::isru) {
            x = x > far ? far : x < -far ? -far : x;  // not fminf(), which drops a NaN
            const float y = x * to_limits, r = rsqrtf(fmaf(y, y, 1));
            slope = r * r * r;
            return x * r;
        } else {
            slope = 1;
            return x;
        }
    };
    const auto power = [](float x) { return fast_exp2(x * kLog2E); };

    const int target = targets[blockIdx.x];
    if (target < 0) {
        if (threadIdx.x == 0) losses[blockIdx.x] = 0;
        if constexpr (kLearn)
            for (int v = threadIdx.x * P; v < Vp; v += kStep) store16(row + v, Pack<T>{});
        return;
    }
    float target_slope;
    const float target_logit = capped(to_float(row[target]), target_slope);  // read before its gradient overwrites it
    // Starts at the lowest float: then a logit of -infinity adds 0, where -infinity minus itself would be NaN.
    float largest = -kLargest, sum = 0, slope;
    const auto add = [&](const float(&x)[P]) {
        float m = largest, added = 0;
        for (int k = 0; k < P; k++) m = fmaxf(m, x[k]);
        for (int k = 0; k < P; k++) added += power(x[k] - m);
        sum = fmaf(sum, power(largest - m), added);
        largest = m;
    };
    const int whole = V / P * P;  // columns in packs without padding
#pragma unroll 4
    for (int v = threadIdx.x * P; v < whole; v += kStep) {
        const Pack<T> pack = load16(row + v);
        float x[P];
        for (int k = 0; k < P; k++) x[k] = capped(to_float(pack[k]), slope);
        add(x);
    }
    if (threadIdx.x == 0 && whole < V) {
        float x[P];
        for (int k = 0; k < P; k++) x[k] = whole + k < V ? capped(to_float(row[whole + k]), slope) : -INFINITY;
        add(x);
    }
    const float row_max = block_max(largest, shared);
    const float row_sum = block_sum(sum * power(largest - row_max), shared);
    if (threadIdx.x == 0) losses[blockIdx.x] = logf(row_sum) + (row_max - target_logit);
    if constexpr (kLearn) {
        constexpr int kPacks = 2;  // loaded before the first of them is stored
        const float scale = dloss / row_sum;
        for (int begin = threadIdx.x * P; begin < Vp; begin += kPacks * kStep) {
            Pack<T> packs[kPacks];
#pragma unroll
            for (int i = 0; i < kPacks; i++)
                if (begin + i * kStep < Vp) packs[i] = load16(row + begin + i * kStep);
#pragma unroll
            for (int i = 0; i < kPacks; i++) {
                const int v = begin + i * kStep;
                if (v >= Vp) continue;
                float d[P];
                for (int k = 0; k < P; k++) {
                    const float x = capped(to_float(packs[i][k]), slope);
                    d[k] = power(x - row_max) * scale * slope;
                }
                if (v >= whole)
                    for (int k = 0; k < P; k++) d[k] = v + k < V ? d[k] : 0;
                for (int k = 0; k < P; k++) packs[i][k] = from_float<T>(d[k]);
                store16(row + v, packs[i]);
            }
        }
        __syncthreads();
        // Subtract 1 before scaling: with a probability near 1 the other order would cancel twice.
        if (threadIdx.x == 0)
            row[target] = from_float<T>((power(target_logit - row_max) - row_sum) * scale * target_slope);
    }
}

template <bool kLearn, class T, class Logits>
void launch_cross_entropy(Cuda& cuda, float* losses, Logits* logits, const int32_t* targets, float dloss, int64_t N,
                          int64_t V, int64_t Vp, Softcap softcap) {
    check_softcap(softcap);
    require(Vp % Pack<T>::size == 0, "cross_entropy of rows of %ld: they must be a multiple of %d, 16 bytes", Vp,
            Pack<T>::size);
    using enum Softcap::Kind;
    const auto kernel = softcap.kind == none   ? cross_entropy_kernel<T, kLearn, none>
                        : softcap.kind == tanh ? cross_entropy_kernel<T, kLearn, tanh>
                                               : cross_entropy_kernel<T, kLearn, isru>;
    launch(cuda, "cross_entropy", kernel, unsigned(N), kEntropyThreads, 0, losses, logits, targets, dloss, int(V),
           int(Vp), softcap.limit);
}

template <class T>
void cross_entropy_forward(Cuda& cuda, float* losses, const T* logits, const int32_t* targets, int64_t N, int64_t V,
                           int64_t Vp, Softcap softcap = {}) {
    const OpScope op(cuda, __func__, cross_entropy_forward_cost<T>(N, V, softcap, Cuda::kExpFlops));
    launch_cross_entropy<false, T>(cuda, losses, logits, targets, 0, N, V, Vp, softcap);
}

template <class T>
void cross_entropy_forward_backward(Cuda& cuda, float* losses, T* logits, const int32_t* targets, float dloss,
                                    int64_t N, int64_t V, int64_t Vp, Softcap softcap = {}) {
    const OpScope op(cuda, __func__, cross_entropy_forward_backward_cost<T>(N, V, Vp, softcap, Cuda::kExpFlops));
    launch_cross_entropy<true, T>(cuda, losses, logits, targets, dloss, N, V, Vp, softcap);
}
