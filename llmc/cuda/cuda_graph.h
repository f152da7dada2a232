/*
What a step puts into the device's stream, captured once and enqueued as a whole from then on:

  CudaGraph graph(cuda);
  graph.capture([&] { ... });       what this would enqueue is kept; nothing of it is done yet
  graph.replay();                   enqueues it all, at once, as often as it is called

Launches keep their arguments: what differs from time to time must lie in the device's memory. While it is captured,
nothing may be allocated and the host may wait for nothing; an Error, and the graph is empty, if it cannot be captured.
*/
#pragma once
#include <exception>
#include <utility>
#include "llmc/cuda/cuda_device.h"  // Cuda

class CudaGraph {
public:
    explicit CudaGraph(Cuda& cuda) : cuda_(cuda) {}
    ~CudaGraph() { clear(); }
    CudaGraph(const CudaGraph&) = delete;
    CudaGraph& operator=(const CudaGraph&) = delete;

    bool is_captured() const { return graph_; }
    void clear() {
        if (graph_) cudaGraphExecDestroy(std::exchange(graph_, nullptr));
    }

    template <class Enqueue>
    void capture(Enqueue&& enqueue) {
        clear();
        begin();
        try {
            enqueue();
        } catch (...) {
            abandon();
            throw;
        }
        end();
    }
    void replay();

private:
    Cuda& cuda_;
    cudaGraphExec_t graph_ = nullptr;

    void begin();
    void end();
    void abandon();
};
