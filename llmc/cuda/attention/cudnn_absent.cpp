// Implements cudnn_attention.h in a build without cuDNN: nothing is supported, and the reason says so.
#include <string>
#include "llmc/cuda/attention/cudnn_attention.h"

struct CudnnAttention::Library {};

CudnnAttention::CudnnAttention(Cuda&, bool) {}
CudnnAttention::~CudnnAttention() = default;

std::string CudnnAttention::refuses(const AttentionShape&) const { return kNoCudnn; }
bool CudnnAttention::supports(const AttentionShape&, bool, std::string* why) {
    if (why) *why = kNoCudnn;
    return false;
}
size_t CudnnAttention::workspace_bytes(const AttentionShape&, bool) { return 0; }
size_t CudnnAttention::most_workspace_bytes(const AttentionShape&, bool) const { return 0; }
std::string CudnnAttention::name() const { return "no cuDNN"; }
bool CudnnAttention::deterministic() const { return true; }
int64_t CudnnAttention::plans_made() const { return 0; }

void CudnnAttention::forward(Cuda&, bf16*, float*, const bf16*, const AttentionShape&) { ensure(!"no cuDNN"); }
void CudnnAttention::backward(Cuda&, bf16*, const bf16*, const bf16*, const float*, const bf16*,
                              const AttentionShape&) {
    ensure(!"no cuDNN");
}
