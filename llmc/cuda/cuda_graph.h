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
#include "llmc/cuda/cuda_device.h"  // Cuda, cuda_check

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
    void replay() { cuda_check(cudaGraphLaunch(graph_, cuda_.stream), "launching a CUDA graph"); }

private:
    Cuda& cuda_;
    cudaGraphExec_t graph_ = nullptr;

    // Thread-local: other threads, which read data and write checkpoints, may continue to call CUDA.
    void begin() {
        cuda_check(cudaStreamBeginCapture(cuda_.stream, cudaStreamCaptureModeThreadLocal), "capturing a CUDA graph");
    }
    void abandon() {
        cudaGraph_t graph = nullptr;
        cudaStreamEndCapture(cuda_.stream, &graph);
        if (graph) cudaGraphDestroy(graph);
        cudaGetLastError();  // clears the error of the call that could not be captured
    }
    void end() {
        cudaGraph_t graph = nullptr;
        cuda_check(cudaStreamEndCapture(cuda_.stream, &graph), "capturing a CUDA graph");
        const cudaError_t status = cudaGraphInstantiateWithFlags(&graph_, graph, 0);
        cudaGraphDestroy(graph);
        if (status != cudaSuccess) graph_ = nullptr;
        cuda_check(status, "instantiating a CUDA graph");
    }
};
