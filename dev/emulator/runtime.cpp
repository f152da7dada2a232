/*
The CUDA runtime on the host. A stream is a queue. By default its work is done as soon as it is enqueued. With lazy
streams it is done only when a call waits for it. This reveals host code that reads a result too early, or changes a
buffer that a copy has yet to read. The launch throws a kernel's error; with lazy streams the waiting call returns it as
a status, with its text in cudaGetErrorString(), and work that was queued after the kernel is dropped.

A stream in capture executes nothing: its work becomes a graph, whose launch enqueues it. A call that is not allowed
during capture is refused and invalidates the capture, as in CUDA. Here that includes events, which CUDA would capture.

A stream may be blocked by another stream or by stall(). Every later call that concerns it tries again. A host call that
waits for work that cannot proceed returns an error instead of hanging. Calls from several threads are serialized.
*/
#include <cuda_runtime_api.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>
#include "dev/emulator/emulator.h"
#include "llmc/base/check.h"          // Error
#include "dev/emulator/sanitizers.h"  // ANVIL_MSAN
#ifdef ANVIL_MSAN
#include <sanitizer/msan_interface.h>
#endif

namespace emulator {

void submit(cudaStream_t stream, std::function<void()> work);
std::atomic<bool> queries_hang = false;

// One cudaEventRecord. Shared with the streams that wait for it, so that it outlives its event and stream.
struct Moment {
    Stream* stream = nullptr;
    bool reached = true;
    std::chrono::steady_clock::time_point when{};
};
struct Event {
    std::shared_ptr<Moment> last = std::make_shared<Moment>();
};

// The captured work, in order.
struct Graph {
    std::vector<std::function<bool()>> work;
};

struct Stream {
    std::deque<std::function<bool()>> queue;  // each returns whether it is done; if not, it is called again later
    std::unique_ptr<Graph> capture;           // null: not in capture
    bool spoiled = false;                     // a call has invalidated the capture
    bool draining = false;
    bool stalled = false;
};

static std::set<Stream*> streams;
static std::string kernel_error;
static std::recursive_mutex turn;
struct Turn {
    std::lock_guard<std::recursive_mutex> lock{turn};
};

// Executes queued work while more() and until something blocks it. Does nothing if called from the stream's own work.
template <class More>
static void advance(Stream* stream, More more) {
    while (more() && streams.count(stream) && !stream->draining && !stream->stalled && !stream->queue.empty()) {
        stream->draining = true;
        try {
            const bool done = stream->queue.front()();
            stream->draining = false;
            if (!done) return;
        } catch (...) {
            stream->draining = false;
            stream->queue.clear();
            throw;
        }
        stream->queue.pop_front();
    }
}
template <class More>
static cudaError_t drain(Stream* stream, More more) {
    try {
        advance(stream, more);
    } catch (const Error& error) {
        kernel_error = error.what();
        return cudaErrorLaunchFailure;
    }
    return cudaSuccess;
}
static cudaError_t never() {
    kernel_error = "the host waits for a stream that waits for what does not come";
    return cudaErrorLaunchFailure;
}
static cudaError_t drain(Stream* stream) {
    const cudaError_t status = drain(stream, [] { return true; });
    return status == cudaSuccess && streams.count(stream) && !stream->queue.empty() ? never() : status;
}

static void enqueue(cudaStream_t stream, std::function<bool()> work) {
    const Turn own;
    if (stream->capture) return stream->capture->work.push_back(std::move(work));
    stream->queue.push_back(std::move(work));
    if (!options().lazy_streams) advance(stream, [] { return true; });
}

// For calls that are not allowed during capture: invalidates the captures, of one stream or of all, and returns the
// error.
static cudaError_t spoil_captures(const Stream* alone = nullptr) {
    const Turn own;
    cudaError_t status = cudaSuccess;
    for (Stream* stream : streams)
        if (stream->capture && (!alone || stream == alone))
            stream->spoiled = true, status = cudaErrorStreamCaptureUnsupported;
    return status;
}

void submit(cudaStream_t stream, std::function<void()> work) {
    if (stream)
        enqueue(stream, [work = std::move(work)] { return work(), true; });
    else
        work();
}

void stall(cudaStream_t stream, bool stalled) {
    const Turn own;
    stream->stalled = stalled;
}

}  // namespace emulator

using emulator::drain;
using emulator::Event;
using emulator::Moment;
using emulator::options;
using emulator::spoil_captures;
using emulator::Stream;
using emulator::submit;
using emulator::Turn;

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
        case cudaErrorStreamCaptureUnsupported:
            return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureInvalidated:
            return "operation failed due to a previous error during capture";
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
cudaError_t cudaGetDeviceCount(int* count) { return *count = options().gpus, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device < options().gpus ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? options().chip / 10 : 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* address, int bytes, int device) {
    if (device >= options().gpus) return cudaErrorInvalidDevice;
    std::snprintf(address, size_t(bytes), "0000:%02x:00.0", device);
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    if (device >= options().gpus) return cudaErrorInvalidDevice;
    *properties = {};
    std::strcpy(properties->name, "emulated GPU");
    properties->totalGlobalMem = options().memory_bytes;
    properties->major = options().chip / 10, properties->minor = options().chip % 10;
    properties->multiProcessorCount = 4;  // few, so that small shapes have more blocks than SMs
    properties->l2CacheSize = 1 << 20;
    return cudaSuccess;
}

// ---- memory: counted, so that tests can compare it with a plan ---------------------------------------------------
namespace emulator {
static size_t used_bytes = 0;
struct Allocation {
    void* data;
    size_t bytes;
    bool operator<(const Allocation& other) const { return data < other.data; }
};
static std::set<Allocation> allocations;

std::pair<const char*, const char*> allocation_of(const void* address) {
    auto next = allocations.upper_bound({const_cast<void*>(address), 0});
    if (next == allocations.begin()) return {};
    const Allocation& found = *--next;
    const char* const begin = static_cast<const char*>(found.data);
    if (static_cast<const char*>(address) >= begin + found.bytes) return {};
    return {begin, begin + found.bytes};
}
}  // namespace emulator

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    *total = options().memory_bytes;
    *free = *total - std::min(*total, emulator::used_bytes);
    return cudaSuccess;
}
cudaError_t cudaMalloc(void** data, size_t bytes) {
    const Turn own;
    if (const cudaError_t status = spoil_captures(); status != cudaSuccess) return status;
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    if (bytes > free) return cudaErrorMemoryAllocation;
    if (posix_memalign(data, 256, bytes)) return cudaErrorMemoryAllocation;
    emulator::allocations.insert({*data, bytes});
    emulator::used_bytes += bytes;
    return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
    const Turn own;
    if (const cudaError_t status = spoil_captures(); status != cudaSuccess) return status;
    const auto found = emulator::allocations.find({data, 0});
    if (!data) return cudaSuccess;
    if (found == emulator::allocations.end()) return cudaErrorInvalidValue;
    emulator::used_bytes -= found->bytes;
    emulator::allocations.erase(found);
    std::free(data);
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void** data, size_t bytes) {
    if (bytes > options().pinned_bytes) return cudaErrorMemoryAllocation;
    return posix_memalign(data, 256, bytes) ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) { return std::free(data), cudaSuccess; }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, [[maybe_unused]] cudaMemcpyKind kind,
                            cudaStream_t stream) {
    submit(stream, [=] {
        if (bytes > 0) std::memcpy(to, from, bytes);  // for 0 bytes the pointers may be null
#ifdef ANVIL_MSAN
        // MSan does not check the host: what it sends counts as initialized, and it may read everything, even guard
        // zones.
        if (kind != cudaMemcpyDeviceToDevice) __msan_unpoison(to, bytes);
#endif
    });
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
    submit(stream, [=] {
        std::memset(data, value, bytes);
#ifdef ANVIL_MSAN
        if (value == 0xFF) __msan_poison(data, bytes);  // Anvil fills memory with 0xFF that is not yet written
#endif
    });
    return cudaSuccess;
}

// ---- streams and events ------------------------------------------------------------------------------------------
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    const Turn own;
    *stream = new Stream;
    emulator::streams.insert(*stream);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return *least = 0, *greatest = -5, cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    if (priority < -5 || priority > 0) return cudaErrorInvalidValue;
    return cudaStreamCreateWithFlags(stream, flags);
}
// Completes the enqueued work first.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    const Turn own;
    drain(stream);
    emulator::streams.erase(stream);
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    const Turn own;
    if (const cudaError_t status = spoil_captures(stream); status != cudaSuccess) return status;
    return drain(stream);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    const Turn own;
    if (const cudaError_t status = spoil_captures(stream); status != cudaSuccess) return status;
    return stream->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaDeviceSynchronize() {
    const Turn own;
    if (const cudaError_t refused = spoil_captures(); refused != cudaSuccess) return refused;
    cudaError_t status = cudaSuccess;
    for (Stream* stream : emulator::streams)
        if (const cudaError_t result = drain(stream); result != cudaSuccess) status = result;
    return status;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    const Turn own;
    if (const cudaError_t status = spoil_captures(stream); status != cudaSuccess) return status;
    emulator::enqueue(stream, [moment = event->last] {
        emulator::advance(moment->stream, [&] { return !moment->reached; });
        return moment->reached;
    });
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = new Event, cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    const Turn own;
    if (const cudaError_t status = spoil_captures(stream); status != cudaSuccess) return status;
    event->last = std::make_shared<Moment>(Moment{stream, false});
    submit(stream, [moment = event->last] {
        moment->reached = true;
        moment->when = std::chrono::steady_clock::now();
    });
    return cudaSuccess;
}
// Each query executes one more piece of the stream's work, so that a polling loop ends.
cudaError_t cudaEventQuery(cudaEvent_t event) {
    while (emulator::queries_hang) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const Turn own;
    if (event->last->reached) return cudaSuccess;
    bool first = true;
    const cudaError_t status = drain(event->last->stream, [&] { return std::exchange(first, false); });
    return status == cudaSuccess ? cudaErrorNotReady : status;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    const Turn own;
    const std::shared_ptr<Moment> moment = event->last;
    const cudaError_t status = drain(moment->stream, [&] { return !moment->reached; });
    return status == cudaSuccess && !moment->reached ? emulator::never() : status;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
    const Turn own;
    if (!begin->last->reached || !end->last->reached) return cudaErrorNotReady;
    *ms = std::chrono::duration<float, std::milli>(end->last->when - begin->last->when).count();
    return cudaSuccess;
}

// ---- graphs ------------------------------------------------------------------------------------------------------
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    const Turn own;
    if (stream->capture) return cudaErrorStreamCaptureUnsupported;
    stream->capture = std::make_unique<emulator::Graph>();
    stream->spoiled = false;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    const Turn own;
    *graph = nullptr;
    if (!stream->capture) return cudaErrorInvalidValue;
    std::unique_ptr<emulator::Graph> captured = std::move(stream->capture);
    if (stream->spoiled) return cudaErrorStreamCaptureInvalidated;
    *graph = captured.release();
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
    return *made = new emulator::Graph(*graph), cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    const Turn own;
    for (const auto& work : graph->work) emulator::enqueue(stream, work);
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return delete graph, cudaSuccess; }
