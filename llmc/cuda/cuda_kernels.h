/*
The GPU's kernels as the table that the model and the optimizer call them through (llmc/ops/ops.h). Each family of it is
compiled by itself, in llmc/cuda/X.cu; what includes this header has no kernel in it, and needs no nvcc.

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

// The entries of a family: cuda_ops<GeluOps<Cuda, bf16>>() is in gelu.cu.
template <class Family>
Family cuda_ops();

template <class T>
const Ops<Cuda, T>& ops(Cuda& cuda);

// Sums of virtual ranks' buffers: sum_ranks.cuh.
template <class T>
void sum_ranks(Cuda& cuda, T* out, const T* const* inp, int num_ranks, int64_t n);
// Of any number of ranks' terms, of which others' lie in one buffer.
template <class T>
void sum_terms(Cuda& cuda, float* out, const T* own, const T* others, int64_t stride, int rank, int num_ranks,
               int64_t n);

// What a run asks before it starts.
template <class T>
std::string plan_attention(Cuda& cuda, const std::vector<AttentionShape>& shapes, bool learns);  // see attention.cuh
// Workspace of a training step of N = B*T tokens in C channels, with layers up to `widest` wide: the largest of any
// op's.
template <class T>
size_t training_workspace(Cuda& cuda, int64_t N, int64_t C, int64_t widest, const AttentionShape& attention,
                          bool learns);
PeakRates cuda_peak_rates(Cuda& cuda, bool fp32);
PeakRates cuda_compute_rate(Cuda& cuda, bool fp32);  // the arithmetic alone, in half a second
