// cudnn_attention.h in a build without cuDNN: nothing is supported, and whoever asks is told why.
#include <string>
#include "llmc/cuda/cudnn_attention.h"

struct CudnnAttention::Library {};

CudnnAttention::CudnnAttention(Cuda&, bool) {}
CudnnAttention::~CudnnAttention() = default;

bool CudnnAttention::supports(const AttentionShape&, std::string* why) {
    if (why) *why = "this build of Anvil has no cuDNN (`make info` tells where it was looked for)";
    return false;
}
size_t CudnnAttention::workspace_bytes(const AttentionShape&) { return 0; }

void CudnnAttention::forward(Cuda&, bf16*, float*, const bf16*, const AttentionShape&) { ensure(!"no cuDNN"); }
void CudnnAttention::backward(Cuda&, bf16*, const bf16*, const bf16*, const float*, const bf16*,
                              const AttentionShape&) {
    ensure(!"no cuDNN");
}
