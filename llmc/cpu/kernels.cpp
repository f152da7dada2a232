// The kernel table of the level for which this file is compiled; ANVIL_KERNELS is its name. See kernels.h.
#include "llmc/cpu/kernels.h"
#include "llmc/base/processor.h"  // ANVIL_CPU_LEVEL
#include "llmc/cpu/adamw.h"
#include "llmc/cpu/attention.h"
#include "llmc/cpu/attention_decode.h"
#include "llmc/cpu/buffers.h"
#include "llmc/cpu/cross_entropy.h"
#include "llmc/cpu/document_starts.h"
#include "llmc/cpu/dropout.h"
#include "llmc/cpu/embedding.h"
#include "llmc/cpu/gelu.h"
#include "llmc/cpu/global_norm.h"
#include "llmc/cpu/layernorm.h"
#include "llmc/cpu/matmul.h"
#include "llmc/cpu/matmul_fp8.h"
#include "llmc/cpu/muon.h"
#include "llmc/cpu/newton_schulz.h"
#include "llmc/cpu/peaks.h"  // peak_rates, compute_rate, matmul_rates
#include "llmc/cpu/qk_rmsnorm.h"
#include "llmc/cpu/quantize.h"
#include "llmc/cpu/relu_squared.h"
#include "llmc/cpu/residual_mix.h"
#include "llmc/cpu/rmsnorm.h"
#include "llmc/cpu/rotary.h"
#include "llmc/cpu/smear.h"
#include "llmc/cpu/step_scalars.h"
#include "llmc/cpu/sum_ranks.h"
#include "llmc/cpu/swiglu.h"
#include "llmc/cpu/value_embedding.h"
#include "llmc/cpu/weight_average.h"
#include "llmc/cpu/weight_hash.h"

namespace {

// The type of an entry selects one of several overloads.
template <class T>
constexpr Ops<Cpu, T> table_of_ops() {
    Ops<Cpu, T> o{};
    o.accumulate = accumulate;
    o.accumulate_rounded = accumulate_rounded;
    o.adamw_update = adamw_update;
    o.adamw_update_bf16 = adamw_update;
    o.attention_forward = attention_forward;
    o.attention_backward = attention_backward;
    o.attention_remember = attention_remember;
    o.attention_decode = attention_decode;
    o.cast_to_bf16 = cast;
    o.cast_to_float = cast;
    o.cross_entropy_forward = cross_entropy_forward;
    o.cross_entropy_forward_backward = cross_entropy_forward_backward;
    o.document_starts = document_starts;
    o.dropout = dropout;
    o.embedding_forward = embedding_forward;
    o.embedding_backward = embedding_backward;
    o.embedding_rmsnorm_forward = embedding_rmsnorm_forward;
    o.embedding_rmsnorm_backward = embedding_rmsnorm_backward;
    o.gelu_forward = gelu_forward;
    o.gelu_backward = gelu_backward;
    o.add_squares = add_squares;
    o.layernorm_forward = layernorm_forward;
    o.residual_layernorm_forward = residual_layernorm_forward;
    o.layernorm_backward = layernorm_backward;
    o.matmul_forward = matmul_forward;
    o.matmul_backward = matmul_backward;
    o.matmul_gelu_forward = matmul_gelu_forward;
    o.matmul_gelu_backward = matmul_gelu_backward;
    o.low_rank_forward = low_rank_forward;
    o.low_rank_backward = low_rank_backward;
    o.matmul_fp8_forward = matmul_fp8_forward;
    o.matmul_fp8_backward = matmul_fp8_backward;
    o.matmul_mx_forward = matmul_mx_forward;
    o.matmul_mx_backward = matmul_mx_backward;
    o.muon_row = muon_row<T>;
    o.muon_momentum = muon_momentum;
    o.muon_momentum_bf16 = muon_momentum_bf16;
    o.muon_normalize = muon_normalize;
    o.muon_squares = muon_squares;
    o.muon_scales = muon_scales;
    o.muon_lifts = muon_lifts;
    o.muon_update = muon_update;
    o.newton_schulz_workspace = newton_schulz_workspace<T>;
    o.newton_schulz = newton_schulz;
    o.qk_rmsnorm_forward = qk_rmsnorm_forward;
    o.qk_rmsnorm_backward = qk_rmsnorm_backward;
    o.absmax = absmax;
    o.quantize_e4m3 = quantize;
    o.quantize_e5m2 = quantize;
    o.quantize_mx = quantize_mx;
    o.transpose_codes = transpose_codes;
    o.update_amax = update_amax;
    o.relu_squared_forward = relu_squared_forward;
    o.relu_squared_backward = relu_squared_backward;
    o.residual_mix_forward = residual_mix_forward;
    o.residual_mix_backward = residual_mix_backward;
    o.residual_mix_rmsnorm_forward = residual_mix_rmsnorm_forward;
    o.rmsnorm_forward = rmsnorm_forward;
    o.residual_rmsnorm_forward = residual_rmsnorm_forward;
    o.rmsnorm_backward = rmsnorm_backward;
    o.rotary_forward = rotary_forward;
    o.rotary_backward = rotary_backward;
    o.smear_forward = smear_forward;
    o.smear_backward = smear_backward;
    o.add_mean_loss = add_mean_loss;
    o.decide_step = decide_step;
    o.swiglu_forward = swiglu_forward;
    o.swiglu_backward = swiglu_backward;
    o.value_embedding_forward = value_embedding_forward;
    o.value_embedding_backward = value_embedding_backward;
    o.average_weights = average_weights;
    o.add_hash = add_hash;
    return o;
}

}  // namespace

// constexpr: code that runs before main() would run on every processor, with instructions it may lack.
extern const CpuKernels ANVIL_KERNELS;
constexpr CpuKernels ANVIL_KERNELS = {.level = CpuLevel::ANVIL_CPU_LEVEL,
                                      .fp32_ops = table_of_ops<float>(),
                                      .bf16_ops = table_of_ops<bf16>(),
                                      .sum_ranks_fp32 = sum_ranks,
                                      .sum_ranks_bf16 = sum_ranks,
                                      .sum_ranks_bf16_to_fp32 = sum_ranks,
                                      .sum_ranks_uint64 = sum_ranks,
                                      .matmul_rates = matmul_rates,
                                      .peak_rates_fp32 = peak_rates<float>,
                                      .peak_rates_bf16 = peak_rates<bf16>,
                                      .compute_rate_fp32 = compute_rate<float>,
                                      .compute_rate_bf16 = compute_rate<bf16>,
                                      .tile_kernel = tile_kernel,
                                      .multiplies_pairs = multiplies_pairs};
