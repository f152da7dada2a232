/*
A step's work in the device's stream, captured once and enqueued as a whole from then on:

  CudaGraph graph(cuda);
  graph.capture([&] { ... });       records what this would enqueue, without running it
  graph.replay();                   enqueues all of it at once, any number of times

Launches keep their arguments: values that change between replays must be in device memory. During a capture nothing
may be allocated, and the host must not wait. If capturing fails, capture() throws an Error and the graph stays empty.
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
