// See cuda_profile.h.
#include "llmc/cuda/cuda_profile.h"
#include <algorithm>
#include <cstdlib>
#include "llmc/base/check.h"  // ensure
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define ANVIL_HAS_NVTX 1
#else
#define ANVIL_HAS_NVTX 0
#endif

CudaProfile::CudaProfile(Cuda& cuda) : cuda_(cuda), streams_{cuda.stream} {}

CudaProfile::~CudaProfile() {
    for (const Moment& moment : moments_) cudaEventDestroy(moment.event);
}

int CudaProfile::track() const {
    const auto found = std::find(streams_.begin(), streams_.end(), cuda_.stream);
    if (found != streams_.end()) return int(found - streams_.begin());
    streams_.push_back(cuda_.stream);
    ensure(streams_.size() <= size_t(kTracks));
    return int(streams_.size()) - 1;
}

int64_t CudaProfile::mark(const Slice& slice, bool begins) noexcept {
    // No work is enqueued between the beginnings of an op and its first kernel, or between the ends of its last kernel
    // and the op, so one event stands for both.
    Last& last = last_[slice.track];
    const bool is_work = slice.kind == SliceKind::op || slice.kind == SliceKind::kernel;
    if (is_work && last.moment >= 0 && last.begins == begins) return last.moment;

    const auto number = int64_t(moments_.size());
    cudaEvent_t event = nullptr;
    cudaError_t status = cudaEventCreate(&event);
    if (status == cudaSuccess) status = cudaEventRecord(event, cuda_.stream);
    if (first_error_ == cudaSuccess) first_error_ = status;
    moments_.push_back({event, base_, slice.track});
    if (slice.depth == 0 && slice.track == 0 && begins) base_ = number;
    last = is_work ? Last{number, begins} : Last{};
    return number;
}

std::vector<int64_t> CudaProfile::times() {
    cuda_check(first_error_, "recording an event of the profile");
    std::vector<int64_t> times(moments_.size());
    int64_t latest[kTracks] = {};
    for (size_t i = 0; i < moments_.size(); i++) {
        const Moment& moment = moments_[i];
        cuda_check(cudaEventSynchronize(moment.event), "waiting for what is profiled");
        // Relative to the step's beginning, which is relative to that of the previous step: a float can represent the
        // nanoseconds of a step, but not those of a run.
        float ms = 0;
        cuda_check(cudaEventElapsedTime(&ms, moments_[size_t(moment.base)].event, moment.event),
                   "reading an event of the profile");
        // The times of a stream must not decrease because of rounding.
        const int64_t ns = times[size_t(moment.base)] + int64_t(double(ms) * 1e6);
        times[i] = latest[moment.track] = std::max(latest[moment.track], ns);
    }
    return times;
}

#if ANVIL_HAS_NVTX

namespace {
struct NvtxRanges : OpObserver {
    void begin(SliceKind, const char* name, const OpCost&, int64_t) override { nvtxRangePushA(name); }
    void end() noexcept override { nvtxRangePop(); }
};
}  // namespace

// A profiler sets this variable to the library that receives the ranges; NVTX itself reads it, too.
std::unique_ptr<OpObserver> nvtx_ranges() {
    if (!std::getenv(sizeof(void*) == 8 ? "NVTX_INJECTION64_PATH" : "NVTX_INJECTION32_PATH")) return nullptr;
    return std::make_unique<NvtxRanges>();
}

#else

std::unique_ptr<OpObserver> nvtx_ranges() { return nullptr; }

#endif
