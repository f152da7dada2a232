// See cuda_graph.h.
#include "llmc/cuda/cuda_graph.h"

// Thread-local: other threads, which read data and write checkpoints, may continue to call CUDA.
void CudaGraph::begin() {
    cuda_check(cudaStreamBeginCapture(cuda_.stream, cudaStreamCaptureModeThreadLocal), "capturing a CUDA graph");
}

void CudaGraph::abandon() {
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(cuda_.stream, &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();  // clears the error of the call that could not be captured
}

void CudaGraph::end() {
    cudaGraph_t graph = nullptr;
    cuda_check(cudaStreamEndCapture(cuda_.stream, &graph), "capturing a CUDA graph");
    const cudaError_t status = cudaGraphInstantiateWithFlags(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    if (status != cudaSuccess) graph_ = nullptr;
    cuda_check(status, "instantiating a CUDA graph");
}

void CudaGraph::replay() { cuda_check(cudaGraphLaunch(graph_, cuda_.stream), "launching a CUDA graph"); }
