/*
Smear:   out[b,0] = inp[b,0],   out[b,t] = inp[b,t] + lambda sigmoid(w . inp[b,t,0:G]) inp[b,t-1]

  inp, out, dinp, dout (B, T, C) T     gate_weight (G) T     lambda (1) T     dgate_weight (G) f32, dlambda (1) f32 +=
  dinp = ; out is not inp, dinp is not dout                             (llmc/ops/smear.h has the derivatives)

Math      f32, each result rounded once; backward recomputes the gates, nothing is saved
Work      one warp per row. backward: kSmearRows rows per block, whose dgate_weight and dlambda add_partials adds up
Bytes     forward 2, backward 3 times N*C*sizeof(T): the previous and the next row come from the cache
Accuracy  half a unit of T for what is stored, and roundings of f32 (test/cuda/smear_cuda_test.cu)
Requires  C % Pack<T>::size == 0, G <= kWarp, pointers to activations 16-byte aligned
*/
#pragma once
#include "llmc/base/check.h"     // require
#include "llmc/cuda/device.cuh"  // Pack, load16, store16, warp_sum, launch
#include "llmc/cuda/gate.cuh"    // gate_of, gate_channel, check_gate
#include "llmc/cuda/reduce.cuh"  // add_partials
#include "llmc/ops/op_cost.h"    // kSmearBackward, kSmearForward

inline constexpr int kSmearWarps = 8, kSmearRows = 32;  // rows per block of backward: 4 per warp

template <class T>
__global__ void __launch_bounds__(kWarp* kSmearWarps)
    smear_forward_kernel(T* out, const T* inp, const T* gate_weight, const T* lambda, int64_t N, int64_t T_, int C,
                         int G) {
    constexpr int P = Pack<T>::size;
    const int64_t n = int64_t(blockIdx.x) * kSmearWarps + threadIdx.x / kWarp;
    if (n >= N) return;  // whole warps return together
    const bool is_first = n % T_ == 0;
    const T* row = inp + n * C;
    const float factor = to_float(*lambda) * gate_of(gate_channel(row, G), gate_channel(gate_weight, G)).open;
    for (int c = int(threadIdx.x % kWarp) * P; c < C; c += kWarp * P) {
        Pack<T> x = load16(row + c);
        if (!is_first) {
            const Pack<T> before = load16(row - C + c);
            for (int k = 0; k < P; k++) x[k] = from_float<T>(fmaf(to_float(before[k]), factor, to_float(x[k])));
        }
        store16(out + n * C + c, x);
    }
}

template <class T>
void check_smear(const char* op, int64_t C, int64_t G) {
    require(C % Pack<T>::size == 0, "%s of %ld channels: they must be a multiple of %d, 16 bytes", op, C,
            Pack<T>::size);
    check_gate(op, G, C);
}

template <class T>
void smear_forward(Cuda& cuda, T* out, const T* inp, const T* gate_weight, const T* lambda, int64_t B, int64_t T_,
                   int64_t C, int64_t G) {
    const OpScope op(cuda, __func__, elements_cost<T>(kSmearForward, B * T_ * C));
    check_smear<T>("smear_forward", C, G);
    launch(cuda, "smear_forward", smear_forward_kernel<T>, unsigned(ceil_div(B * T_, kSmearWarps)), kWarp * kSmearWarps,
           0, out, inp, gate_weight, lambda, B * T_, T_, int(C), int(G));
}

// partials (gridDim.x, G + 1): dgate_weight, then dlambda
template <class T>
__global__ void __launch_bounds__(kWarp* kSmearWarps)
    smear_backward_kernel(T* dinp, float* partials, const T* dout, const T* inp, const T* gate_weight, const T* lambda,
                          int64_t N, int64_t T_, int C, int G) {
    constexpr int P = Pack<T>::size;
    SMEM_STATIC(float, sums, [kSmearWarps][kWarp]);
    SMEM_STATIC(float, lambda_sums, [kSmearWarps]);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const float weight = gate_channel(gate_weight, G), factor = to_float(*lambda);
    const int64_t end = min(N, (int64_t(blockIdx.x) + 1) * kSmearRows);
    float dweight = 0, dlambda = 0;
    for (int64_t n = int64_t(blockIdx.x) * kSmearRows + warp; n < end; n += kSmearWarps) {
        const bool is_first = n % T_ == 0, is_last = n % T_ == T_ - 1;
        const T *row = inp + n * C, *grad = dout + n * C;
        const float next = is_last ? 0 : factor * gate_of(gate_channel(row + C, G), weight).open;
        float sum = 0, gated[P] = {};  // gated: the first channels, stored once the sum is known
        for (int c = lane * P; c < C; c += kWarp * P) {
            const Pack<T> d = load16(grad + c);
            Pack<T> after{}, before{};
            if (!is_last) after = load16(grad + C + c);
            if (!is_first) before = load16(row - C + c);
            float dx[P];
            for (int k = 0; k < P; k++) {
                sum = fmaf(to_float(d[k]), to_float(before[k]), sum);
                dx[k] = fmaf(to_float(after[k]), next, to_float(d[k]));
            }
            Pack<T> y;
            for (int k = 0; k < P; k++) y[k] = from_float<T>(dx[k]);
            if (c >= G)
                store16(dinp + n * C + c, y);
            else
                for (int k = 0; k < P; k++) gated[k] = dx[k];
        }
        sum = warp_sum(sum);
        const float x = gate_channel(row, G);
        const GateOpening gate = gate_of(x, weight);
        const float du = is_first ? 0 : sum * factor * gate.slope;
        if (!is_first) dlambda = fmaf(sum, gate.open, dlambda);
        if (!is_first) dweight = fmaf(du, x, dweight);
        if (lane * P >= G) continue;
        Pack<T> y;
        for (int k = 0; k < P; k++) {
            const int g = lane * P + k;
            y[k] = from_float<T>(is_first || g >= G ? gated[k] : fmaf(du, to_float(gate_weight[g]), gated[k]));
        }
        store16(dinp + n * C + lane * P, y);
    }
    sums[warp][lane] = dweight;
    if (lane == 0) lambda_sums[warp] = dlambda;
    __syncthreads();
    if (warp > 0) return;
    for (int w = 1; w < kSmearWarps; w++) dweight += sums[w][lane], dlambda += lambda_sums[w];
    float* to = partials + int64_t(blockIdx.x) * (G + 1);
    if (lane < G) to[lane] = dweight;
    if (lane == 0) to[G] = dlambda;
}

// Floats of workspace.
inline int64_t smear_backward_workspace(int64_t N, int64_t G) { return ceil_div(N, int64_t(kSmearRows)) * (G + 1); }

template <class T>
void smear_backward(Cuda& cuda, T* dinp, float* dgate_weight, float* dlambda, const T* dout, const T* inp,
                    const T* gate_weight, const T* lambda, int64_t B, int64_t T_, int64_t C, int64_t G) {
    const OpScope op(cuda, __func__, elements_cost<T>(kSmearBackward, B * T_ * C));
    check_smear<T>("smear_backward", C, G);
    const int64_t N = B * T_, blocks = ceil_div(N, int64_t(kSmearRows));
    float* partials = cuda.workspace_of<float>(smear_backward_workspace(N, G));
    launch(cuda, "smear_backward", smear_backward_kernel<T>, unsigned(blocks), kWarp * kSmearWarps, 0, dinp, partials,
           dout, inp, gate_weight, lambda, N, T_, int(C), int(G));
    add_partials(cuda, dgate_weight, partials, blocks, G + 1, G);
    add_partials(cuda, dlambda, partials + G, blocks, G + 1, 1);
}
