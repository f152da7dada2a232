/*
Causal self-attention by cuDNN's fused kernels, in bf16, on the same tensors as llmc/cuda/attention/attention.cuh, so
that either can run forward and either backward (equations and shapes: llmc/ops/attention.h).

  CudnnAttention attention(cuda);
  if (attention.supports(shape, &why)) cuda.reserve_workspace(attention.workspace_bytes(shape));     makes the plans
  attention.forward(cuda, out, lse, qkv, shape);
  attention.backward(cuda, dqkv, dout, out, lse, qkv, shape);

The kernels are requested as graphs of small operations (docs.nvidia.com/deeplearning/cudnn, "Graph API": scaled dot
product attention), which attention_graph.h builds with our mask. There is a plan for each shape and pass, made on first
use in about half a second (attention_plans.h). plan_attention() in attention.cuh decides which shapes a run asks for.

lse is the natural logarithm of the softmax's denominator, fp32; scores and sums are fp32. The softmax's weights and the
scores' gradients are rounded to bf16 before they are multiplied, and so are dK and dV of each query head before those
of a group are added. With `deterministic` (the default) backward gives the same bits each time; before Blackwell this
stores the gradients of all scores, 2 B NH T^2 bytes of workspace. Without it, blocks add to fp32 sums of dQ,
4 B NH T HS bytes, in any order.

Pointers are 16-byte aligned. Supported is what why_not_cudnn() below allows and cuDNN has a plan for.
*/
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include "llmc/base/bf16.h"      // bf16
#include "llmc/base/check.h"     // format
#include "llmc/ops/attention.h"  // AttentionShape

struct Cuda;

inline bool is_blackwell(int compute_capability) { return compute_capability / 10 == 10; }

// Why a GPU of this compute capability (90 for Hopper) with this version of cuDNN (91900 is 9.19.0) cannot run a shape,
// by the checks of NVIDIA's frontend (github.com/NVIDIA/cudnn-frontend); "" if it can.
inline std::string why_not_cudnn(const AttentionShape& shape, int compute_capability, size_t version,
                                 bool deterministic) {
    if (shape.starts) return "the graph has no mask for several documents in a row";
    // Before 9.10 masks required a value other than -infinity, and 9.10.0 and 9.10.1 have wrong gradients.
    if (version < 91002) return format("cuDNN %zu is older than 9.10.2", version);
    if (deterministic && is_blackwell(compute_capability) && version < 91800)
        return "cuDNN before 9.18 has no deterministic backward for Blackwell";
    if (shape.NKV < 1 || shape.NH % shape.NKV != 0) return format("%ld heads cannot share %ld", shape.NH, shape.NKV);
    const int64_t largest = compute_capability / 10 == 9 ? 256 : 128;
    if (shape.HS % 8 != 0 || shape.HS > largest)
        return format("head size %ld: cuDNN has multiples of 8 up to %ld here", shape.HS, largest);
    if (shape.T < 2) return "sequences of one token";
    if (shape.T >= int64_t(1) << 24) return "sequences of 2^24 tokens or more";
    // Up to 9.15 backward reads beyond the last key.
    if (version < 91600 && shape.T % 128 != 0)
        return format("sequences of %ld: cuDNN before 9.16 wants multiples of 128", shape.T);
    return "";
}

// An upper bound of the workspace of a shape, in bytes, before there is a plan (test/cuda/cudnn_plans.cpp compares it
// with plans).
inline size_t most_cudnn_workspace(const AttentionShape& s, int compute_capability, bool deterministic, bool learns) {
    const size_t scores = size_t(s.B * s.NH * s.T), little = 64 << 10;
    if (!learns) return little;
    const size_t all_scores = is_blackwell(compute_capability) ? 0 : 2 * scores * size_t(s.T);
    return 4 * scores + (deterministic ? all_scores : 2 * 4 * scores * size_t(s.HS)) + little;
}

// Why there is none in a build without cuDNN.
inline constexpr const char* kNoCudnn = "this build of Anvil has no cuDNN (`make info` tells where it was looked for)";

class CudnnAttention {
public:
    explicit CudnnAttention(Cuda& cuda, bool deterministic = true);
    ~CudnnAttention();
    CudnnAttention(const CudnnAttention&) = delete;
    CudnnAttention& operator=(const CudnnAttention&) = delete;

    // Why there can be no plan, as far as that is known without asking the library; "" if there may be one.
    std::string refuses(const AttentionShape& shape) const;
    // Whether a pass, or both, can run; if not, sets `why`. Makes their plans.
    bool supports(const AttentionShape& shape, bool is_backward, std::string* why);
    bool supports(const AttentionShape& shape, std::string* why = nullptr) {
        return supports(shape, false, why) && supports(shape, true, why);
    }
    // Bytes of workspace for forward and, if `learns`, backward. Makes their plans.
    size_t workspace_bytes(const AttentionShape& shape, bool learns = true);
    // An upper bound of the same, without a plan.
    size_t most_workspace_bytes(const AttentionShape& shape, bool learns) const;

    std::string name() const;  // "cuDNN 9.19.0"
    bool deterministic() const;
    int64_t plans_made() const;

    void forward(Cuda& cuda, bf16* out, float* lse, const bf16* qkv, const AttentionShape& shape);
    // Overwrites dqkv, shaped as qkv.
    void backward(Cuda& cuda, bf16* dqkv, const bf16* dout, const bf16* out, const float* lse, const bf16* qkv,
                  const AttentionShape& shape);

private:
    struct Library;  // cuDNN's types stay in cudnn_attention.cpp
    std::unique_ptr<Library> library_;
};

// For tests: plans the op for a GPU that is only described, in cuDNN's own JSON, with no GPU and no handle. Returns the
// bytes of workspace; throws an Error if there is no plan.
size_t cudnn_workspace_on(const std::string& device_json, int compute_capability, bool deterministic,
                          const AttentionShape& shape, bool is_backward);
// The same plan as cuDNN's JSON, an undocumented format that names the engine's kind and its kernels.
std::string cudnn_plan_on(const std::string& device_json, int compute_capability, bool deterministic,
                          const AttentionShape& shape, bool is_backward);
size_t cudnn_version();
