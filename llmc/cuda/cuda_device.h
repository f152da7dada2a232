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
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include "llmc/base/check.h"            // Error
#include "llmc/base/head_rows.h"        // gpu_head_rows
#include "llmc/base/op_scope.h"         // OpScope
#include "llmc/cuda/attention_plans.h"  // AttentionKey
#include "llmc/ops/op_cost.h"           // elements_cost

inline constexpr int kOldestComputeCapability = 80;  // Ampere: bf16 tensor cores, cp.async

// The error of a CUDA call, said with the op and its shape. Exit code 2 for what the user can fix (no memory, no
// device, an old driver, a program built for other GPUs), 1 for the rest.
[[noreturn]] void throw_cuda_error(cudaError_t status, const std::string& what);

#define cuda_check(status, ...)                             \
    do {                                                    \
        const cudaError_t status_ = (status);               \
        if (status_ != cudaSuccess) [[unlikely]]            \
            throw_cuda_error(status_, format(__VA_ARGS__)); \
    } while (0)

// Why device `ordinal` cannot be used: no driver, one too old for this build, no GPU, or one before sm_80.
std::string why_no_gpu(int ordinal = 0);
// "driver for CUDA 13.0, runtime 13.0"
std::string driver_text();

class CublasLt;
class CudaGraph;
class CudnnAttention;

// Whose attention kernels run in bf16: `automatic` takes cuDNN's where it has any.
enum class AttentionKernels { automatic, own, cudnn };

struct CudaOptions {
    std::string tune_path;  // a file of timed matrix products, see cublaslt.h; "" for none
    AttentionKernels attention = AttentionKernels::automatic;
    bool deterministic = true;  // cuDNN's backward
};

// What cuDNN runs: these shapes, backward only to learn.
struct PlannedAttention {
    std::vector<AttentionKey> shapes;
    bool learns = false;
};

struct Cuda {
    static constexpr bool kAsynchronous = true;  // an op is enqueued when it returns
    using Graph = CudaGraph;                     // cuda_graph.h
    static constexpr double kExpFlops = 1;       // of an exponential: one instruction
    int ordinal;
    cudaStream_t stream = nullptr;
    OpObserver* observer = nullptr;  // is told of every op (llmc/base/op_scope.h)
    std::string name;
    int compute_capability = 0;  // 90 for Hopper
    int num_sms = 0;
    size_t memory_bytes = 0;                // the card's, all of it
    size_t used_bytes = 0, peak_bytes = 0;  // of allocate(), now and at most
    size_t l2_bytes = 0;
    AttentionKernels attention;
    std::optional<PlannedAttention> planned_attention;  // nothing before plan_attention() in attention.cuh

    explicit Cuda(int ordinal = 0, const CudaOptions& options = {});
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

    // Rows of logits at a time, of N, where there is memory for them (head_rows.h).
    int64_t head_rows(int64_t N, int64_t Vp, size_t value_bytes) const {
        return gpu_head_rows(N, Vp, value_bytes, memory_bytes);
    }

    void synchronize();

    CublasLt& cublaslt() { return *cublaslt_; }
    CudnnAttention& cudnn_attention() { return *cudnn_attention_; }

    template <class T>
    struct ToDevice;
    template <class T>
    struct ToHost;
    class HostCopies;

private:
    std::unique_ptr<OpObserver> ranges_;  // for a profiler that listens; null: there is none
    std::unique_ptr<CublasLt> cublaslt_;
    std::unique_ptr<CudnnAttention> cudnn_attention_;
    void* workspace_ = nullptr;
    size_t workspace_bytes_ = 0;
};

// Two buffers that host and device use by turns, each with the moment from which on it is free again (or filled).
class PinnedPair {
public:
    PinnedPair(Cuda& cuda, size_t bytes);
    ~PinnedPair();
    PinnedPair(const PinnedPair&) = delete;
    void* buffer(int turn) { return buffers_[turn]; }
    void record(int turn);  // now, in the stream
    void wait(int turn);    // for what was recorded last, on the host

private:
    Cuda& cuda_;
    void* buffers_[2];
    cudaEvent_t events_[2];
};

// Arrays of up to n elements on their way to the GPU. send() takes its bytes at once and returns where they will be
// when the stream's next work reads them, until the following send().
template <class T>
struct Cuda::ToDevice {
    Cuda& cuda;
    int64_t capacity;
    T* data;
    PinnedPair pinned;
    int turn = 0;

    ToDevice(Cuda& cuda, int64_t n)
        : cuda(cuda),
          capacity(n),
          data(static_cast<T*>(cuda.allocate(size_t(n) * sizeof(T)))),
          pinned(cuda, size_t(n) * sizeof(T)) {}
    ~ToDevice() { cuda.release(data, size_t(capacity) * sizeof(T)); }
    const T* send(const T* host, int64_t n) {
        ensure(n <= capacity);
        const OpScope op(cuda, "copy_to_device");
        pinned.wait(turn);
        std::memcpy(pinned.buffer(turn), host, size_t(n) * sizeof(T));
        cuda_check(
            cudaMemcpyAsync(data, pinned.buffer(turn), size_t(n) * sizeof(T), cudaMemcpyHostToDevice, cuda.stream),
            "copying %ld elements to the GPU", long(n));
        pinned.record(turn);
        turn ^= 1;
        return data;
    }
};

// Values on their way to the host, in order; two may be under way.
template <class T>
struct Cuda::ToHost {
    Cuda& cuda;
    PinnedPair pinned;
    int sent = 0, received = 0;

    explicit ToHost(Cuda& cuda) : cuda(cuda), pinned(cuda, sizeof(T)) {}
    void send(const T* from) {
        ensure(sent - received < 2);
        const OpScope op(cuda, "copy_to_host");
        cuda_check(cudaMemcpyAsync(pinned.buffer(sent % 2), from, sizeof(T), cudaMemcpyDeviceToHost, cuda.stream),
                   "copying %zu bytes to the host", sizeof(T));
        pinned.record(sent++ % 2);
    }
    T receive() {
        ensure(received < sent);
        pinned.wait(received % 2);
        return *static_cast<const T*>(pinned.buffer(received++ % 2));
    }
};

// Copies to ordinary host memory, of any number and size, through pinned buffers: the GPU fills one while the host
// empties the other. A copy straight to ordinary memory goes through a small buffer of the driver's, and the host waits
// for each.
class Cuda::HostCopies {
public:
    explicit HostCopies(Cuda& cuda, size_t buffer_bytes = size_t(16) << 20)
        : cuda_(cuda), pinned_(cuda, buffer_bytes), buffer_bytes_(buffer_bytes) {}

    // After what is in the stream so far. `to` is written until finish().
    void add(void* to, const void* from, size_t bytes);
    // Everything is where it should be.
    void finish();

private:
    struct Copy {
        void* to;
        size_t at, bytes;
    };
    Cuda& cuda_;
    PinnedPair pinned_;
    const size_t buffer_bytes_;
    std::vector<Copy> copies_[2];  // in each buffer, or on the way there
    int turn_ = 0;                 // the buffer that is being filled
    size_t used_bytes_ = 0;        // of it

    void turn();
};

// Around all that is enqueued in a training step: products that are new in it may be timed (cublaslt.h).
void begin_training_step(Cuda& cuda);
void end_training_step(Cuda& cuda);

// What host code needs of any device: clearing, and copies in and out, for which the host waits.
template <class T>
void fill_zero(Cuda& cuda, T* data, int64_t n) {
    const OpScope op(cuda, __func__, elements_cost<T>(1, 0, n));
    cuda_check(cudaMemsetAsync(data, 0, size_t(n) * sizeof(T), cuda.stream), "clearing %ld elements", long(n));
}
template <class T>
void copy_to_device(Cuda& cuda, T* to, const T* from, int64_t n) {
    cuda_check(cudaMemcpyAsync(to, from, size_t(n) * sizeof(T), cudaMemcpyHostToDevice, cuda.stream),
               "copying %ld elements to the GPU", long(n));
    cuda.synchronize();
}
template <class T>
void copy_to_host(Cuda& cuda, T* to, const T* from, int64_t n) {
    cuda_check(cudaMemcpyAsync(to, from, size_t(n) * sizeof(T), cudaMemcpyDeviceToHost, cuda.stream),
               "copying %ld elements to the host", long(n));
    cuda.synchronize();
}
// In the stream's order; the host does not wait.
template <class T>
void copy_on_device(Cuda& cuda, T* to, const T* from, int64_t n) {
    const OpScope op(cuda, __func__, elements_cost<T>(2, 0, n));
    cuda_check(cudaMemcpyAsync(to, from, size_t(n) * sizeof(T), cudaMemcpyDeviceToDevice, cuda.stream),
               "copying %ld elements", long(n));
}
