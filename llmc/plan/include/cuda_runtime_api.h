/*
The CUDA runtime of a GPU that is only described: memory is addresses, launches and copies between device buffers are
written down (llmc/plan/recorder.h), and nothing is computed. Declared as the toolkit declares it, as far as Anvil
calls it; included inside a namespace (llmc/plan/traced_step.cpp), whose file includes the standard headers first.
*/
#pragma once
#include "llmc/plan/include/runtime_types.h"

// Of the GPU that is described; `next_address` is where its next buffer lies. No address of the host is between.
inline constexpr uintptr_t kFirstAddress = uintptr_t(1) << 44;
struct DescribedDevice {
    cudaDeviceProp properties{};
    uintptr_t next_address = kFirstAddress;
};
inline DescribedDevice& described_device() {
    static thread_local DescribedDevice device;
    return device;
}

using cudaStream_t = char*;
using cudaEvent_t = char*;
using cudaGraph_t = char*;
using cudaGraphExec_t = char*;

inline const char* cudaGetErrorString(cudaError_t) { return "an error of a GPU that is only described"; }
inline const char* cudaGetErrorName(cudaError_t) { return "cudaError"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
inline cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    const cudaDeviceProp& gpu = described_device().properties;
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? gpu.major : gpu.minor;
    return cudaSuccess;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
    return *properties = described_device().properties, cudaSuccess;
}

// ---- memory ----------------------------------------------------------------------------------------------------
inline char* next_address(size_t bytes) {
    uintptr_t& next = described_device().next_address;
    char* const data = reinterpret_cast<char*>(next);
    next += (bytes + 255) / 256 * 256 + 256;
    return data;
}
inline cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    return *free = *total = described_device().properties.totalGlobalMem, cudaSuccess;
}
inline cudaError_t cudaMalloc(void** data, size_t bytes) { return *data = next_address(bytes), cudaSuccess; }
inline cudaError_t cudaFree(void*) { return cudaSuccess; }
// The host does write into its own buffers, but not into an optimizer's state, for which it may be too small.
inline cudaError_t cudaMallocHost(void** data, size_t bytes) {
    *data = bytes > size_t(1) << 26 ? next_address(bytes) : std::calloc(bytes, 1);
    return *data ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaFreeHost(void* data) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(data);
    if (address < kFirstAddress || address >= described_device().next_address) std::free(data);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void*, const void*, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    if (StepRecorder* recorder = StepRecorder::current()) {
        const bool on_device = kind == cudaMemcpyDeviceToDevice;
        const char* const name = on_device                        ? "copy_on_device"
                                 : kind == cudaMemcpyHostToDevice ? "copy_to_device"
                                                                  : "copy_to_host";
        recorder->add(TracedWork::Kind::copy, name, stream).cost.bytes = (on_device ? 2 : 1) * double(bytes);
    }
    return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void*, int, size_t bytes, cudaStream_t stream) {
    if (StepRecorder* recorder = StepRecorder::current())
        recorder->add(TracedWork::Kind::clear, "clear", stream).cost.bytes = double(bytes);
    return cudaSuccess;
}

// ---- streams and events: addresses to tell them apart -----------------------------------------------------------
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    return *stream = next_address(1), cudaSuccess;
}
inline cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return *least = 0, *greatest = -5, cudaSuccess;
}
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    if (StepRecorder* recorder = StepRecorder::current()) recorder->wait(event, stream);
    return cudaSuccess;
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    return *event = next_address(1), cudaSuccess;
}
inline cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
inline cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    if (StepRecorder* recorder = StepRecorder::current()) recorder->record(event, stream);
    return cudaSuccess;
}
inline cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) { return *ms = 0, cudaSuccess; }

// ---- graphs: what is captured is written down then, as part of one ----------------------------------------------
inline cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
    if (StepRecorder* recorder = StepRecorder::current()) recorder->in_graph = true;
    return cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
    if (StepRecorder* recorder = StepRecorder::current()) recorder->in_graph = false;
    return *graph = next_address(1), cudaSuccess;
}
inline cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t, unsigned long long) {
    return *made = next_address(1), cudaSuccess;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
