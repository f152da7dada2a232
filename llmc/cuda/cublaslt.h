/*
GEMMs by cuBLASLt (docs.nvidia.com/cuda/cublas, "Using the cuBLASLt API"):

  CublasLt cublaslt(cuda, tune_path);         one per device; "" takes ANVIL_MATMUL_CACHE, if that is set
  cublaslt.run(cuda, {.m = N, .n = OC, .k = C, .transpose_b = true}, out, inp, weight);       out = inp weight^T

Sums are fp32 for all types; for fp32 operands they are true fp32, not TF32, for FP8 operands with fast_accumulate
somewhat less. The error of an element is that of a sum of k products in some order: at most k * 2^-24 times the sum of
their magnitudes, then one rounding to the type of out.

The algorithm is the first of the library's own ranking or, with tuning, the fastest of up to kCandidates, timed once
for each GEMM of a training step (matmul_plans.h) and kept in a file (matmul_cache.h). Every algorithm allowed gives the
same bits each time: dot products are either whole or cut into parts that a separate step adds in fp32. Different
algorithms differ in the last bits, so two runs are bit-identical if both are untuned, or both use the same complete
file.

Descriptors and algorithm are cached for each distinct call, so a call costs a lookup and a launch. The first call of
each kind queries the library and, with tuning, times candidates; a CUDA graph may be captured from the second on.

FP8 operands (e4m3, e5m2: sm_89 and up) have one scale each, a float in device memory; in MX (sm_100 and up, cuBLASLt
12.8 and up) as many as mx_scale_bytes() says, where mx_scale_at() puts them (llmc/base/fp8.h).

Pointers are 16-byte aligned; aux leading dimensions are multiples of 8 elements. Bytes: at least every matrix once.
FLOPs: 2 m n k.
*/
#pragma once
#include <memory>
#include <string>
#include "llmc/cuda/matmul_call.h"  // MatmulCall

struct Cuda;

// The inverse scales of FP8 operands, in device memory: one float each, or those of the blocks of MX.
struct OperandScales {
    const void *a = nullptr, *b = nullptr;
};

class CublasLt {
public:
    explicit CublasLt(Cuda& cuda, const std::string& tune_path = "");
    ~CublasLt();
    CublasLt(const CublasLt&) = delete;
    CublasLt& operator=(const CublasLt&) = delete;

    // bias (n) has the type of out; aux is written by gelu_aux, gelu_aux_bias and row_sums and read by dgelu. addend,
    // shaped as out, is what `accumulate` adds to; null: out itself. Throws an Error if the library has no algorithm.
    void run(Cuda& cuda, const MatmulCall& call, void* out, const void* a, const void* b, const void* bias = nullptr,
             void* aux = nullptr, const void* addend = nullptr, const OperandScales& scales = {});

    // Whether the library has an algorithm for the call: not every epilogue exists for every type.
    bool supports(Cuda& cuda, const MatmulCall& call);
    // Whether to run `fused`, with an epilogue, rather than `plain` and a separate pass that moves pass_bytes: if the
    // library has it and, with tuning, it does not take longer than both.
    bool prefers(Cuda& cuda, const MatmulCall& fused, const MatmulCall& plain, double pass_bytes);

    // Called around a training step: GEMMs are timed only in between, and the end writes the file.
    void begin_step();
    void end_step();

    std::string text() const;    // "cuBLASLt 13.1.0, first of its ranking (--tune-matmul times them)"
    int64_t plans_made() const;  // so far
    int64_t timed() const;

    static constexpr int kCandidates = 32;
    // The workspace that algorithms may use: the size that NVIDIA recommends for sm_90.
    static constexpr size_t kWorkspaceBytes = size_t(32) << 20;

private:
    struct Library;  // cuBLASLt's types stay in cublaslt.cpp
    std::unique_ptr<Library> library_;
};
