// The sums over ranks on a GPU, in a translation unit of their own.
#include "llmc/cuda/sum_ranks.cuh"
#include "llmc/cuda/cuda_kernels.h"

template void sum_ranks<float>(Cuda&, float* out, const float* const* inp, int num_ranks, int64_t n);
template void sum_ranks<bf16>(Cuda&, bf16* out, const bf16* const* inp, int num_ranks, int64_t n);
template void sum_ranks<uint64_t>(Cuda&, uint64_t* out, const uint64_t* const* inp, int num_ranks, int64_t n);
template void sum_terms<float>(Cuda&, float* out, const float* own, const float* others, int64_t stride, int rank,
                               int num_ranks, int64_t n);
template void sum_terms<bf16>(Cuda&, float* out, const bf16* own, const bf16* others, int64_t stride, int rank,
                              int num_ranks, int64_t n);
