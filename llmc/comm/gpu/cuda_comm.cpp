// See cuda_comm.h.
#include "llmc/comm/gpu/cuda_comm.h"
#include <algorithm>
#include <utility>

cudaEvent_t new_event(unsigned flags) {
    cudaEvent_t event = nullptr;
    cuda_check(cudaEventCreateWithFlags(&event, flags), "creating an event");
    return event;
}
void record(cudaEvent_t event, cudaStream_t stream) {
    cuda_check(cudaEventRecord(event, stream), "recording an event");
}
void wait_for(cudaEvent_t event, cudaStream_t stream) {
    cuda_check(cudaStreamWaitEvent(stream, event, 0), "making a stream wait");
}

static bool is_over(cudaEvent_t event) {
    const cudaError_t status = cudaEventQuery(event);
    if (status == cudaErrorNotReady) {
        cudaGetLastError();  // not an error of the next launch
        return false;
    }
    cuda_check(status, "waiting for a collective");
    return true;
}

static double ms_between(cudaEvent_t begin, cudaEvent_t end) {
    float ms = 0;
    cuda_check(cudaEventElapsedTime(&ms, begin, end), "reading the time of a collective");
    return double(ms);
}

CudaComm::CudaComm(Cuda& cuda, Order order) : cuda_(cuda), order_(order), ring_(size_t(kRing)) {
    int least = 0, greatest = 0;
    cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking GPU %d for priorities", cuda.ordinal);
    cuda_check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest),
               "creating a stream for collectives on GPU %d", cuda.ordinal);
    for (Collective& c : ring_) {
        c.ready = new_event();
        for (cudaEvent_t* event : {&c.begin, &c.end, &c.stopped, &c.resumed}) *event = new_event(cudaEventDefault);
    }
}

CudaComm::~CudaComm() {
    // Nothing is thrown here, as in ~Cuda.
    cudaStreamSynchronize(stream_);
    for (Collective& c : ring_)
        for (cudaEvent_t event : {c.ready, c.begin, c.end, c.stopped, c.resumed}) cudaEventDestroy(event);
    cudaStreamDestroy(stream_);
}

void CudaComm::begin(const char* name, double sent_bytes) {
    while (counted_ <= next_ - kRing) count_oldest(true);
    const std::lock_guard lock(mutex_);
    oldest_ = std::max<int64_t>(0, next_ - kRing + 1);
    Collective& c = at(next_);
    c.name = name, c.step = step_, c.sent_bytes = sent_bytes, c.exposed = false;
    record(c.ready, cuda_.stream);
    wait_for(c.ready, stream_);
    record(c.begin, stream_);
    if (cuda_.observer) {
        const OnStream on(cuda_, stream_);
        cuda_.observer->begin(SliceKind::collective, name, {}, -1);
    }
}

Work CudaComm::end() {
    const Work work{next_};
    if (cuda_.observer) {
        const OnStream on(cuda_, stream_);
        cuda_.observer->end();
    }
    {
        const std::lock_guard lock(mutex_);
        record(at(next_).end, stream_);
        next_++;
    }
    if (order_ == Order::serial) {
        wait(work);
        cuda_check(cudaStreamSynchronize(stream_), "%s, collective %ld, of step %ld", at(work.number).name,
                   long(work.number), long(step_));
    }
    return work;
}

void CudaComm::wait(Work work) {
    ensure(work.number < next_);
    if (work.number <= waited_) return;
    waited_ = work.number;
    if (work.number < oldest_) return;  // its place in the ring was reused, so it is complete
    Collective& c = at(work.number);
    const OpScope op(cuda_, "wait_for_collective");
    record(c.stopped, cuda_.stream);
    wait_for(c.end, cuda_.stream);
    record(c.resumed, cuda_.stream);
    c.exposed = true;
}

// Adds the oldest collective that is not in times_ yet, if it is complete and was waited for. `must`: first waits until
// it is complete.
bool CudaComm::count_oldest(bool must) {
    Collective& c = at(counted_);
    if (must) {
        cuda_check(cudaEventSynchronize(c.end), "waiting for %s of step %ld", c.name, long(c.step));
        if (c.exposed) cuda_check(cudaEventSynchronize(c.resumed), "waiting for what follows %s", c.name);
    } else if (counted_ > waited_ || !is_over(c.end) || (c.exposed && !is_over(c.resumed))) {
        return false;
    }
    times_.busy_ms += ms_between(c.begin, c.end);
    if (c.exposed) times_.exposed_ms += ms_between(c.stopped, c.resumed);
    times_.sent_bytes += c.sent_bytes;
    counted_++;
    return true;
}

CommTimes CudaComm::take_times() {
    while (counted_ < next_ && count_oldest(false)) continue;
    return std::exchange(times_, {});
}

std::string CudaComm::overdue(double timeout_s) {
    const std::lock_guard lock(mutex_);
    watched_ = std::max(watched_, oldest_);
    while (watched_ < next_ && is_over(at(watched_).end)) watched_++;
    if (watched_ == next_ || !is_over(at(watched_).begin)) return "";
    const auto now = std::chrono::steady_clock::now();
    if (std::exchange(under_way_, watched_) != watched_) since_ = now;
    const double seconds = std::chrono::duration<double>(now - since_).count();
    if (seconds <= timeout_s) return "";
    const Collective& c = at(watched_);
    return format("%s (collective %ld, in step %ld) has not finished for %.0f s: look for a rank that prints no error",
                  c.name, long(watched_), long(c.step), seconds);
}
