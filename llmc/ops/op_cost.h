/*
What the larger ops cost, from their shapes alone: the single source of the bytes and FLOPs that benchmarks (dev/bench)
and --profile divide by the time. Bytes count every tensor once, read or written, whatever a cache holds; small vectors
are left out. An exponential counts as `exp_flops` FLOPs, the device's kExpFlops. T is the type of weights and
activations.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include "llmc/base/op_scope.h"      // OpCost
#include "llmc/ops/attention.h"      // AttentionShape
#include "llmc/ops/cross_entropy.h"  // Softcap
#include "llmc/ops/matmul.h"         // LowRankShape
#include "llmc/ops/quantize.h"       // Activation, Write

// n elements of `tensors` tensors of type T, and `flops` FLOPs per element.
template <class T>
OpCost elements_cost(double tensors, double flops, int64_t n) {
    return {.bytes = tensors * double(sizeof(T)) * double(n), .flops = flops * double(n)};
}

// Ops whose tensors all have as many elements: the tensors read or written, and the FLOPs per element.
struct ElementCost {
    double tensors, flops;
};
inline constexpr ElementCost kLayernormForward = {2, 7};
inline constexpr ElementCost kResidualLayernormForward = {4, 8};
inline constexpr ElementCost kRmsnormForward = {2, 4};
inline constexpr ElementCost kResidualRmsnormForward = {4, 5};
inline constexpr ElementCost kDropout = {2, 1};
inline constexpr ElementCost kReluSquaredForward = {2, 2};
inline constexpr ElementCost kReluSquaredBackward = {3, 3};
inline constexpr ElementCost kEmbeddingForward = {2, 1};
inline constexpr ElementCost kEmbeddingRmsnormForward = {2, 4};    // reads rows of wte, writes out
inline constexpr ElementCost kEmbeddingRmsnormBackward = {3, 13};  // reads and writes dout, reads rows of wte
inline constexpr ElementCost kQkRmsnormForward = {3, 4};           // in place, and the copy that backward reads
inline constexpr ElementCost kQkRmsnormBackward = {3, 12};
inline constexpr ElementCost kResidualMixForward = {3, 3};
inline constexpr ElementCost kResidualMixRmsnormForward = {6, 8};
inline constexpr ElementCost kSmearForward = {2, 3};
inline constexpr ElementCost kSmearBackward = {3, 6};
inline constexpr ElementCost kValueEmbeddingForward = {3, 2};  // of values of heads, to which table entries are added
inline constexpr ElementCost kMuonNormalize = {2, 1};          // reads and writes X
inline constexpr ElementCost kMuonSquares = {1, 2};

template <class T>
OpCost elements_cost(ElementCost each, int64_t n) {
    return elements_cost<T>(each.tensors, each.flops, n);
}

// ---- norms and activations, of n elements ---------------------------------------------------------------------------

// Reads inp and dout, writes dinp, and reads dinp if it is added to.
template <class T>
OpCost layernorm_backward_cost(int64_t n, Write write = Write::add) {
    return elements_cost<T>(write == Write::add ? 4 : 3, 18, n);
}
template <class T>
OpCost rmsnorm_backward_cost(int64_t n, Write write = Write::add) {
    return elements_cost<T>(write == Write::add ? 4 : 3, 13, n);
}
template <class T>
OpCost gelu_forward_cost(int64_t n, double exp_flops) {
    return elements_cost<T>(2, exp_flops + 7, n);
}
template <class T>
OpCost gelu_backward_cost(int64_t n, double exp_flops) {
    return elements_cost<T>(3, exp_flops + 15, n);
}
// n elements of the output; the input has twice as many.
template <class T>
OpCost swiglu_forward_cost(int64_t n, double exp_flops) {
    return elements_cost<T>(3, exp_flops + 4, n);
}
template <class T>
OpCost swiglu_backward_cost(int64_t n, double exp_flops) {
    return elements_cost<T>(5, exp_flops + 10, n);
}
// Reads dout; reads and writes a row of dwte.
template <class T>
OpCost embedding_backward_cost(int64_t n) {
    OpCost cost = elements_cost<T>(1, 2, n);
    cost.bytes += 2 * 4 * double(n);
    return cost;
}

// Queries and keys of N tokens, in place; backward also reads the rotated queries and keys.
template <class T>
OpCost rotary_forward_cost(int64_t N, int64_t heads, int64_t HS) {
    return elements_cost<T>(2, 10, N * heads * HS);
}
template <class T>
OpCost rotary_backward_cost(int64_t N, int64_t heads, int64_t HS) {
    return elements_cost<T>(3, 18, N * heads * HS);
}
// Without `inp`, if it has no factor, it and its gradient do not count.
template <class T>
OpCost residual_mix_backward_cost(int64_t n, bool has_inp, bool add_to_dinp0) {
    return elements_cost<T>((has_inp ? 5 : 3) + add_to_dinp0, 6, n);
}

// ---- linear layers (llmc/ops/matmul.h): N rows, C channels in, OC out -----------------------------------------------

// `outs`: tensors of the output's size; 2 if an activation's input is stored along with its output.
template <class T>
OpCost matmul_forward_cost(int64_t N, int64_t C, int64_t OC, int outs = 1) {
    const double n_in = double(N * C), n_weight = double(OC * C), n_out = double(N * OC);
    return {.bytes = double(sizeof(T)) * (n_in + n_weight + outs * n_out),
            .flops = 2 * n_in * double(OC),
            .rows = N,
            .in = C,
            .out = OC};
}
// Two GEMMs. Reads inp, weight and dout, writes dinp and dweight, and reads dweight if it is added to. `ins`: tensors
// of the input's size; 3 if inp is the output of an activation, whose own input is read, too. A weight that does not
// learn has one GEMM, which does not read inp.
template <class T>
OpCost matmul_backward_cost(int64_t N, int64_t C, int64_t OC, Write write, int ins = 2, bool learns = true) {
    const double n_in = double(N * C), n_weight = double(OC * C), n_out = double(N * OC);
    const double n_dweight = learns ? (write == Write::add ? 2 : 1) * n_weight : 0;
    return {.bytes = double(sizeof(T)) * ((ins - !learns) * n_in + n_weight + n_out) + 4 * n_dweight,
            .flops = (learns ? 2 : 1) * 2 * n_in * double(OC),
            .rows = N,
            .in = C,
            .out = OC};
}

// A low-rank adapter. Forward: two GEMMs, the output read and written. Backward: five; A and B are small.
template <class T>
OpCost low_rank_forward_cost(const LowRankShape& s) {
    const double n_in = double(s.N * s.C), n_out = double(s.N * s.OC());
    return {.bytes = double(sizeof(T)) * (n_in + 2 * n_out),
            .flops = 2 * n_in * double(s.width()) + 2 * n_out * double(s.rank)};
}
template <class T>
OpCost low_rank_backward_cost(const LowRankShape& s) {
    const double n_in = double(s.N * s.C), n_out = double(s.N * s.OC());
    return {.bytes = double(sizeof(T)) * (4 * n_in + 2 * n_out),
            .flops = 6 * n_in * double(s.width()) + 4 * n_out * double(s.rank)};
}

// ---- attention ------------------------------------------------------------------------------------------------------

// The number of keys that the last query sees.
inline int64_t most_keys(const AttentionShape& s) { return s.window < 0 ? s.T : std::min(s.T, s.window + 1); }
// The number of scores that the mask lets through if each row is one document.
inline double causal_scores(const AttentionShape& s) {
    const int64_t most = most_keys(s);
    return double(s.B * s.NH) * (double(most) * double(most + 1) / 2 + double(s.T - most) * double(most));
}
// The same; with documents 0, unknown, because their starts are in the device's memory.
inline double seen_scores(const AttentionShape& s) { return s.starts ? 0 : causal_scores(s); }
// A kernel's part of attention: `gemms` GEMMs of 2 HS FLOPs per score.
inline OpCost attention_gemms_cost(const AttentionShape& s, int gemms) {
    return {.flops = causal_scores(s) * gemms * 2 * double(s.HS), .keys = most_keys(s), .head_size = s.HS};
}
// Two GEMMs per head: scores and the weighted sum of values.
template <class T>
OpCost attention_forward_cost(const AttentionShape& s, double exp_flops, double scores) {
    return {.bytes = double(sizeof(T)) * double(s.B * s.T * s.HS * (2 * s.NH + 2 * s.NKV)),
            .flops = scores * (2 * 2 * double(s.HS) + exp_flops),
            .keys = most_keys(s),
            .head_size = s.HS};
}
// Five GEMMs per head: the scores again, then dP, dv, dq and dk.
template <class T>
OpCost attention_backward_cost(const AttentionShape& s, double exp_flops, double scores) {
    return {.bytes = double(sizeof(T)) * double(s.B * s.T * s.HS * (2 * (s.NH + 2 * s.NKV) + 2 * s.NH)),
            .flops = scores * (5 * 2 * double(s.HS) + exp_flops),
            .keys = most_keys(s),
            .head_size = s.HS};
}

// ---- the head and the optimizer -------------------------------------------------------------------------------------

inline double softcap_flops(Softcap cap, double exp_flops) {
    return cap.kind == Softcap::Kind::none ? 0 : cap.kind == Softcap::Kind::tanh ? exp_flops + 8 : 9;
}
template <class T>
OpCost cross_entropy_forward_cost(int64_t N, int64_t V, Softcap cap, double exp_flops) {
    return elements_cost<T>(1, exp_flops + 3 + softcap_flops(cap, exp_flops), N * V);
}
// The gradients of the padding are written, too.
template <class T>
OpCost cross_entropy_forward_backward_cost(int64_t N, int64_t V, int64_t Vp, Softcap cap, double exp_flops) {
    OpCost cost = elements_cost<T>(1, exp_flops + 4 + softcap_flops(cap, exp_flops), N * V);
    cost.bytes += double(sizeof(T)) * double(N * Vp);
    return cost;
}

// Reads and writes weight, m and v, reads the gradient. With bf16 weights any master weights count, and the weights are
// written, too. M: the type of m and v.
template <class T, class M = float>
OpCost adamw_cost(int64_t n, bool has_masters = true) {
    const double weights = std::is_same_v<T, float> ? 8 : has_masters ? 8 + sizeof(T) : 2 * sizeof(T);
    const double bytes = 4 + 4 * sizeof(M) + weights;
    return {.bytes = bytes * double(n), .flops = 14 * double(n)};
}
// The elements of all tensors of an update.
template <class Tensor>
int64_t num_elements(const Tensor* tensors, int64_t count) {
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++) n += tensors[i].n;
    return n;
}
// Of n elements of a matrix. Reads the gradient and the momentum, writes momentum and X.
template <class T, class M = float>
OpCost muon_momentum_cost(int64_t n) {
    return {.bytes = (4 + 2 * double(sizeof(M)) + double(sizeof(T))) * double(n), .flops = 7 * double(n)};
}
// Reads X and the weights, the master weights if there are some.
template <class T>
OpCost muon_lifts_cost(int64_t n, bool has_master = true) {
    return {.bytes = double(sizeof(T) + (has_master ? sizeof(float) : sizeof(T))) * double(n), .flops = 7 * double(n)};
}
// Reads X, reads and writes weight; with bf16 weights that have a master it is this that is read, and both are written.
template <class T>
OpCost muon_update_cost(int64_t n, bool has_master = true) {
    const double bytes = std::is_same_v<T, float> || !has_master ? 3 * sizeof(T) : 2 * 4 + 2 * sizeof(T);
    return {.bytes = bytes * double(n), .flops = 5 * double(n)};
}
inline OpCost add_squares_cost(int64_t n) { return elements_cost<float>(1, 2, n); }
inline OpCost accumulate_cost(int64_t n) { return elements_cost<float>(3, 1, n); }
// Into bf16; the first one only writes the sum.
inline OpCost accumulate_rounded_cost(int64_t n, bool is_first) {
    return {.bytes = (is_first ? 6 : 8) * double(n), .flops = double(n)};
}

// Adds `num` partial sums of n columns to out.
inline OpCost add_partials_cost(int64_t num, int64_t n) {
    return {.bytes = 4 * double(n) * double(num + 2), .flops = double(num) * double(n)};
}
// Quantization: the largest magnitude of n elements; then their FP8 codes, one byte each, two with the transposed copy.
inline double activation_flops(Activation activation, double exp_flops) {
    return activation == Activation::gelu           ? exp_flops + 7
           : activation == Activation::relu_squared ? 2
           : activation == Activation::swiglu       ? exp_flops + 4
                                                    : 0;
}
// The number of inputs of an activation per output.
inline double activation_inputs(Activation activation) { return activation == Activation::swiglu ? 2 : 1; }
template <class T>
OpCost absmax_cost(int64_t n, Activation activation = Activation::none, double exp_flops = 0) {
    return elements_cost<T>(activation_inputs(activation), 1 + activation_flops(activation, exp_flops), n);
}
template <class T>
OpCost quantize_cost(int64_t n, bool with_transposed, Activation activation = Activation::none, double exp_flops = 0) {
    return {.bytes = double(n) * (activation_inputs(activation) * double(sizeof(T)) + (with_transposed ? 2 : 1)),
            .flops = (3 + activation_flops(activation, exp_flops)) * double(n)};
}
// To MX: both copies, with a scale for each 32 codes.
template <class T>
OpCost quantize_mx_cost(int64_t n, Activation activation = Activation::none, double exp_flops = 0) {
    OpCost cost = quantize_cost<T>(n, true, activation, exp_flops);
    cost.bytes += 2 * double(n) / double(kMxBlock), cost.flops += 3 * double(n);
    return cost;
}
// Quantizes an activation's gradient of n elements; reads the activation's input, too.
template <class T>
OpCost quantize_gradient_cost(int64_t n, bool with_transposed, Activation activation, double exp_flops) {
    const OpCost gradient = activation == Activation::gelu     ? gelu_backward_cost<T>(n, exp_flops)
                            : activation == Activation::swiglu ? swiglu_backward_cost<T>(n / 2, exp_flops)
                                                               : elements_cost<T>(kReluSquaredBackward, n);
    OpCost cost = quantize_cost<T>(n, with_transposed);
    // The gradient itself is neither written nor read in T.
    cost.bytes += gradient.bytes - 2 * double(sizeof(T)) * double(n), cost.flops += gradient.flops;
    return cost;
}
// An op that writes FP8 codes of its n outputs, and transposed codes, instead of the outputs.
template <class T>
OpCost with_codes(OpCost cost, int64_t n) {
    const OpCost pass = quantize_cost<T>(n, true);
    return {.bytes = cost.bytes + pass.bytes - 2 * double(sizeof(T)) * double(n), .flops = cost.flops + pass.flops};
}
inline OpCost update_amax_cost(int64_t tensors, int64_t length, int64_t ranks) {
    return elements_cost<float>(1, 1, tensors * (length + ranks));
}

// With symmetric GEMMs computed as triangles, and nothing that a device may multiply besides.
template <class T>
OpCost newton_schulz_cost(int64_t batch, int64_t R, int64_t K, int iterations) {
    const double n = double(std::min(R, K)), m = double(std::max(R, K)), rounds = double(batch) * iterations;
    return {.bytes = double(sizeof(T)) * rounds * (4 * n * m + 4 * n * n),
            .flops = rounds * (3 * n * n * m + n * n * n)};
}
