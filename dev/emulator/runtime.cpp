/*
The CUDA runtime's functions on the host. A stream is a queue; by default its work is done at once. With lazy streams
nothing is done before somebody waits for it: host code that reads a result too early, or changes a buffer that a copy
has yet to read, is found out that way. An error of a kernel is thrown by the launch; with lazy streams whoever waits
gets it as a status, with its text in cudaGetErrorString(), and what was queued behind the kernel is dropped.
*/
#include <cuda_runtime_api.h>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include "dev/emulator/emulator.h"
#include "llmc/base/check.h"          // Error
#include "dev/emulator/sanitizers.h"  // ANVIL_MSAN
#ifdef ANVIL_MSAN
#include <sanitizer/msan_interface.h>
#endif

namespace emulator {

void submit(cudaStream_t stream, std::function<void()> work);

struct Stream {
    std::deque<std::function<void()>> queue;
};

struct Event {
    Stream* stream = nullptr;
    int recorded = 0, reached = 0;  // records in all, and the last of them that the stream has come to
    std::chrono::steady_clock::time_point when{};
};

static std::set<Stream*> streams;
static std::string kernel_error;

// Carries out what is queued, as long as `more`.
template <class More>
static cudaError_t drain(Stream* stream, More more) {
    while (stream && !stream->queue.empty() && more()) {
        const std::function<void()> work = std::move(stream->queue.front());
        stream->queue.pop_front();
        try {
            work();
        } catch (const Error& error) {
            kernel_error = error.what();
            stream->queue.clear();
            return cudaErrorLaunchFailure;
        }
    }
    return cudaSuccess;
}
static cudaError_t drain(Stream* stream) {
    return drain(stream, [] { return true; });
}
static cudaError_t drain_until(Event* event, int record) {
    return drain(event->stream, [=] { return event->reached < record; });
}

void submit(cudaStream_t stream, std::function<void()> work) {
    if (stream && options().lazy_streams)
        stream->queue.push_back(std::move(work));
    else
        work();
}

}  // namespace emulator

using emulator::Event;
using emulator::options;
using emulator::Stream;
using emulator::submit;

const char* cudaGetErrorString(cudaError_t status) {
    switch (status) {
        case cudaSuccess:
            return "no error";
        case cudaErrorMemoryAllocation:
            return "out of memory";
        case cudaErrorInvalidDevice:
            return "invalid device ordinal";
        case cudaErrorNotReady:
            return "device not ready";
        case cudaErrorLaunchFailure:
            return emulator::kernel_error.c_str();
        default:
            return "an error of the emulated runtime";
    }
}
const char* cudaGetErrorName(cudaError_t status) {
    return status == cudaSuccess ? "cudaSuccess" : "emulated cudaError";
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9 : 0;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    if (device != 0) return cudaErrorInvalidDevice;
    *properties = {};
    std::strcpy(properties->name, "emulated GPU");
    properties->totalGlobalMem = options().memory_bytes;
    properties->major = 9;
    properties->multiProcessorCount = 4;  // few, so that small shapes have more blocks than that
    properties->l2CacheSize = 1 << 20;
    return cudaSuccess;
}

// ---- memory: what is in use is counted, so that a plan can be held against it ------------------------------------
namespace emulator {
static size_t used_bytes = 0;
struct Allocation {
    void* data;
    size_t bytes;
    bool operator<(const Allocation& other) const { return data < other.data; }
};
static std::set<Allocation> allocations;
}  // namespace emulator

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    *total = options().memory_bytes;
    *free = *total - std::min(*total, emulator::used_bytes);
    return cudaSuccess;
}
cudaError_t cudaMalloc(void** data, size_t bytes) {
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    if (bytes > free) return cudaErrorMemoryAllocation;
    if (posix_memalign(data, 256, bytes)) return cudaErrorMemoryAllocation;
    emulator::allocations.insert({*data, bytes});
    emulator::used_bytes += bytes;
    return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
    const auto found = emulator::allocations.find({data, 0});
    if (!data) return cudaSuccess;
    if (found == emulator::allocations.end()) return cudaErrorInvalidValue;
    emulator::used_bytes -= found->bytes;
#ifdef ANVIL_MSAN
    __msan_unpoison(data, found->bytes);  // the host's heap is not watched
#endif
    emulator::allocations.erase(found);
    std::free(data);
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void** data, size_t bytes) {
    return posix_memalign(data, 256, bytes) ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) { return std::free(data), cudaSuccess; }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, [[maybe_unused]] cudaMemcpyKind kind,
                            cudaStream_t stream) {
    submit(stream, [=] {
        if (bytes > 0) std::memcpy(to, from, bytes);  // of nothing, both may be null
#ifdef ANVIL_MSAN
        // The host is not watched: what it sends counts as written, and it may look at everything, guard zones too.
        if (kind != cudaMemcpyDeviceToDevice) __msan_unpoison(to, bytes);
#endif
    });
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
    submit(stream, [=] {
        std::memset(data, value, bytes);
#ifdef ANVIL_MSAN
        if (value == 0xFF) __msan_poison(data, bytes);  // Anvil's sign for "not written yet"
#endif
    });
    return cudaSuccess;
}

// ---- streams and events ------------------------------------------------------------------------------------------
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    *stream = new Stream;
    emulator::streams.insert(*stream);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    emulator::streams.erase(stream);
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return emulator::drain(stream); }
cudaError_t cudaDeviceSynchronize() {
    cudaError_t status = cudaSuccess;
    for (Stream* stream : emulator::streams)
        if (const cudaError_t own = emulator::drain(stream); own != cudaSuccess) status = own;
    return status;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    submit(stream, [=, record = event->recorded] {
        if (emulator::drain_until(event, record) != cudaSuccess) throw Error(kExitInternal, emulator::kernel_error);
    });
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = new Event, cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    event->stream = stream;
    submit(stream, [=, record = ++event->recorded] {
        event->reached = record;
        event->when = std::chrono::steady_clock::now();
    });
    return cudaSuccess;
}
// Each question lets the stream do one thing more, or a loop of questions would have no end.
cudaError_t cudaEventQuery(cudaEvent_t event) {
    if (event->reached == event->recorded) return cudaSuccess;
    bool first = true;
    const cudaError_t status = emulator::drain(event->stream, [&] { return std::exchange(first, false); });
    return status == cudaSuccess ? cudaErrorNotReady : status;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return emulator::drain_until(event, event->recorded); }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
    if (begin->reached < begin->recorded || end->reached < end->recorded) return cudaErrorNotReady;
    *ms = std::chrono::duration<float, std::milli>(end->when - begin->when).count();
    return cudaSuccess;
}
