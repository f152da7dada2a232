/*
Value embeddings:   v[n,h] += gate_scale s[n,h] table[tokens[n],h],   s[n,h] = sigmoid(gate_weight[h] . inp[n,0:G])

  qkv, dqkv (N, NH + 2 NKV, HS) T, whose values are v     inp, dinp (N, C) T     tokens (N) int32, each in [0, V)
  table (V, NKV, HS) T     gate_weight (NKV, G) T     dtable (V, NKV, HS) f32, dgate_weight (NKV, G) f32 +=
  dinp += in the first G channels                                       (llmc/ops/value_embedding.h has the derivatives)

Math      f32, each result rounded once; backward recomputes the gates, nothing is saved
Work      one warp per head of a token. backward: kValueRows tokens of a head per block, whose parts of dgate_weight
          add_partials adds up, then dinp, one thread per element, and dtable in a fixed order (scatter_rows.cuh)
Bytes     forward 3 N*NKV*HS*sizeof(T); backward 3 of them (dv twice), and 8*NKV*HS per distinct token
Accuracy  half a unit of T for what is stored, and roundings of f32 (test/cuda/value_embedding_cuda_test.cu)
Requires  HS % Pack<T>::size == 0, G <= kWarp, tokens below 2^24, qkv, dqkv and table 16-byte aligned
*/
#pragma once
#include "llmc/base/check.h"           // require
#include "llmc/base/memory.h"          // aligned
#include "llmc/cuda/device.cuh"        // Pack, load16, store16, warp_sum, launch
#include "llmc/cuda/gate.cuh"          // gate_of, gate_channel, check_gate, GateOpening
#include "llmc/cuda/reduce.cuh"        // add_partials
#include "llmc/cuda/scatter_rows.cuh"  // scatter_rows
#include "llmc/ops/attention.h"        // AttentionShape
#include "llmc/ops/op_cost.h"          // elements_cost, kValueEmbeddingForward

inline constexpr int kValueWarps = 8, kValueRows = 64;  // tokens per block of backward: 8 per warp
inline constexpr int kValueThreads = 256;

// `values` and `dvalues` point to the first value in qkv and dqkv; tokens are `row` apart.
template <class T>
__global__ void __launch_bounds__(kWarp* kValueWarps)
    value_embedding_forward_kernel(T* values, int64_t row, const T* inp, const int32_t* tokens, const T* table,
                                   const T* gate_weight, int64_t N, int NKV, int HS, int64_t C, int G,
                                   float gate_scale) {
    constexpr int P = Pack<T>::size;
    const int64_t i = int64_t(blockIdx.x) * kValueWarps + threadIdx.x / kWarp, n = i / NKV;
    if (n >= N) return;  // whole warps return together
    const int h = int(i % NKV);
    const GateOpening gate = gate_of(gate_channel(inp + n * C, G), gate_channel(gate_weight + h * G, G));
    const float factor = gate_scale * gate.open;
    T* v = values + n * row + h * HS;
    const T* entry = table + (int64_t(tokens[n]) * NKV + h) * HS;
    for (int c = int(threadIdx.x % kWarp) * P; c < HS; c += kWarp * P) {
        Pack<T> x = load16(v + c);
        const Pack<T> e = load16(entry + c);
        for (int k = 0; k < P; k++) x[k] = from_float<T>(fmaf(to_float(e[k]), factor, to_float(x[k])));
        store16(v + c, x);
    }
}

template <class T>
void check_value_embedding(const char* op, const AttentionShape& shape, int64_t C, int64_t G) {
    require(shape.HS % Pack<T>::size == 0, "%s with heads of %ld: expected a multiple of %d, 16 bytes", op, shape.HS,
            Pack<T>::size);
    check_gate(op, G, C);
}

template <class T>
void value_embedding_forward(Cuda& cuda, T* qkv, const T* inp, const int32_t* tokens, const T* table,
                             const T* gate_weight, const AttentionShape& shape, int64_t C, int64_t G,
                             float gate_scale) {
    const int64_t N = shape.B * shape.T;
    const OpScope op(cuda, __func__, elements_cost<T>(kValueEmbeddingForward, N * shape.NKV * shape.HS));
    check_value_embedding<T>("value_embedding_forward", shape, C, G);
    launch(cuda, "value_embedding_forward", value_embedding_forward_kernel<T>,
           unsigned(ceil_div(N * shape.NKV, int64_t(kValueWarps))), kWarp * kValueWarps, 0,
           qkv + (shape.NH + shape.NKV) * shape.HS, shape.row(), inp, tokens, table, gate_weight, N, int(shape.NKV),
           int(shape.HS), C, int(G), gate_scale);
}

// Block y is a head. factors (N, NKV): what a head's table entry was multiplied by; slopes (N, NKV): the gradient of
// its gate's sum; partials (gridDim.x, NKV, G).
template <class T>
__global__ void __launch_bounds__(kWarp* kValueWarps)
    value_embedding_gates_kernel(float* factors, float* slopes, float* partials, const T* dvalues, int64_t row,
                                 const T* inp, const int32_t* tokens, const T* table, const T* gate_weight, int64_t N,
                                 int HS, int64_t C, int G, float gate_scale) {
    constexpr int P = Pack<T>::size;
    SMEM_STATIC(float, sums, [kValueWarps][kWarp]);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, h = blockIdx.y, NKV = gridDim.y;
    const float weight = gate_channel(gate_weight + h * G, G);
    const int64_t end = min(N, (int64_t(blockIdx.x) + 1) * kValueRows);
    float dweight = 0;
    for (int64_t n = int64_t(blockIdx.x) * kValueRows + warp; n < end; n += kValueWarps) {
        const T* dv = dvalues + n * row + h * HS;
        const T* entry = table + (int64_t(tokens[n]) * NKV + h) * HS;
        float sum = 0;
        for (int c = lane * P; c < HS; c += kWarp * P) {
            const Pack<T> d = load16(dv + c), e = load16(entry + c);
            for (int k = 0; k < P; k++) sum = fmaf(to_float(d[k]), to_float(e[k]), sum);
        }
        const float x = gate_channel(inp + n * C, G);
        const GateOpening gate = gate_of(x, weight);
        const float du = warp_sum(sum) * gate_scale * gate.slope;
        dweight = fmaf(du, x, dweight);
        if (lane > 0) continue;
        factors[n * NKV + h] = gate_scale * gate.open;
        slopes[n * NKV + h] = du;
    }
    sums[warp][lane] = dweight;
    __syncthreads();
    if (warp > 0 || lane >= G) return;
    for (int w = 1; w < kValueWarps; w++) dweight += sums[w][lane];
    partials[(int64_t(blockIdx.x) * NKV + h) * G + lane] = dweight;
}

template <class T>
__global__ void __launch_bounds__(kValueThreads)
    value_embedding_inputs_kernel(T* dinp, const float* slopes, const T* gate_weight, int64_t N, int NKV, int64_t C,
                                  int G) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, n = i / G;
    if (n >= N) return;
    const int g = int(i % G);
    float dx = to_float(dinp[n * C + g]);
    for (int h = 0; h < NKV; h++) dx = fmaf(to_float(gate_weight[h * G + g]), slopes[n * NKV + h], dx);
    dinp[n * C + g] = from_float<T>(dx);
}

// Bytes of workspace: scatter_rows's, factors and slopes, and the partial sums of dgate_weight.
inline size_t value_embedding_backward_workspace(const AttentionShape& shape, int64_t G) {
    const int64_t N = shape.B * shape.T, NKV = shape.NKV;
    return scatter_rows_workspace(N, NKV * shape.HS) +
           size_t(2 * N * NKV + ceil_div(N, int64_t(kValueRows)) * NKV * G) * sizeof(float);
}

template <class T>
void value_embedding_backward(Cuda& cuda, T* dinp, float* dtable, float* dgate_weight, const T* dqkv, const T* inp,
                              const int32_t* tokens, const T* table, const T* gate_weight, const AttentionShape& shape,
                              int64_t C, int64_t G, float gate_scale) {
    const OpScope op(cuda, __func__);
    check_value_embedding<T>("value_embedding_backward", shape, C, G);
    const int64_t N = shape.B * shape.T, NKV = shape.NKV, HS = shape.HS, blocks = ceil_div(N, int64_t(kValueRows));
    char* memory = static_cast<char*>(cuda.workspace(value_embedding_backward_workspace(shape, G)));
    float* factors = reinterpret_cast<float*>(memory + scatter_rows_workspace(N, NKV * HS));
    float *slopes = factors + N * NKV, *partials = slopes + N * NKV;
    const T* dvalues = dqkv + (shape.NH + NKV) * HS;
    launch(cuda, {"value_embedding_gates", elements_cost<T>(2, 2, N * NKV * HS)}, value_embedding_gates_kernel<T>,
           dim3(unsigned(blocks), unsigned(NKV)), kWarp * kValueWarps, 0, factors, slopes, partials, dvalues,
           shape.row(), inp, tokens, table, gate_weight, N, int(HS), C, int(G), gate_scale);
    add_partials(cuda, dgate_weight, partials, blocks, NKV * G, NKV * G);
    launch(cuda, {"value_embedding_inputs", elements_cost<T>(2, 4, N * G)}, value_embedding_inputs_kernel<T>,
           unsigned(ceil_div(N * G, int64_t(kValueThreads))), kValueThreads, 0, dinp, slopes, gate_weight, N, int(NKV),
           C, int(G));
    scatter_rows(cuda, memory, dtable, dvalues, shape.row(), tokens, N, NKV * HS, factors, HS);
}
