// llmc/comm/gpu/nccl_comm.cpp with the real NCCL, on a machine without a GPU: it links, it is of the version that its
// header says, ranks come as far as the communicator, and there its error is ours. A program of its own, run by `make
// nccl-calls`.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <cstdlib>
#include "llmc/comm/gpu/nccl_comm.h"
#include "llmc/comm/local.h"  // LocalGroup, LocalRanks
#include "llmc/cuda/attention/cudnn_attention.h"
#include "llmc/cuda/cublaslt.h"      // Cuda has one
#include "llmc/cuda/cuda_kernels.h"  // sum_terms
#include "test/testing.h"

// ---- a device that asks for no GPU
// -----------------------------------------------------------------------------------
void throw_cuda_error(cudaError_t, const std::string& what) { throw Error(kExitInternal, what); }
Cuda::Cuda(int ordinal, const CudaOptions& options) : ordinal(ordinal), attention(options.attention) {}
Cuda::~Cuda() = default;
void* Cuda::allocate(size_t) { return nullptr; }
void Cuda::release(void*, size_t) {}
void Cuda::synchronize() {}
size_t Cuda::free_bytes() const { return 0; }
template <class T>
void sum_terms(Cuda&, float*, const T*, const T*, int64_t, int, int, int64_t) {}
template void sum_terms(Cuda&, float*, const float*, const float*, int64_t, int, int, int64_t);
template void sum_terms(Cuda&, float*, const bf16*, const bf16*, int64_t, int, int, int64_t);
struct CublasLt::Library {};
CublasLt::~CublasLt() = default;

TEST_CASE("NCCL is of the version that it was compiled for", "[nccl]") {
    CHECK(nccl_version() == format("%d.%d.%d", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH));
}

TEST_CASE("without a GPU there is no communicator, and the error says why", "[nccl]") {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) {
        WARN("this machine has a GPU: scripts/gpu_check.sh comm goes further");
        return;
    }
    const int world_size = GENERATE(1, 2);
    LocalGroup group(world_size);
    const std::string error = error_of([&] {
        group.run([&](int rank) {
            Cuda cuda;
            LocalRanks ranks(group, rank);
            make_nccl_comm(ranks, cuda, Order::overlapped);
        });
    });
    INFO(error);
    CHECK(error.substr(0, 8) == "2: NCCL ");
    CHECK(contains(error, "ncclCommInitRankConfig: unhandled cuda error"));
    CHECK(contains(error, "NCCL needs a GPU and a driver on every host"));
}
