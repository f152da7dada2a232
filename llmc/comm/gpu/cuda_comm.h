/*
The base of Comms on GPU buffers: collectives run in a separate stream, and events order it and the device's stream.

  device's stream   ... gradients | record ready |  next layer's backward ...  | wait for end | optimizer ...
  this stream                       wait for ready | begin | collective | end
                                                                wait(work): ^ work enqueued from here on runs after it

The stream has the highest priority, because collectives are short and other ranks wait for them. The host only enqueues
work; it waits only if it is kRing collectives ahead of the GPU. Events are created once and reused in turn. A buffer
must live until its Work was waited for and the device's stream has finished; the buffers of a run live to its end.

Times are measured by events, which are read after they have passed, so nobody waits: take_times() covers the
collectives that were complete when it was called. A wait for a complete collective counts as a few microseconds.
*/
#pragma once
#include <chrono>
#include <mutex>
#include <string>
#include <vector>
#include "llmc/comm/comm.h"         // Comm, Order, Work
#include "llmc/cuda/cuda_device.h"  // Cuda, OnStream, cuda_check

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

    // For a watchdog, from any thread: the collective that has been running for more than timeout_s seconds, else "". A
    // collective is running when all earlier ones are complete on the GPU, so that a host far ahead does not count. Its
    // time starts at the call that first sees it running: call this several times within timeout_s.
    std::string overdue(double timeout_s);

protected:
    Cuda& cuda_;
    cudaStream_t stream_ = nullptr;

    // Starts a collective: enqueue() enqueues its work in stream_. `passes`: how often a ring of n ranks would send
    // (n - 1) / n of `bytes`. `among`: n; 0: world_size.
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
        bool exposed = false;  // the device's stream waits for it, between `stopped` and `resumed`
        cudaEvent_t ready, begin, end, stopped, resumed;
    };

    Order order_;
    int64_t step_ = 0;
    std::vector<Collective> ring_;
    int64_t next_ = 0;     // number of the next collective; each is in ring_[number % kRing]
    int64_t waited_ = -1;  // the last one that was waited for, which implies all before it
    int64_t counted_ = 0;  // all before this one are included in times_
    CommTimes times_;

    std::mutex mutex_;        // guards what overdue() reads: next_, oldest_, and ring_ between them
    int64_t oldest_ = 0;      // the oldest one that is still in the ring
    int64_t watched_ = 0;     // overdue(): the first one that was not complete
    int64_t under_way_ = -1;  // overdue(): the one that is running since since_
    std::chrono::steady_clock::time_point since_{};

    Collective& at(int64_t number) { return ring_[size_t(number % kRing)]; }
    void begin(const char* name, double sent_bytes);
    Work end();
    bool count_oldest(bool must);
};

cudaEvent_t new_event(unsigned flags = cudaEventDisableTiming);
void record(cudaEvent_t event, cudaStream_t stream);
void wait_for(cudaEvent_t event, cudaStream_t stream);
