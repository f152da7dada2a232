// See cuda_device.h.
#include "llmc/cuda/cuda_device.h"
#include <algorithm>
#include <cstring>
#include "llmc/base/host_limits.h"                // free_host_memory, locked_memory_limit
#include "llmc/cuda/attention/cudnn_attention.h"  // CudnnAttention
#include "llmc/cuda/cublaslt.h"                   // CublasLt
#include "llmc/cuda/cuda_profile.h"               // nvtx_ranges

namespace {

std::string version_text(int version) { return format("%d.%d", version / 1000, version % 1000 / 10); }

}  // namespace

// Advice if the program's kernels are for other GPUs, or are PTX that the driver cannot compile; "" after any other
// error.
static std::string help_with_kernels(cudaError_t status) {
    std::string why;
    if (status == cudaErrorNoKernelImageForDevice)
        why = "this program has no kernels for it: ";
    else if (status == cudaErrorUnsupportedPtxVersion)
        why = format("for it this program has PTX alone, too new for the %s: update the driver, or ",
                     driver_text().c_str());
    else if (status == cudaErrorJitCompilerNotFound)
        why =
            "for it this program has PTX alone, and the driver has no libnvidia-ptxjitcompiler.so.1: install that, or ";
    else
        return "";
    int ordinal = 0, major = 0, minor = 0;
    cudaGetDevice(&ordinal);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal);
    return format(". GPU %d has compute capability %d.%d, and %sbuild with `make GPU_ARCHS=%d`", ordinal, major, minor,
                  why.c_str(), major * 10 + minor);
}

void throw_cuda_error(cudaError_t status, const std::string& what) {
    cudaGetLastError();  // an error of a call stays set: the next check would report it again
    const std::string help = help_with_kernels(status);
    const bool recoverable = status == cudaErrorMemoryAllocation || status == cudaErrorNoDevice ||
                             status == cudaErrorInsufficientDriver || status == cudaErrorInvalidDevice || help != "";
    throw Error(
        recoverable ? kExitUsage : kExitInternal,
        format("%s: %s (%s)%s", what.c_str(), cudaGetErrorString(status), cudaGetErrorName(status), help.c_str()));
}

std::string driver_text() {
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    return format("driver for CUDA %s, runtime %s", version_text(driver).c_str(), version_text(runtime).c_str());
}

std::string why_no_gpu(int ordinal) {
    int count = 0, driver = 0, runtime = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    cudaGetLastError();
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (status == cudaErrorInsufficientDriver && driver == 0) return "no NVIDIA driver is loaded";
    if (status == cudaErrorInsufficientDriver)
        return format("the NVIDIA driver is for CUDA %s and this build is of CUDA %s: update the driver",
                      version_text(driver).c_str(), version_text(runtime).c_str());
    if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0))
        return "no GPU is visible (nvidia-smi lists them; CUDA_VISIBLE_DEVICES hides them)";
    if (status != cudaSuccess) return format("the CUDA runtime says: %s", cudaGetErrorString(status));
    if (ordinal >= count) return format("GPU %d was asked for, and there are %d", ordinal, count);
    int major = 0, minor = 0;
    cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal), "asking GPU %d", ordinal);
    cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal), "asking GPU %d", ordinal);
    if (major * 10 + minor < kOldestComputeCapability)
        return format("GPU %d has compute capability %d.%d: Anvil's kernels need %d.%d (Ampere) or newer", ordinal,
                      major, minor, kOldestComputeCapability / 10, kOldestComputeCapability % 10);
    return "";
}

Cuda::Cuda(int ordinal, const CudaOptions& options) : ordinal(ordinal), attention(options.attention) {
    const std::string why = why_no_gpu(ordinal);
    require(why.empty(), "--device cuda: %s", why.c_str());
    cuda_check(cudaSetDevice(ordinal), "choosing GPU %d", ordinal);
    cudaDeviceProp properties;
    cuda_check(cudaGetDeviceProperties(&properties, ordinal), "asking GPU %d for its properties", ordinal);
    name = properties.name;
    compute_capability = properties.major * 10 + properties.minor;
    num_sms = properties.multiProcessorCount;
    memory_bytes = properties.totalGlobalMem;
    l2_bytes = size_t(properties.l2CacheSize);
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream on GPU %d", ordinal);
    ranges_ = nvtx_ranges();
    observer = ranges_.get();
    cublaslt_ = std::make_unique<CublasLt>(*this, options.tune_path);
    cudnn_attention_ = std::make_unique<CudnnAttention>(*this, options.deterministic);
}

Cuda::~Cuda() {
    // Throws nothing: after a failed kernel every call fails, and the first error is the one to report.
    cudaStreamSynchronize(stream);
    cudnn_attention_.reset(), cublaslt_.reset();  // their handles belong to this stream and must be destroyed first
    if (workspace_) cudaFree(workspace_);
    cudaStreamDestroy(stream);
}

void* Cuda::allocate(size_t bytes) {
    void* data = nullptr;
    const size_t size = bytes > 0 ? bytes : 1;
    const cudaError_t status = cudaMalloc(&data, size);
    if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        throw Error(kExitUsage, format("out of GPU memory: %.1f MiB asked for, %.1f of %.1f MiB are free. Lower "
                                       "--batch-size or --seq-len",
                                       double(size) / (1 << 20), double(free_bytes()) / (1 << 20),
                                       double(memory_bytes) / (1 << 20)));
    }
    cuda_check(status, "allocating %.1f MiB on GPU %d", double(size) / (1 << 20), ordinal);
    cuda_check(cudaMemsetAsync(data, 0xFF, size, stream), "filling %zu bytes with NaN", size);
    used_bytes += bytes;
    peak_bytes = std::max(peak_bytes, used_bytes);
    return data;
}

void Cuda::release(void* data, size_t bytes) {
    used_bytes -= bytes;
    cudaStreamSynchronize(stream);
    cudaFree(data);
}

void* Cuda::allocate_pinned(size_t bytes) {
    void* data = nullptr;
    const cudaError_t status = cudaMallocHost(&data, bytes > 0 ? bytes : 1);
    if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        // NVIDIA's driver on Linux pins without regard to `ulimit -l`; others need not.
        const size_t locked = locked_memory_limit();
        const std::string limit =
            locked > 0 && locked < bytes ? format(", and `ulimit -l` is %zu KiB: raise it", locked >> 10) : "";
        throw Error(kExitUsage,
                    format("out of pinned host memory: %.1f MiB asked for, %.1f MiB of the host's are free%s",
                           double(bytes) / (1 << 20), double(free_host_memory()) / (1 << 20), limit.c_str()));
    }
    cuda_check(status, "pinning %zu bytes of host memory", bytes);
    return data;
}

void Cuda::release_pinned(void* data) {
    cudaStreamSynchronize(stream);
    cudaFreeHost(data);
}

size_t Cuda::free_bytes() const {
    size_t free = 0, total = 0;
    cuda_check(cudaMemGetInfo(&free, &total), "asking GPU %d for its free memory", ordinal);
    return free;
}

void* Cuda::workspace(size_t bytes) {
    if (bytes > workspace_bytes_) {
        if (workspace_) release(workspace_, workspace_bytes_);
        workspace_ = nullptr, workspace_bytes_ = 0;
        workspace_ = allocate(bytes);
        workspace_bytes_ = bytes;
    }
    return workspace_;
}

void Cuda::synchronize() { cuda_check(cudaStreamSynchronize(stream), "waiting for GPU %d", ordinal); }

void begin_training_step(Cuda& cuda) { cuda.cublaslt().begin_step(); }
void end_training_step(Cuda& cuda) { cuda.cublaslt().end_step(); }

PinnedPair::PinnedPair(Cuda& cuda, size_t bytes) : cuda_(cuda) {
    for (int turn : {0, 1}) {
        buffers_[turn] = cuda.allocate_pinned(bytes);
        cuda_check(cudaEventCreateWithFlags(&events_[turn], cudaEventDisableTiming), "creating an event");
    }
}

PinnedPair::~PinnedPair() {
    for (int turn : {0, 1}) {
        cuda_.release_pinned(buffers_[turn]);
        cudaEventDestroy(events_[turn]);
    }
}

void PinnedPair::record(int turn) { cuda_check(cudaEventRecord(events_[turn], cuda_.stream), "recording an event"); }

Cuda::Stopwatch::Stopwatch(Cuda& cuda) : cuda_(cuda) {
    for (cudaEvent_t& end : ends_) cuda_check(cudaEventCreate(&end), "creating an event");
}

Cuda::Stopwatch::~Stopwatch() {
    for (const cudaEvent_t end : ends_) cudaEventDestroy(end);
}

void Cuda::Stopwatch::start() {
    ensure(ended_ == read_);
    cuda_check(cudaEventRecord(ends_[ended_ % 3], cuda_.stream), "recording an event");
}

void Cuda::Stopwatch::lap() {
    ensure(ended_ - read_ < 2);
    cuda_check(cudaEventRecord(ends_[++ended_ % 3], cuda_.stream), "recording an event");
}

double Cuda::Stopwatch::lap_s() {
    ensure(read_ < ended_);
    const cudaEvent_t begin = ends_[read_ % 3], end = ends_[++read_ % 3];
    float ms;
    cuda_check(cudaEventElapsedTime(&ms, begin, end), "reading an event");
    return double(ms) * 1e-3;
}

void Cuda::HostCopies::add(void* to, const void* from, size_t bytes) {
    const OpScope op(cuda_, "copy_to_host");
    while (bytes > 0) {
        if (used_bytes_ == buffer_bytes_) turn();
        const size_t n = std::min(bytes, buffer_bytes_ - used_bytes_);
        cuda_check(cudaMemcpyAsync(static_cast<char*>(pinned_.buffer(turn_)) + used_bytes_, from, n,
                                   cudaMemcpyDeviceToHost, cuda_.stream),
                   "copying %zu bytes to the host", n);
        copies_[turn_].push_back({to, used_bytes_, n});
        used_bytes_ += n, bytes -= n;
        to = static_cast<char*>(to) + n, from = static_cast<const char*>(from) + n;
    }
}

void Cuda::HostCopies::finish() {
    turn();
    turn();
}

// All copies into this buffer are enqueued. Waits for the other buffer, which was filled before, and empties it.
void Cuda::HostCopies::turn() {
    pinned_.record(turn_);
    turn_ ^= 1;
    used_bytes_ = 0;
    if (!copies_[turn_].empty()) pinned_.wait(turn_);
    for (const Copy& copy : copies_[turn_])
        std::memcpy(copy.to, static_cast<const char*>(pinned_.buffer(turn_)) + copy.at, copy.bytes);
    copies_[turn_].clear();
}

Cuda::SlotCopies::SlotCopies(Cuda& cuda, size_t num_slots) : cuda_(cuda), slots_(num_slots) {
    for (cudaStream_t* stream : {&in_, &out_})
        cuda_check(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "creating a stream for copies on GPU %d",
                   cuda.ordinal);
    for (Slot& slot : slots_)
        for (cudaEvent_t* event : {&slot.filled, &slot.used, &slot.emptied})
            cuda_check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "creating an event");
    cuda.synchronize();  // the slots are new, and allocate() fills memory in the device's stream
}

Cuda::SlotCopies::~SlotCopies() {
    // Throws nothing, as ~Cuda. The device's stream first, because the others wait for it.
    for (cudaStream_t stream : {cuda_.stream, out_, in_}) cudaStreamSynchronize(stream);
    for (const Slot& slot : slots_)
        for (cudaEvent_t event : {slot.filled, slot.used, slot.emptied}) cudaEventDestroy(event);
    for (cudaStream_t stream : {in_, out_}) cudaStreamDestroy(stream);
}

void Cuda::SlotCopies::await(size_t slot) {
    const OpScope op(cuda_, "wait_for_copies");
    wait(slots_[slot].filled, cuda_.stream);
}

void Cuda::SlotCopies::finish() {
    cuda_check(cudaStreamSynchronize(out_), "waiting for copies from GPU %d to the host", cuda_.ordinal);
}

void PinnedPair::wait(int turn) { cuda_check(cudaEventSynchronize(events_[turn]), "waiting for the GPU"); }
