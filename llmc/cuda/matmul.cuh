/*
A linear layer by cuBLASLt:   out = inp weight^T + bias

  inp, dinp (N, C) T     weight (OC, C) T     bias (OC) T, may be null     out, dout (N, OC) T
  dinp =, may be null     dweight (OC, C) f32 = or +=, as `write` says, may be null     dbias (OC) f32 +=, may be null

matmul_gelu_forward stores hidden = inp weight^T + bias and out = gelu(hidden). matmul_gelu_backward is for a layer
whose inp = gelu(hidden): instead of dinp it gives dhidden (N, C) = (dout weight) * gelu'(hidden).

Math      sums in f32; f32 operands in true f32, not TF32
Work      one GEMM each. GELU, its derivative and the sums of a bias's gradient are epilogues where the library has them
          and, with tuning, they are not slower; else separate passes. The library overwrites the sums, so they go to
          the workspace and are added from there. Squared ReLU is an op of its own (relu_squared.cuh): no epilogue
          squares, and that of ReLU keeps bits of the signs where backward needs the values. A low-rank adapter: one
          GEMM for all of A, and one for each matrix's B, on columns of the output; the scale is alpha
Accuracy  f32: a sum of C products in any order; bf16: then 1 rounding (test/cuda/matmul_cuda_test.cu)
Requires  C and OC multiples of 16 bytes, pointers 16-byte aligned
*/
#pragma once
#include <type_traits>
#include "llmc/base/check.h"     // require
#include "llmc/cuda/cublaslt.h"  // CublasLt, MatmulCall
#include "llmc/cuda/device.cuh"  // Cuda, Pack
#include "llmc/cuda/gelu.cuh"    // gelu_forward, gelu_backward
#include "llmc/cuda/reduce.cuh"  // add_column_sums
#include "llmc/ops/matmul.h"     // Write
#include "llmc/ops/op_cost.h"    // matmul_backward_cost, matmul_forward_cost

template <class T>
inline constexpr DType kDType = std::is_same_v<T, bf16> ? DType::bf16 : DType::f32;

// Rows must be multiples of 16 bytes, which the tensor cores' fast paths require.
template <class T>
void check_linear_layer(const char* op, int64_t N, int64_t C, int64_t OC) {
    constexpr int P = Pack<T>::size;
    require(C % P == 0 && OC % P == 0, "%s of (%ld, %ld) by (%ld, %ld): the channels must be multiples of %d, 16 bytes",
            op, N, C, OC, C, P);
}

template <class T>
MatmulCall linear_forward(int64_t N, int64_t C, int64_t OC, Epilogue epilogue) {
    return {.m = N,
            .n = OC,
            .k = C,
            .transpose_b = true,
            .a = kDType<T>,
            .b = kDType<T>,
            .out = kDType<T>,
            .epilogue = epilogue};
}

template <class T>
MatmulCall linear_backward(int64_t N, int64_t C, int64_t OC) {
    return {.m = N, .n = C, .k = OC, .a = kDType<T>, .b = kDType<T>, .out = kDType<T>};
}

template <class T>
void matmul_forward(Cuda& cuda, T* out, const T* inp, const T* weight, const T* bias, int64_t N, int64_t C,
                    int64_t OC) {
    const OpScope op(cuda, __func__, matmul_forward_cost<T>(N, C, OC));
    check_linear_layer<T>("matmul_forward", N, C, OC);
    cuda.cublaslt().run(cuda, linear_forward<T>(N, C, OC, bias ? Epilogue::bias : Epilogue::none), out, inp, weight,
                        bias);
}

// In fp32 the library's GELU is off by up to six times the rounding of the product (an H100, cuBLASLt 13.1).
template <class T>
constexpr bool has_gelu = std::is_same_v<T, bf16>;

template <class T>
void matmul_gelu_forward(Cuda& cuda, T* out, T* hidden, const T* inp, const T* weight, const T* bias, int64_t N,
                         int64_t C, int64_t OC) {
    const OpScope op(cuda, __func__, matmul_forward_cost<T>(N, C, OC, 2));
    check_linear_layer<T>("matmul_gelu_forward", N, C, OC);
    const MatmulCall fused = linear_forward<T>(N, C, OC, bias ? Epilogue::gelu_aux_bias : Epilogue::gelu_aux);
    const MatmulCall plain = linear_forward<T>(N, C, OC, bias ? Epilogue::bias : Epilogue::none);
    if (has_gelu<T> && cuda.cublaslt().prefers(cuda, fused, plain, 2. * double(N * OC) * sizeof(T)))
        return cuda.cublaslt().run(cuda, fused, out, inp, weight, bias, hidden);
    matmul_forward(cuda, hidden, inp, weight, bias, N, C, OC);
    gelu_forward(cuda, out, hidden, N * OC);
}

// Bytes of workspace: cuBLASLt's own, and after it the sums of a bias's gradient.
inline size_t weight_gradient_workspace(int64_t OC) { return CublasLt::kWorkspaceBytes + size_t(OC) * sizeof(float); }

// The gradients of weight and bias.
template <class T>
void weight_gradient(Cuda& cuda, float* dweight, float* dbias, const T* dout, const T* inp, int64_t N, int64_t C,
                     int64_t OC, Write write) {
    if (!dweight && dbias) add_column_sums(cuda, dbias, dout, N, OC);
    if (!dweight) return;
    const MatmulCall plain = weight_gradient_call(kDType<T>, N, C, OC, write == Write::add, Epilogue::none);
    const MatmulCall fused = weight_gradient_call(kDType<T>, N, C, OC, write == Write::add, Epilogue::row_sums);
    if (dbias && cuda.cublaslt().prefers(cuda, fused, plain, double(N * OC) * sizeof(T))) {
        char* const workspace = static_cast<char*>(cuda.workspace(weight_gradient_workspace(OC)));
        float* const sums = reinterpret_cast<float*>(workspace + CublasLt::kWorkspaceBytes);
        cuda.cublaslt().run(cuda, fused, dweight, dout, inp, nullptr, sums);
        return add_partials(cuda, dbias, sums, 1, OC, OC);
    }
    cuda.cublaslt().run(cuda, plain, dweight, dout, inp);
    if (dbias) add_column_sums(cuda, dbias, dout, N, OC);
}

template <class T>
void matmul_backward(Cuda& cuda, T* dinp, float* dweight, float* dbias, const T* dout, const T* inp, const T* weight,
                     int64_t N, int64_t C, int64_t OC, Write write = Write::add) {
    const OpScope op(cuda, __func__, matmul_backward_cost<T>(N, C, OC, write, 2, dweight));
    check_linear_layer<T>("matmul_backward", N, C, OC);
    if (dinp) cuda.cublaslt().run(cuda, linear_backward<T>(N, C, OC), dinp, dout, weight);
    weight_gradient(cuda, dweight, dbias, dout, inp, N, C, OC, write);
}

template <class T>
void matmul_gelu_backward(Cuda& cuda, T* dhidden, float* dweight, float* dbias, const T* dout, const T* inp,
                          const T* hidden, const T* weight, int64_t N, int64_t C, int64_t OC,
                          Write write = Write::add) {
    const OpScope op(cuda, __func__, matmul_backward_cost<T>(N, C, OC, write, 3, dweight));
    check_linear_layer<T>("matmul_gelu_backward", N, C, OC);
    MatmulCall fused = linear_backward<T>(N, C, OC);
    fused.epilogue = Epilogue::dgelu;
    if (has_gelu<T> &&
        cuda.cublaslt().prefers(cuda, fused, linear_backward<T>(N, C, OC), 3. * double(N * C) * sizeof(T))) {
        cuda.cublaslt().run(cuda, fused, dhidden, dout, weight, nullptr, const_cast<T*>(hidden));
    } else {
        cuda.cublaslt().run(cuda, linear_backward<T>(N, C, OC), dhidden, dout, weight);
        gelu_backward(cuda, dhidden, dhidden, hidden, N * C);
    }
    weight_gradient(cuda, dweight, dbias, dout, inp, N, C, OC, write);
}

template <class T>
void check_low_rank(const char* op, const LowRankShape& s) {
    check_linear_layer<T>(op, s.N, s.C, s.rank);
    for (int i = 0; i < s.parts; i++) check_linear_layer<T>(op, s.N, s.rank, s.rows[i]);
}

template <class T>
void low_rank_input(Cuda& cuda, T* low, const T* inp, const T* a, const LowRankShape& s) {
    MatmulCall call = linear_forward<T>(s.N, s.C, s.width(), Epilogue::none);
    call.alpha = s.scale;
    cuda.cublaslt().run(cuda, call, low, inp, a);
}

template <class T>
void low_rank_forward(Cuda& cuda, T* out, T* low, const T* inp, const T* a, const T* b, const LowRankShape& s) {
    const OpScope op(cuda, __func__, low_rank_forward_cost<T>(s));
    check_low_rank<T>("low_rank_forward", s);
    low_rank_input(cuda, low, inp, a, s);
    for (int64_t i = 0, at = 0; i < s.parts; at += s.rows[i++]) {
        MatmulCall call = linear_forward<T>(s.N, s.rank, s.rows[i], Epilogue::none);
        call.lda = s.width(), call.ldo = s.OC(), call.accumulate = true;
        cuda.cublaslt().run(cuda, call, out + at, low + i * s.rank, b + at * s.rank);
    }
}

template <class T>
void low_rank_backward(Cuda& cuda, T* dinp, float* da, float* db, T* low, T* dlow, const T* dout, const T* inp,
                       const T* a, const T* b, const LowRankShape& s, Write write, Write dinp_write) {
    const OpScope op(cuda, __func__, low_rank_backward_cost<T>(s));
    check_low_rank<T>("low_rank_backward", s);
    const bool adds = write == Write::add;
    low_rank_input(cuda, low, inp, a, s);
    for (int64_t i = 0, at = 0; i < s.parts; at += s.rows[i++]) {
        MatmulCall of_b = weight_gradient_call(kDType<T>, s.N, s.rank, s.rows[i], adds, Epilogue::none);
        of_b.lda = s.OC(), of_b.ldb = s.width();
        cuda.cublaslt().run(cuda, of_b, db + at * s.rank, dout + at, low + i * s.rank);
        MatmulCall of_low = linear_backward<T>(s.N, s.rank, s.rows[i]);
        of_low.lda = s.OC(), of_low.ldo = s.width(), of_low.alpha = s.scale;
        cuda.cublaslt().run(cuda, of_low, dlow + i * s.rank, dout + at, b + at * s.rank);
    }
    cuda.cublaslt().run(cuda, weight_gradient_call(kDType<T>, s.N, s.C, s.width(), adds, Epilogue::none), da, dlow,
                        inp);
    MatmulCall of_inp = linear_backward<T>(s.N, s.C, s.width());
    of_inp.accumulate = dinp_write == Write::add;
    cuda.cublaslt().run(cuda, of_inp, dinp, dlow, a);
}
