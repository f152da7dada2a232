/*
The table through which the model and the optimizer call the GPU's kernels (llmc/ops/ops.h). The files table_*.cu fill
it, each with a few families; what includes this header contains no kernels and needs no nvcc.

  ops<bf16>(cuda).gelu_forward(cuda, out, inp, n);
*/
#pragma once
#include <string>
#include <vector>
#include "llmc/base/profile.h"      // PeakRates
#include "llmc/cuda/cuda_device.h"  // the device Cuda
#include "llmc/cuda/cuda_graph.h"   // CudaGraph
#include "llmc/ops/attention.h"     // AttentionShape
#include "llmc/ops/ops.h"           // Ops

// The entries of a family: cuda_ops<GeluOps<Cuda, bf16>>() is in table_elementwise.cu.
template <class Family>
Family cuda_ops();
#define CUDA_OPS_OF(Family, ...) \
    template <>                  \
    Family cuda_ops() {          \
        return {__VA_ARGS__};    \
    }
// Of a family for both types T: CUDA_OPS(GeluOps, .gelu_forward = gelu_forward, .gelu_backward = gelu_backward)
#define CUDA_OPS(Family, ...)             \
    template <>                           \
    Family<Cuda, float> cuda_ops() {      \
        using T [[maybe_unused]] = float; \
        return {__VA_ARGS__};             \
    }                                     \
    template <>                           \
    Family<Cuda, bf16> cuda_ops() {       \
        using T [[maybe_unused]] = bf16;  \
        return {__VA_ARGS__};             \
    }

template <class T>
const Ops<Cuda, T>& ops(Cuda& cuda);

// Sums the buffers of virtual ranks: sum_ranks.cuh.
template <class T>
void sum_ranks(Cuda& cuda, T* out, const T* const* inp, int num_ranks, int64_t n);
// Sums the terms of any number of ranks; those of other ranks are in one buffer.
template <class T>
void sum_terms(Cuda& cuda, float* out, const T* own, const T* others, int64_t stride, int rank, int num_ranks,
               int64_t n);

// What a run calls before it starts.
template <class T>
std::string plan_attention(Cuda& cuda, const std::vector<AttentionShape>& shapes, bool learns);  // see attention.cuh
// Bytes of workspace for a training step of N = B*T tokens in C channels, with layers up to `widest` wide: the most
// that any op takes.
template <class T>
size_t training_workspace(Cuda& cuda, int64_t N, int64_t C, int64_t widest, const AttentionShape& attention,
                          bool learns);
PeakRates cuda_peak_rates(Cuda& cuda, bool fp32);
PeakRates cuda_compute_rate(Cuda& cuda, bool fp32);  // arithmetic alone, in half a second
