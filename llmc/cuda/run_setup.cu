// What a run calls before it starts: see cuda_kernels.h.
#include <algorithm>
#include "llmc/cuda/attention/attention.cuh"
#include "llmc/cuda/cuda_kernels.h"
#include "llmc/cuda/gelu.cuh"
#include "llmc/cuda/matmul.cuh"
#include "llmc/cuda/qk_rmsnorm.cuh"
#include "llmc/cuda/scatter_rows.cuh"
#include "llmc/cuda/value_embedding.cuh"

template std::string plan_attention<float>(Cuda& cuda, const std::vector<AttentionShape>& shapes, bool learns);
template std::string plan_attention<bf16>(Cuda& cuda, const std::vector<AttentionShape>& shapes, bool learns);

template <class T>
size_t training_workspace(Cuda& cuda, int64_t N, int64_t C, int64_t widest, const AttentionShape& attention,
                          bool learns) {
    // layernorm_backward has at most 16 blocks per SM, and stores the largest magnitude of each.
    const int64_t norm_partials = int64_t(cuda.num_sms) * 16 * (3 * C + 1);
    const int64_t magnitudes = std::max(N, ceil_div(N * widest, int64_t(kGeluPacks * kGeluThreads) * Pack<T>::size));
    const int64_t qk_norm_partials = int64_t(kQkNormBlocksPerSm) * cuda.num_sms * 2 * attention.HS;
    const int64_t column_sums = ceil_div(N, int64_t(kColumnRows)) * widest;
    return std::max({weight_gradient_workspace(widest), attention_workspace<T>(cuda, attention, learns),
                     scatter_rows_workspace(N, C), value_embedding_backward_workspace(attention, kWarp),
                     size_t(std::max({norm_partials, qk_norm_partials, column_sums, magnitudes})) * sizeof(float)});
}
template size_t training_workspace<float>(Cuda&, int64_t, int64_t, int64_t, const AttentionShape&, bool);
template size_t training_workspace<bf16>(Cuda&, int64_t, int64_t, int64_t, const AttentionShape&, bool);
