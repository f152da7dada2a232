/*
The linear layers of a model's blocks, and all that a model does for their FP8 (linear.h): when they compute in it, with
which scales, and what the ops around them store for them. linear(l, kQkv) describes a layer of block l to
linear_forward and linear_backward, and linear(l, kQkv).inp(a.ln_1) how the norm before it stores its output.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include "llmc/base/check.h"         // ensure
#include "llmc/model/activations.h"  // Activations
#include "llmc/model/linear.h"       // LinearLayer, LinearKind
#include "llmc/model/mlp.h"          // mlp_backward
#include "llmc/model/norm.h"         // norm_finds_amax_and_sums
#include "llmc/model/parameters.h"   // GptPointers
#include "llmc/model/shape.h"        // GptShape
#include "llmc/ops/dropout.h"        // dropout_mask, dropout_key
#include "llmc/ops/matmul.h"         // Write
#include "llmc/ops/quantize.h"       // QuantizeNotes

// The dropout of a pass: at each site (Gpt::drop) elements are dropped with probability p. The mask depends on seed,
// step, site and on the number of each row in the step; first_row is the number of the pass's first row.
struct Dropout {
    double p = 0;
    uint64_t seed = 0, step = 0;
    int64_t first_row = 0;

    bool is_on() const { return p > 0; }
    uint64_t key_of(size_t site) const { return dropout_key(seed, step, site); }
};

template <class T>
class LinearLayers {
public:
    Write write = Write::add;     // whether the gradients of weights are set or added to
    bool is_recomputing = false;  // inputs have been recorded before
    // Delayed scaling: where to record largest magnitudes (this rank's row of update_amax's `seen`) and count saturated
    // elements. Must be set before begin_step() if ActivationPolicy asks for delayed scaling.
    QuantizeNotes amax_notes;

    LinearLayers(const GptShape& shape, const GptPointers<T>& weights, const GptPointers<float>& gradients,
                 const Activations<T>& acts)
        : shape_(shape), weights_(weights), gradients_(gradients), acts_(acts) {}

    // Between them weights do not change, and layers that suit FP8 compute in it.
    void begin_step() {
        ensure(acts_.amax.length == 0 || amax_notes.amax);
        in_step_ = true, quantized_ = 0, is_recomputing = false;
    }
    void end_step() { in_step_ = false; }
    // Whether a backward pass is possible: FP8 layers keep their inputs only in a step.
    bool keep_inputs() const { return in_step_ || !acts_.policy.fp8; }

    // A pass over rows of T tokens, N in all.
    void begin_pass(int64_t N, int64_t seq_len, const Dropout& dropout) {
        N_ = N, seq_len_ = seq_len, dropout_ = dropout;
    }
    // A forward pass is about to read the weights of block l.
    template <class Device>
    void prepare_weights(Device& device, size_t l) {
        if (!in_step_ || l < quantized_ || shape_.lora.is_on()) return;
        for (const LinearKind kind : kLinearKinds) linear_quantize_weight(device, (*this)(l, kind));
        quantized_ = l + 1;
    }

    // Delayed scaling, between steps: sets how many steps the history has, after it was loaded; adds one, after
    // update_amax() has added a step.
    void set_amax_steps(int64_t steps) { amax_steps_ = std::min(steps, acts_.amax.length); }
    void count_amax_step() { set_amax_steps(amax_steps_ + 1); }
    // Whether scales come from the history. It must be full, or have kAmaxWarmup steps. Until then scales are current.
    bool has_delayed_scales() const {
        return acts_.amax.length > 0 && amax_steps_ >= std::min(acts_.amax.length, kAmaxWarmup);
    }

    LinearLayer<T> operator()(size_t l, LinearKind kind) const {
        const auto [C, OC] = linear_size(shape_, kind);
        LinearLayer<T> s{.N = N_, .C = C, .OC = OC, .write = write};
        std::tie(s.weight, s.bias) = of_layer(weights_.blocks[l], kind);
        if (!shape_.lora.is_on()) std::tie(s.dweight, s.dbias) = of_layer(gradients_.blocks[l], kind);
        if (shape_.lora.adapts(kind)) s.lora = lora_of(l, kind);
        if (norm_describes_dout(kind)) s.dout_sums = std::exchange(s.dbias, nullptr);
        if (is_fp8(l, kind)) use_fp8(s, l, kind);
        return s;
    }

private:
    const GptShape& shape_;
    const GptPointers<T>& weights_;
    const GptPointers<float>& gradients_;
    const Activations<T>& acts_;
    int64_t N_ = 0, amax_steps_ = 0;
    size_t quantized_ = 0;  // the weights of as many blocks, in this step
    int64_t seq_len_ = 0;
    Dropout dropout_;
    bool in_step_ = false;

    // A layer's weight and bias, or their gradients.
    template <class Block>
    static auto of_layer(const Block& b, LinearKind kind) {
        return kind == kQkv          ? std::pair{b.c_attn_weight, b.c_attn_bias}
               : kind == kProjection ? std::pair{b.c_proj_weight, b.c_proj_bias}
               : kind == kUp         ? std::pair{b.c_fc_weight, b.c_fc_bias}
                                     : std::pair{b.mlp_c_proj_weight, b.mlp_c_proj_bias};
    }
    LoraLayer<T> lora_of(size_t l, LinearKind kind) const {
        const Lora& lora = shape_.lora;
        const std::vector<int64_t> rows = lora_rows(shape_, kind);
        LoraLayer<T> s{.a = weights_.blocks[l].lora_a[kind],
                       .b = weights_.blocks[l].lora_b[kind],
                       .da = gradients_.blocks[l].lora_a[kind],
                       .db = gradients_.blocks[l].lora_b[kind],
                       .shape = {.N = N_,
                                 .C = linear_size(shape_, kind).C,
                                 .rank = lora.rank,
                                 .scale = float(lora.alpha / double(lora.rank)),
                                 .parts = int(rows.size())},
                       .scratch = acts_.lora,
                       .has_dropout = dropout_.is_on()};
        std::copy(rows.begin(), rows.end(), s.shape.rows);
        // The sites after those of Gpt::drop.
        const size_t site = 1 + 2 * weights_.blocks.size() + std::size(kLinearKinds) * l + size_t(kind);
        if (s.has_dropout)
            s.mask = dropout_mask(dropout_.p, dropout_.key_of(site),
                                  uint64_t(dropout_.first_row) * uint64_t(seq_len_ * s.shape.C));
        return s;
    }
    // Beside adapters always: there are no other weights.
    bool is_fp8(size_t l, LinearKind kind) const {
        return (in_step_ || shape_.lora.is_on()) && acts_.blocks[l].fp8[kind].weight;
    }

    // Whether the norm's backward pass that computes d_residual finds what this layer wants to know of it: the gradient
    // of the layer's output is d_residual exactly as the norm wrote it, with no dropout and no other op in between.
    bool norm_describes_dout(LinearKind kind) const {
        const Architecture& a = shape_.architecture;
        if (dropout_.is_on() || !norm_finds_amax_and_sums(a)) return false;
        return kind == kProjection || (kind == kDown && !a.backout && !a.residual_lambdas);
    }

    void use_fp8(LinearLayer<T>& s, size_t l, LinearKind kind) const {
        const Architecture& a = shape_.architecture;
        s.fp8 = &acts_.blocks[l].fp8[kind], s.scratch = acts_.fp8_scratch;
        const bool is_delayed = has_delayed_scales() && in_step_;
        const bool may_fuse = !shape_.lora.is_on();  // adapters read what is quantized
        if (acts_.amax.length > 0 && in_step_) {
            // While recomputing, the forward pass has recorded the input.
            const auto delayed = [&](bool is_gradient, bool records) {
                const int64_t i = delayed_tensor(l, kind, is_gradient);
                Fp8Operand of;
                if (is_delayed) of.delayed_amax = acts_.amax.amax() + i;
                if (records) of.notes = {amax_notes.amax + i, is_delayed ? amax_notes.saturated : nullptr};
                return of;
            };
            s.fp8_inp = delayed(false, !is_recomputing), s.fp8_dout = delayed(true, true);
        }
        if (is_delayed) {
            // A norm writes the codes of the input, unless something else reads it (the gate of a value embedding) or
            // another op computes it (the mix of residual lambdas).
            s.inp_is_quantized =
                may_fuse && (kind == kUp || (kind == kQkv && !weights_.blocks[l].ve_gate && !a.residual_lambdas));
        } else if (!s.is_mx()) {
            const bool of_norm = (kind == kQkv || kind == kUp) && norm_finds_amax_and_sums(a);
            const bool of_mlp = kind == kUp && is_fp8(l, kDown) && a.mlp != MlpKind::relu_squared;
            if (of_norm) s.fp8_inp.amax = s.scratch.inp_amax;
            if (of_mlp || norm_describes_dout(kind)) s.fp8_dout.amax = s.scratch.dout_amax;
        }
        // With SwiGLU the pass that quantizes the gradient does not sum columns, so up must have no bias.
        const Activation activation = a.mlp == MlpKind::gelu           ? Activation::gelu
                                      : a.mlp == MlpKind::relu_squared ? Activation::relu_squared
                                                                       : Activation::swiglu;
        if (may_fuse && kind == kDown && is_fp8(l, kUp)) s.fp8_inp.activation = activation;
        if (may_fuse && kind == kUp && is_fp8(l, kDown) && is_delayed && (a.mlp != MlpKind::swiglu || !s.dbias))
            s.fp8_dout.activation = activation;
    }
};
