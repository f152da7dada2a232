// cudnn_attention.h on the emulated GPU. With ANVIL_EMULATOR_CUDNN=1, a cuDNN that refuses what the real one refuses on
// Hopper, counts plans in the same way, and computes with the CPU's attention. Otherwise there is no cuDNN.
#include "llmc/cuda/attention/cudnn_attention.h"
#include <cstdlib>
#include "dev/emulator/emulator.h"
#include "llmc/cpu/attention.h"
#include "llmc/cuda/attention/attention_plans.h"  // AttentionPlans
#include "llmc/cuda/cuda_device.h"                // Cuda

namespace emulator {
void submit(cudaStream_t stream, std::function<void()> work);
}

struct CudnnAttention::Library {
    static constexpr int kComputeCapability = 90;
    static constexpr size_t kVersion = 91900;
    struct Plan {};

    bool exists, deterministic;
    AttentionPlans<Plan> plans;

    std::string refuses(const AttentionShape& s) const {
        return exists ? why_not_cudnn(s, kComputeCapability, kVersion, deterministic) : kNoCudnn;
    }
    const std::string& why_not(const AttentionShape& s, bool is_backward) {
        return plans
            .entry_for(
                s, is_backward, [&](const AttentionShape& shape) { return refuses(shape); },
                [](const AttentionShape&, bool) { return Plan(); })
            .why_not;
    }
};

CudnnAttention::CudnnAttention(Cuda&, bool deterministic) : library_(new Library) {
    const char* text = std::getenv("ANVIL_EMULATOR_CUDNN");
    library_->exists = text && std::string(text) == "1";
    library_->deterministic = deterministic;
}
CudnnAttention::~CudnnAttention() = default;

std::string CudnnAttention::refuses(const AttentionShape& shape) const { return library_->refuses(shape); }
bool CudnnAttention::supports(const AttentionShape& shape, bool is_backward, std::string* why) {
    const std::string& why_not = library_->why_not(shape, is_backward);
    if (why && !why_not.empty()) *why = why_not;
    return why_not.empty();
}
size_t CudnnAttention::workspace_bytes(const AttentionShape& shape, bool learns) {
    return most_workspace_bytes(shape, learns);
}
size_t CudnnAttention::most_workspace_bytes(const AttentionShape& shape, bool learns) const {
    return most_cudnn_workspace(shape, Library::kComputeCapability, library_->deterministic, learns);
}
std::string CudnnAttention::name() const { return library_->exists ? "emulated cuDNN 9.19.0" : "no cuDNN"; }
bool CudnnAttention::deterministic() const { return library_->deterministic; }
int64_t CudnnAttention::plans_made() const { return library_->plans.made(); }

void CudnnAttention::forward(Cuda& cuda, bf16* out, float* lse, const bf16* qkv, const AttentionShape& shape) {
    ensure(supports(shape, false, nullptr));
    cuda.workspace(workspace_bytes(shape, false));
    emulator::submit(cuda.stream, [=] {
        Cpu cpu(1);
        attention_forward(cpu, out, lse, qkv, shape);
    });
}
void CudnnAttention::backward(Cuda& cuda, bf16* dqkv, const bf16* dout, const bf16* out, const float* lse,
                              const bf16* qkv, const AttentionShape& shape) {
    ensure(supports(shape, true, nullptr));
    cuda.workspace(workspace_bytes(shape, true));
    emulator::submit(cuda.stream, [=] {
        Cpu cpu(1);
        attention_backward(cpu, dqkv, dout, out, lse, qkv, shape);
    });
}
