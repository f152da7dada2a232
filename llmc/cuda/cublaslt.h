/*
Matrix products by cuBLASLt: what the matmul entry point calls on a GPU (docs.nvidia.com/cuda/cublas, "Using the
cuBLASLt API").

  CublasLt cublaslt(cuda, tune_path);         one a device; "" takes ANVIL_MATMUL_CACHE, if that is set
  cublaslt.run(cuda, {.m = N, .n = OC, .k = C, .transpose_b = true}, out, inp, weight);       out = inp weight^T

Sums are fp32 whatever the types, and of fp32 operands true fp32, not TF32 (of FP8 operands with fast_accumulate
somewhat less). The error of an element is that of a sum of
k products in some order: k * 2^-24 times the sum of their magnitudes at most, then one rounding to the type of out.

Which algorithm: the first of the library's own ranking, or with tuning the fastest of up to kCandidates, timed once for
each product of a training step (matmul_plans.h) and kept in a file (matmul_cache.h). Every algorithm allowed gives the
same bits each time: dot products are either whole or cut into parts that are added in fp32 in a step of their own. Two
algorithms differ in the last bits, so two runs agree in every bit if both are untuned, or both use the same finished
file.

Descriptors and algorithm are kept for each distinct call, so a call costs a look-up and a launch. The first call of
each kind asks the library, and times if tuning; a CUDA graph may be captured from the second on.

FP8 operands (e4m3, e5m2: sm_89 and up) have one scale each, a float in device memory.

Pointers are multiples of 16 bytes. aux leading dimensions are multiples of 8 elements. Bytes moved: every matrix once
is the least; FLOPs: 2 m n k.
*/
#pragma once
#include <memory>
#include <string>
#include "llmc/cuda/matmul_call.h"  // MatmulCall

struct Cuda;

// The inverse scales of FP8 operands: one float each, in device memory.
struct OperandScales {
    const float *a = nullptr, *b = nullptr;
};

class CublasLt {
public:
    explicit CublasLt(Cuda& cuda, const std::string& tune_path = "");
    ~CublasLt();
    CublasLt(const CublasLt&) = delete;
    CublasLt& operator=(const CublasLt&) = delete;

    // bias (n) has the type of out; aux is written by gelu_aux, gelu_aux_bias and row_sums and read by dgelu. addend,
    // shaped as out, is what `accumulate` adds to; null: out itself.
    void run(Cuda& cuda, const MatmulCall& call, void* out, const void* a, const void* b, const void* bias = nullptr,
             void* aux = nullptr, const void* addend = nullptr, const OperandScales& scales = {});

    // Whether the library has an algorithm for it: not every epilogue exists for every type.
    bool supports(Cuda& cuda, const MatmulCall& call);
    // Whether to take a product with an epilogue, and not `plain` and a pass that moves so many bytes: if the library
    // has it and, where products are timed, it does not take longer than both.
    bool prefers(Cuda& cuda, const MatmulCall& fused, const MatmulCall& plain, double pass_bytes);

    // Around a training step, in which alone products are timed; the end writes the file.
    void begin_step();
    void end_step();

    std::string text() const;    // "cuBLASLt 13.1.0, first of its ranking (--tune-matmul times them)"
    int64_t plans_made() const;  // so far
    int64_t timed() const;

    static constexpr int kCandidates = 32;
    // What algorithms may use of the device's workspace: the size that NVIDIA advises for sm_90.
    static constexpr size_t kWorkspaceBytes = size_t(32) << 20;

private:
    struct Library;  // cuBLASLt's types stay in cublaslt.cpp
    std::unique_ptr<Library> library_;
};
