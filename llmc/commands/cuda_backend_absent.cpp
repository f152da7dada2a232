// Replaces cuda_backend.cpp in a build without CUDA.
#include "llmc/base/check.h"  // ensure
#include "llmc/commands/backend.h"
#include "llmc/commands/doctor.h"  // GpuFacts

bool has_cuda() { return false; }

std::string why_no_cuda(int) { return "this build of Anvil has no CUDA (`make info` tells why)"; }

int num_cuda_gpus() { return 0; }
std::string cuda_gpu_links() { return ""; }

GpuFacts look_at_gpu(int) { return {.why_none = why_no_cuda()}; }

std::unique_ptr<Backend> cuda_backend(int, const RunFlags&) {
    ensure(false);  // callers check why_no_cuda() first
    return nullptr;
}
