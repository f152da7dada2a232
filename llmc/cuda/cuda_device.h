/*
The device `Cuda`: one GPU, one stream, its memory. The ops are in <op>.cuh, what kernels share in device.cuh.

  const std::string why = why_no_gpu();        "" if there is one that Anvil can use, else a line for the user
  Cuda cuda(0);                                the first GPU; everything below goes to cuda.stream, in order
  launch(cuda, "gelu_forward", kernel, ...);   see device.cuh
  cuda.synchronize();                          the host waits; nothing in a training step does

Under dev/emulator/ the same code runs on the CPU: the CUDA runtime it is linked to is another one.
*/
#pragma once
#include <cuda_runtime_api.h>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include "llmc/base/check.h"  // Error

inline constexpr int kOldestComputeCapability = 80;  // Ampere: bf16 tensor cores, cp.async

// The error of a CUDA call, said with the op and its shape. Exit code 2 for what the user can mend (no memory, no
// device, an old driver), 1 for the rest.
[[noreturn]] void throw_cuda_error(cudaError_t status, const std::string& what);

#define cuda_check(status, ...)                             \
    do {                                                    \
        const cudaError_t status_ = (status);               \
        if (status_ != cudaSuccess) [[unlikely]]            \
            throw_cuda_error(status_, format(__VA_ARGS__)); \
    } while (0)

// Why device `ordinal` cannot be used: no driver, one too old for this build, no GPU, or one before sm_80.
std::string why_no_gpu(int ordinal = 0);

class CublasLt;

struct Cuda {
    int ordinal;
    cudaStream_t stream = nullptr;
    std::string name;
    int compute_capability = 0;  // 90 for Hopper
    int num_sms = 0;
    size_t memory_bytes = 0;  // the card's, all of it
    size_t l2_bytes = 0;

    // tune_path: a file of timed matrix products, see cublaslt.h; "" for none.
    explicit Cuda(int ordinal = 0, const std::string& tune_path = "");
    Cuda(const Cuda&) = delete;
    Cuda& operator=(const Cuda&) = delete;
    ~Cuda();

    // Memory on the GPU, filled with NaN; 256-byte aligned.
    void* allocate(size_t bytes);
    void release(void* data, size_t bytes);
    // Memory on the host that copies reach without a detour, and that may go on while the host does other things.
    void* allocate_pinned(size_t bytes);
    void release_pinned(void* data);
    size_t free_bytes() const;

    // Working memory for one op: the same block for all, which the stream's order keeps apart. It grows until it has
    // the largest size that was asked for; reserve_workspace() at the start makes sure that it never does in a step.
    void* workspace(size_t bytes);
    void reserve_workspace(size_t bytes) { workspace(bytes); }
    size_t workspace_bytes() const { return workspace_bytes_; }
    template <class T>
    T* workspace_of(int64_t n) {
        return static_cast<T*>(workspace(size_t(n) * sizeof(T)));
    }

    void synchronize();

    CublasLt& cublaslt() { return *cublaslt_; }

private:
    std::unique_ptr<CublasLt> cublaslt_;
    void* workspace_ = nullptr;
    size_t workspace_bytes_ = 0;
};
