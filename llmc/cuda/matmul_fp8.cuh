/*
A linear layer in FP8:   out = inp weight^T + bias,   by cuBLASLt (scales: llmc/base/fp8.h, quantize.cuh)

  inp (N, C), weight (OC, C) e4m3     dout (N, OC) e5m2     out (N, OC), dinp (N, C) T =; dinp may be null
  dweight (OC, C) f32 = or +=, as `write` says, or null     bias (OC) T, may be null; its gradient is matmul.cuh's

Math      sums are accumulated inside the tensor cores: all the way in forward (fast accumulation); in backward, whose
          sums go into the weights, they are moved to f32 at intervals
Work      one GEMM each, along rows of both operands: backward takes the transposed copies
Bytes     forward at least N*C + OC*C + N*OC*sizeof(T)
Accuracy  for the same quantized values: a sum of C products in any order, then 1 rounding to T; with fast accumulation
          the sum has about 14 bits on Hopper (DeepSeek-V3, arXiv:2412.19437, 3.3.2)
          (test/cuda/matmul_fp8_cuda_test.cu)
Requires  N, C, OC multiples of 16, pointers 16-byte aligned, sm_89; with a bias, bf16: the library adds no f32 bias to
          GEMMs in FP8. In MX multiples of 32, sm_100, cuBLASLt 12.8. Neither speed nor accuracy measured on a GPU yet
*/
#pragma once
#include "llmc/base/check.h"     // require
#include "llmc/base/fp8.h"       // Quantized, check_fp8_layer
#include "llmc/cuda/limits.h"    // check_fp8_device
#include "llmc/cuda/cublaslt.h"  // CublasLt, MatmulCall
#include "llmc/cuda/device.cuh"  // Cuda
#include "llmc/cuda/matmul.cuh"  // kDType

template <class T>
void matmul_fp8_forward(Cuda& cuda, T* out, const Quantized<e4m3>& inp, const Quantized<e4m3>& weight, const T* bias) {
    const OpScope op(cuda, __func__);
    const int64_t N = inp.rows, C = inp.cols, OC = weight.rows;
    check_fp8_layer("matmul_fp8_forward", N, C, OC);
    check_fp8_device(cuda, "matmul_fp8_forward");
    ensure(weight.cols == C);
    cuda.cublaslt().run(cuda,
                        {.m = N,
                         .n = OC,
                         .k = C,
                         .transpose_b = true,
                         .a = DType::e4m3,
                         .b = DType::e4m3,
                         .out = kDType<T>,
                         .epilogue = bias ? Epilogue::bias : Epilogue::none,
                         .fast_accumulate = true},
                        out, inp.data, weight.data, bias, nullptr, nullptr, {inp.inverse_scale, weight.inverse_scale});
}

template <class T>
void matmul_fp8_backward(Cuda& cuda, T* dinp, float* dweight, const Quantized<e5m2>& dout, const Quantized<e4m3>& inp,
                         const Quantized<e4m3>& weight, Write write = Write::add) {
    const OpScope op(cuda, __func__);
    const int64_t N = inp.rows, C = inp.cols, OC = weight.rows;
    check_fp8_layer("matmul_fp8_backward", N, C, OC);
    check_fp8_device(cuda, "matmul_fp8_backward");
    ensure(weight.cols == C && dout.rows == N && dout.cols == OC);
    MatmulCall call = {
        .m = N, .n = C, .k = OC, .transpose_b = true, .a = DType::e5m2, .b = DType::e4m3, .out = kDType<T>};
    if (dinp)
        cuda.cublaslt().run(cuda, call, dinp, dout.data, weight.transposed, nullptr, nullptr, nullptr,
                            {dout.inverse_scale, weight.inverse_scale});
    if (!dweight) return;
    call.m = OC, call.n = C, call.k = N, call.out = DType::f32, call.accumulate = write == Write::add;
    cuda.cublaslt().run(cuda, call, dweight, dout.transposed, inp.transposed, nullptr, nullptr, nullptr,
                        {dout.inverse_scale, inp.inverse_scale});
}

template <class T>
void matmul_mx_forward(Cuda& cuda, T* out, const MxTensor& inp, const MxTensor& weight, const T* bias) {
    const OpScope op(cuda, __func__);
    check_mx_layer("matmul_mx_forward", inp, weight);
    check_mx_device(cuda, "matmul_mx_forward");
    const MatmulCall call = {.m = inp.rows,
                             .n = weight.rows,
                             .k = inp.cols,
                             .transpose_b = true,
                             .a = DType::e4m3,
                             .b = DType::e4m3,
                             .out = kDType<T>,
                             .epilogue = bias ? Epilogue::bias : Epilogue::none,
                             .block_scales = true};
    cuda.cublaslt().run(cuda, call, out, inp.data, weight.data, bias, nullptr, nullptr, {inp.scales, weight.scales});
}

template <class T>
void matmul_mx_backward(Cuda& cuda, T* dinp, float* dweight, const MxTensor& dout, const MxTensor& inp,
                        const MxTensor& weight, Write write = Write::add) {
    const OpScope op(cuda, __func__);
    const int64_t N = inp.rows, C = inp.cols, OC = weight.rows;
    check_mx_layer("matmul_mx_backward", inp, weight);
    check_mx_device(cuda, "matmul_mx_backward");
    ensure(dout.rows == N && dout.cols == OC);
    MatmulCall call = {.m = N, .n = C, .k = OC, .transpose_b = true, .a = DType::e4m3, .b = DType::e4m3};
    call.out = kDType<T>, call.block_scales = true;
    if (dinp)
        cuda.cublaslt().run(cuda, call, dinp, dout.data, weight.transposed, nullptr, nullptr, nullptr,
                            {dout.scales, weight.transposed_scales});
    call.m = OC, call.n = C, call.k = N, call.out = DType::f32, call.accumulate = write == Write::add;
    cuda.cublaslt().run(cuda, call, dweight, dout.transposed, inp.transposed, nullptr, nullptr, nullptr,
                        {dout.transposed_scales, inp.transposed_scales});
}
