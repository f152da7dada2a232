/*
What collectives on a GPU's buffers share: a stream of their own beside the device's, and events that order the two.

  device's stream   ... gradients | record ready |  next layer's backward ...  | wait for end | optimizer ...
  this stream                       wait for ready | begin | collective | end
                                                                wait(work): ^ what is enqueued then runs after it

The stream has the highest priority: collectives are short, and others wait for them. Everything is enqueued; the host
waits for nothing, unless it is kRing collectives ahead of the GPU. Events are made once and used in turn. Buffers must
live until their Work was waited for and the device's stream has finished: those of a run live to its end.

Times come from events, too, and are read when they have passed: what take_times() gives are the collectives that were
over when it was called. Reading costs no waiting. A wait that finds its collective over counts a few microseconds.
*/
#pragma once
#include <chrono>
#include <mutex>
#include <string>
#include <vector>
#include "llmc/comm/comm.h"         // Comm, Order, Work
#include "llmc/cuda/cuda_device.h"  // Cuda, cuda_check

class CudaComm : public Comm<Cuda> {
public:
    // How many collectives the host may run ahead: several steps of a model of fifty layers.
    static constexpr int64_t kRing = 512;

    CudaComm(Cuda& cuda, Order order);
    CudaComm(const CudaComm&) = delete;
    CudaComm& operator=(const CudaComm&) = delete;
    ~CudaComm() override;

    void wait(Work work) override;
    CommTimes take_times() override;
    void set_step(int64_t step) override { step_ = step; }

    // For a watchdog, from any thread: "" or which collective has been under way for longer. It is under way when all
    // before it is done on the GPU, so that a host far ahead counts as nothing. Time runs from the call that first
    // sees it under way: ask a few times within `timeout_s`.
    std::string overdue(double timeout_s);

protected:
    Cuda& cuda_;
    cudaStream_t stream_ = nullptr;

    // One collective: what `enqueue` puts into stream_. `passes`: how often a ring sends (world_size - 1) / world_size
    // of `bytes`. `among`: its ranks; 0: all.
    template <class Enqueue>
    Work start(const char* name, int passes, double bytes, Enqueue&& enqueue, int among = 0) {
        const int of = among > 0 ? among : world_size;
        begin(name, passes * bytes * (of - 1) / of);
        enqueue();
        return end();
    }

private:
    struct Collective {
        const char* name = "";
        int64_t step = 0;
        double sent_bytes = 0;
        bool exposed = false;  // the device's stream waits for it, between the last two events
        cudaEvent_t ready, begin, end, stopped, resumed;
    };

    Order order_;
    int64_t step_ = 0;
    std::vector<Collective> ring_;
    int64_t next_ = 0;     // number of the next one; each is in ring_[number % kRing]
    int64_t waited_ = -1;  // the last one that was waited for, and with it all before
    int64_t counted_ = 0;  // those before it are in times_
    CommTimes times_;

    std::mutex mutex_;        // for what overdue() reads: next_, oldest_, and of the ring what lies between
    int64_t oldest_ = 0;      // whose place in the ring is still its own
    int64_t watched_ = 0;     // the first that was not over
    int64_t under_way_ = -1;  // since then
    std::chrono::steady_clock::time_point since_{};

    Collective& at(int64_t number) { return ring_[size_t(number % kRing)]; }
    void begin(const char* name, double sent_bytes);
    Work end();
    bool count_oldest(bool must);
};

// What is launched while this lives goes to another stream than the device's. Not for ops with a workspace.
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

cudaEvent_t new_event(unsigned flags = cudaEventDisableTiming);
void record(cudaEvent_t event, cudaStream_t stream);
void wait_for(cudaEvent_t event, cudaStream_t stream);
