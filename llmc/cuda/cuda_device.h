/*
The device `Cuda`: one GPU, one stream, its memory. The ops are in <op>.cuh; device.cuh has what kernels share.

  const std::string why = why_no_gpu();        "" if there is one that Anvil can use, else a line for the user
  Cuda cuda(0);                                the first GPU; everything below goes to cuda.stream, in order
  launch(cuda, "gelu_forward", kernel, ...);   see device.cuh
  cuda.synchronize();                          the host waits; nothing in a training step does

With dev/emulator/ the same code runs on the CPU, linked to an emulated CUDA runtime.
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
#include "llmc/base/check.h"                      // Error
#include "llmc/base/head_rows.h"                  // gpu_head_rows
#include "llmc/base/op_scope.h"                   // OpScope
#include "llmc/cuda/attention/attention_plans.h"  // AttentionKey
#include "llmc/ops/op_cost.h"                     // elements_cost

inline constexpr int kOldestComputeCapability = 80;  // Ampere: bf16 tensor cores, cp.async

// Throws the Error for a failed CUDA call; `what` names the op and its shape. Exit code 2 for what the user can fix (no
// memory, no device, an old driver, a program built for other GPUs), 1 for the rest.
[[noreturn]] void throw_cuda_error(cudaError_t status, const std::string& what);

#define cuda_check(status, ...)                             \
    do {                                                    \
        const cudaError_t status_ = (status);               \
        if (status_ != cudaSuccess) [[unlikely]]            \
            throw_cuda_error(status_, format(__VA_ARGS__)); \
    } while (0)

// Why device `ordinal` cannot be used (no driver, one too old for this build, no GPU, or one before sm_80); "" if it
// can.
std::string why_no_gpu(int ordinal = 0);
// "driver for CUDA 13.0, runtime 13.0"
std::string driver_text();

class CublasLt;
class CudaGraph;
class CudnnAttention;

// Whose attention kernels run in bf16: `cudnn` takes cuDNN's where it has any, `automatic` where they are the faster
// ones, too, `mixed` only its forward pass.
enum class AttentionKernels { automatic, own, cudnn, mixed };
// As --attention names them.
inline AttentionKernels attention_kernels(const std::string& name) {
    return name == "own"     ? AttentionKernels::own
           : name == "cudnn" ? AttentionKernels::cudnn
           : name == "mixed" ? AttentionKernels::mixed
                             : AttentionKernels::automatic;
}

struct CudaOptions {
    std::string tune_path;  // a file of timed GEMMs, see cublaslt.h; "" for none
    AttentionKernels attention = AttentionKernels::automatic;
    bool deterministic = true;  // cuDNN's backward
};

// The shapes that cuDNN runs.
struct PlannedAttention {
    std::vector<AttentionKey> forward, backward;
};

struct Cuda {
    static constexpr bool kAsynchronous = true;  // an op is enqueued when it returns
    using Graph = CudaGraph;                     // cuda_graph.h
    static constexpr double kExpFlops = 1;       // FLOPs of an exponential: one instruction
    int ordinal;
    cudaStream_t stream = nullptr;
    OpObserver* observer = nullptr;  // notified of every op (llmc/base/op_scope.h)
    std::string name;
    int compute_capability = 0;  // 90 for Hopper
    int num_sms = 0;
    size_t memory_bytes = 0;                // the card's total
    size_t used_bytes = 0, peak_bytes = 0;  // from allocate(), now and at most
    size_t l2_bytes = 0;
    AttentionKernels attention;
    std::optional<PlannedAttention> planned_attention;  // empty before plan_attention() in attention.cuh

    explicit Cuda(int ordinal = 0, const CudaOptions& options = {});
    Cuda(const Cuda&) = delete;
    Cuda& operator=(const Cuda&) = delete;
    ~Cuda();

    // Memory on the GPU, filled with NaN; 256-byte aligned. Throws an Error if there is not enough.
    void* allocate(size_t bytes);
    void release(void* data, size_t bytes);
    // Pinned memory on the host, which the GPU copies from and to directly, while the host does other things.
    void* allocate_pinned(size_t bytes);
    void release_pinned(void* data);
    size_t free_bytes() const;

    // Working memory for one op. All ops share one block, kept apart by the stream's order. It grows to the largest
    // size requested; reserve_workspace() at the start makes sure that it never grows during a step.
    void* workspace(size_t bytes);
    void reserve_workspace(size_t bytes) { workspace(bytes); }
    size_t workspace_bytes() const { return workspace_bytes_; }
    template <class T>
    T* workspace_of(int64_t n) {
        return static_cast<T*>(workspace(size_t(n) * sizeof(T)));
    }

    // The number of rows of logits that the head computes at a time, of N in all, given this memory (head_rows.h).
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
    class Stopwatch;
    class HostCopies;
    class SlotCopies;
    // Pinned memory for an Arena.
    struct HostMemory {
        Cuda& cuda;
        void* allocate(size_t bytes) { return cuda.allocate_pinned(bytes); }
        void release(void* data, size_t) { cuda.release_pinned(data); }
    };

private:
    std::unique_ptr<OpObserver> ranges_;  // NVTX, if a profiler is attached; else null
    std::unique_ptr<CublasLt> cublaslt_;
    std::unique_ptr<CudnnAttention> cudnn_attention_;
    void* workspace_ = nullptr;
    size_t workspace_bytes_ = 0;
};

// During its lifetime, ops on the device are launched in another stream. Not for ops that use the workspace.
class OnStream {
public:
    OnStream(Cuda& cuda, cudaStream_t stream) : cuda_(cuda), kept_(cuda.stream) { cuda.stream = stream; }
    ~OnStream() { cuda_.stream = kept_; }
    OnStream(const OnStream&) = delete;
    OnStream& operator=(const OnStream&) = delete;

private:
    Cuda& cuda_;
    cudaStream_t kept_;
};

// Two pinned buffers that host and device use in turn, each with an event after which it is free again (or filled).
class PinnedPair {
public:
    PinnedPair(Cuda& cuda, size_t bytes);
    ~PinnedPair();
    PinnedPair(const PinnedPair&) = delete;
    void* buffer(int turn) { return buffers_[turn]; }
    void record(int turn);  // records the buffer's event in the stream
    void wait(int turn);    // the host waits for the last event recorded

private:
    Cuda& cuda_;
    void* buffers_[2];
    cudaEvent_t events_[2];
};

// Sends arrays of up to n elements to the GPU. send() copies the host's elements at once, and returns the device memory
// that has them for all work enqueued before the next send().
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

// Sends values to the host, in order; two may be in flight.
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

// The time of steps on the GPU, by events: the host knows only when it noticed, which may be a step later.
class Cuda::Stopwatch {
public:
    explicit Stopwatch(Cuda& cuda);
    ~Stopwatch();
    Stopwatch(const Stopwatch&) = delete;

    void start();    // before the first lap, and after a pause
    void lap();      // the end of a lap; the next begins. Two may be in flight
    double lap_s();  // of the oldest in flight, in seconds, once the GPU has ended it

private:
    Cuda& cuda_;
    cudaEvent_t ends_[3];  // of the last lap that was read, and of the two in flight
    int64_t ended_ = 0, read_ = 0;
};

// Copies of any number and size to ordinary host memory, through pinned buffers: the GPU fills one while the host
// empties the other. A direct copy to ordinary memory would go through a small buffer of the driver, and the host would
// wait for each.
class Cuda::HostCopies {
public:
    explicit HostCopies(Cuda& cuda, size_t buffer_bytes = size_t(16) << 20)
        : cuda_(cuda), pinned_(cuda, buffer_bytes), buffer_bytes_(buffer_bytes) {}

    // Copies after all work enqueued so far. `to` is complete only after finish().
    void add(void* to, const void* from, size_t bytes);
    // Waits until all copies are complete.
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

// Copies between pinned host memory and slots of the device's memory, in a stream for each direction, so that both and
// the device's stream work at once. A slot is filled, used and emptied, again and again; the host waits for nothing.
class Cuda::SlotCopies {
public:
    SlotCopies(Cuda& cuda, size_t num_slots);
    ~SlotCopies();
    SlotCopies(const SlotCopies&) = delete;

    // Calls copies(copy), which calls copy(to, from, bytes) for all that goes into the slot, once the slot is empty.
    template <class Copies>
    void fill(size_t slot, Copies&& copies) {
        wait(slots_[slot].emptied, in_);
        copies([this](void* to, const void* from, size_t bytes) {
            const OnStream beside(cuda_, in_);
            const Scope scope(cuda_.observer, SliceKind::copy, "copy_to_device", {.bytes = double(bytes)});
            cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, in_), "copying %zu bytes to the GPU",
                       bytes);
        });
        record(slots_[slot].filled, in_);
    }
    // Work that is enqueued in the device's stream from here on sees what the slot was filled with.
    void await(size_t slot);
    // The same as fill() for what goes out, once the work that is enqueued in the device's stream so far is done.
    template <class Copies>
    void empty(size_t slot, Copies&& copies) {
        record(slots_[slot].used, cuda_.stream);
        wait(slots_[slot].used, out_);
        copies([this](void* to, const void* from, size_t bytes) {
            const OnStream beside(cuda_, out_);
            const Scope scope(cuda_.observer, SliceKind::copy, "copy_to_host", {.bytes = double(bytes)});
            cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, out_), "copying %zu bytes to the host",
                       bytes);
        });
        record(slots_[slot].emptied, out_);
    }
    // The host waits until all that goes out is out.
    void finish();

private:
    struct Slot {
        cudaEvent_t filled, used, emptied;
    };
    Cuda& cuda_;
    cudaStream_t in_ = nullptr, out_ = nullptr;
    std::vector<Slot> slots_;

    static void record(cudaEvent_t event, cudaStream_t stream) {
        cuda_check(cudaEventRecord(event, stream), "recording an event");
    }
    static void wait(cudaEvent_t event, cudaStream_t stream) {
        cuda_check(cudaStreamWaitEvent(stream, event, 0), "making a stream wait");
    }
};

// Called around a training step: GEMMs that are new in it may be timed (cublaslt.h).
void begin_training_step(Cuda& cuda);
void end_training_step(Cuda& cuda);

// What host code needs from any device: clearing, and copies in and out, for which the host waits.
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
