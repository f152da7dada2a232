/*
GPT-2 (Radford et al., 2019): forward and backward, op by op, on any device. One micro-batch goes

  model.forward(tokens, B, T);
  loss = model.loss(targets);                        to look:   mean over the B*T tokens, in nats
  loss = model.loss_and_gradient(targets, scale);    to learn:  the same; also starts the backward pass,
  model.backward(tokens);                            which ends here

Tokens and targets lie in the device's memory. loss() waits for the device; add_loss() leaves the number there, for
loops that must not wait (llmc/train/step.h).

Gradients: those of parameters accumulate (+=), so that micro-batches add up; zero_gradients() begins a step. Those of
activations overwrite (=), except d_residual, to which every branch adds. They are of sum(losses) * scale; a step over n
tokens in all its micro-batches has scale = 1/n.

Weights and activations are of type T, gradients of parameters float. Shapes at the right margin: N = B*T, C channels,
NH heads, HS = C/NH, V vocabulary, Vp padded.
*/
#pragma once
#include <cstdint>
#include <vector>
#include "llmc/base/bf16.h"          // to_bf16
#include "llmc/base/op_types.h"      // AttentionShape, StepScalars
#include "llmc/model/activations.h"  // Activations, Recompute
#include "llmc/model/shape.h"        // GptShape
#include "llmc/model/parameters.h"   // ParameterList, Buffer

template <class Device, class T = float>
struct Gpt {
    Device& device;
    const ParameterList parameters;
    const GptShape& shape;
    Buffer<Device, T> weights;
    Buffer<Device, float> gradients;
    Arena<Device> arena;
    Activations<T> acts;
    int64_t B = 0, seq_len = 0;  // of the last forward

    Gpt(Device& device, const GptShape& model, int64_t max_B, int64_t max_T, Recompute recompute = Recompute::none)
        : device(device),
          parameters(model),
          shape(parameters.model),
          weights(device, "weights", parameters),
          gradients(device, "gradients", parameters),
          max_tokens_(max_B * max_T) {
        arena = Arena<Device>(device, "activations", acts.bytes(model, max_B, max_T, recompute));
        acts.each(model, max_B, max_T, recompute, [&](auto*& pointer, int64_t n) {
            pointer = arena.template take<std::remove_reference_t<decltype(*pointer)>>(n);
        });
    }

    // A weight's values, from host memory, rounded to T.
    void set_weight(const Parameter& p, const float* values) {
        if constexpr (std::is_same_v<T, float>) {
            copy_to_device(device, weights.at(p), values, p.size());
        } else {
            std::vector<T> rounded(static_cast<size_t>(p.size()));
            for (size_t i = 0; i < rounded.size(); i++) rounded[i] = to_bf16(values[i]);
            copy_to_device(device, weights.at(p), rounded.data(), p.size());
        }
    }

    // The initial weights, which depend on the seed alone. `also(parameter, values)` sees them before they are rounded.
    template <class Also>
    void initialize_weights(uint64_t seed, Also&& also) {
        std::vector<float> host;
        for (const Parameter& p : parameters) {
            host.resize(size_t(p.size()));
            initialize(parameters, p, host.data(), seed);
            set_weight(p, host.data());
            also(p, host.data());
        }
    }
    void initialize_weights(uint64_t seed) {
        initialize_weights(seed, [](const Parameter&, const float*) {});
    }

    void zero_gradients() { fill_zero(device, gradients.data, gradients.size); }

    void forward(const int32_t* tokens, int64_t batch, int64_t length) {
        require(batch * length <= max_tokens_ && length <= shape.max_seq_len,
                "a batch of %ld x %ld tokens: the model holds %ld at most, of sequences up to %ld", batch, length,
                max_tokens_, shape.max_seq_len);
        B = batch, seq_len = length;
        const int64_t N = B * seq_len, C = shape.channels;
        const GptPointers<T>& w = weights.pointers;

        const Norm first = norm_before(0);
        embedding_forward(device, first.residual, tokens, w.wte, w.wpe, B, seq_len, C);  // (N, C)
        norm_forward(first);
        for (size_t l = 0; l < w.blocks.size(); l++) {
            const auto& p = w.blocks[l];
            auto& a = acts.blocks[l];
            forward_inside(l);
            matmul_forward(device, acts.branch, a.gelu, p.mlp_c_proj_weight, p.mlp_c_proj_bias, N, 4 * C, C);  // (N, C)
            const Norm next = norm_before(l + 1);  // the block's output and the norm behind it, in one pass
            residual_layernorm_forward(device, next.residual, next.out, next.mean, next.rstd, a.residual_mid,
                                       acts.branch, next.weight, next.bias, N, C, kLayernormEps);  // (N, C)
        }
    }

    double loss(const int32_t* targets) {
        return looked_at([&](StepScalars* s) { add_loss(s, targets, 1); });
    }
    double loss_and_gradient(const int32_t* targets, float scale) {
        return looked_at([&](StepScalars* s) { add_loss_and_gradient(s, targets, scale, 1); });
    }
    // s->loss += weight * mean of the losses; s is in the device's memory.
    void add_loss(StepScalars* s, const int32_t* targets, double weight) { head(s, targets, weight, nullptr); }
    void add_loss_and_gradient(StepScalars* s, const int32_t* targets, float scale, double weight) {
        head(s, targets, weight, &scale);
    }

    void backward(const int32_t* tokens) {
        const int64_t N = B * seq_len, C = shape.channels;
        const GptPointers<T>& w = weights.pointers;
        const GptPointers<float>& g = gradients.pointers;

        fill_zero(device, acts.d_residual, N * C);
        layernorm_backward(device, acts.d_residual, g.ln_f_weight, g.ln_f_bias, acts.d_norm, acts.residual_out,
                           w.ln_f_weight, acts.ln_f_mean, acts.ln_f_rstd, N, C);
        for (size_t l = w.blocks.size(); l-- > 0;) {
            const auto& p = w.blocks[l];
            const auto& d = g.blocks[l];
            auto& a = acts.blocks[l];
            if (l + 1 < w.blocks.size()) recompute(l);  // the last block's are still there
            matmul_gelu_backward(device, acts.d_hidden, d.mlp_c_proj_weight, d.mlp_c_proj_bias, acts.d_residual, a.gelu,
                                 a.hidden, p.mlp_c_proj_weight, N, 4 * C, C);  // (N, 4C)
            matmul_backward(device, acts.d_norm, d.c_fc_weight, d.c_fc_bias, acts.d_hidden, a.ln_2, p.c_fc_weight, N, C,
                            4 * C);  // (N, C)
            layernorm_backward(device, acts.d_residual, d.ln_2_weight, d.ln_2_bias, acts.d_norm, a.residual_mid,
                               p.ln_2_weight, a.ln_2_mean, a.ln_2_rstd, N, C);  // (N, C)
            matmul_backward(device, acts.d_norm, d.c_proj_weight, d.c_proj_bias, acts.d_residual, a.attention,
                            p.c_proj_weight, N, C, C);  // (N, C)
            attention_backward(device, acts.d_qkv, acts.d_norm, a.attention, a.lse, a.qkv,
                               attention_shape());  // (N, 3C)
            matmul_backward(device, acts.d_norm, d.c_attn_weight, d.c_attn_bias, acts.d_qkv, a.ln_1, p.c_attn_weight, N,
                            C, 3 * C);  // (N, C)
            layernorm_backward(device, acts.d_residual, d.ln_1_weight, d.ln_1_bias, acts.d_norm, a.residual_in,
                               p.ln_1_weight, a.ln_1_mean, a.ln_1_rstd, N, C);  // (N, C)
        }
        embedding_backward(device, g.wte, g.wpe, acts.d_residual, tokens, B, seq_len, C);
    }

    // Logits of `rows` rows of the last forward, from row `first` on: (rows, Vp), of which V columns count.
    const T* logits(int64_t first, int64_t rows) {
        require(rows <= acts.head_rows, "logits of %ld rows at once: at most %ld", rows, acts.head_rows);
        matmul_forward(device, acts.logits, acts.ln_f + first * shape.channels, weights.pointers.wte,
                       static_cast<const T*>(nullptr), rows, shape.channels, shape.padded_vocab_size());
        return acts.logits;
    }

    // Multiply-adds count as two. 6 a weight of a matrix and token (2 forward, 4 backward), the tied head once; and for
    // causal attention 12 C T / 2 a layer (PaLM, Chowdhery et al., 2022, appendix B, halved for the mask).
    double flops_per_token(int64_t T_) const {
        double matrix_weights = 0;
        for (const Parameter& p : parameters)
            if (p.shape.size() == 2 && p.name != "wpe.weight")
                matrix_weights += double(p.exported_rows) * double(p.size() / p.shape[0]);
        return 6 * matrix_weights + 6 * double(shape.num_layers) * double(shape.channels) * double(T_);
    }

private:
    int64_t max_tokens_;

    // The norm that the residual stream goes through before block l, or, behind the last block, before the head.
    struct Norm {
        T *residual, *out;
        float *mean, *rstd;
        const T *weight, *bias;
    };
    Norm norm_before(size_t l) const {
        const GptPointers<T>& w = weights.pointers;
        if (l == w.blocks.size())
            return {acts.residual_out, acts.ln_f, acts.ln_f_mean, acts.ln_f_rstd, w.ln_f_weight, w.ln_f_bias};
        const auto& a = acts.blocks[l];
        return {a.residual_in, a.ln_1, a.ln_1_mean, a.ln_1_rstd, w.blocks[l].ln_1_weight, w.blocks[l].ln_1_bias};
    }

    void norm_forward(const Norm& norm) {
        layernorm_forward(device, norm.out, norm.mean, norm.rstd, norm.residual, norm.weight, norm.bias, B * seq_len,
                          shape.channels, kLayernormEps);
    }

    AttentionShape attention_shape() const { return {B, seq_len, shape.num_heads, shape.num_heads, shape.head_size()}; }

    // Block l from its first norm's output to GELU.
    void forward_inside(size_t l) {
        const int64_t N = B * seq_len, C = shape.channels;
        const auto& p = weights.pointers.blocks[l];
        auto& a = acts.blocks[l];
        matmul_forward(device, a.qkv, a.ln_1, p.c_attn_weight, p.c_attn_bias, N, C, 3 * C);         // (N, 3C)
        attention_forward(device, a.attention, a.lse, a.qkv, attention_shape());                    // (N, C)
        matmul_forward(device, acts.branch, a.attention, p.c_proj_weight, p.c_proj_bias, N, C, C);  // (N, C)
        residual_layernorm_forward(device, a.residual_mid, a.ln_2, a.ln_2_mean, a.ln_2_rstd, a.residual_in, acts.branch,
                                   p.ln_2_weight, p.ln_2_bias, N, C, kLayernormEps);                     // (N, C)
        matmul_gelu_forward(device, a.gelu, a.hidden, a.ln_2, p.c_fc_weight, p.c_fc_bias, N, C, 4 * C);  // (N, 4C)
    }

    // What block l's forward left and another block's has overwritten since.
    void recompute(size_t l) {
        if (acts.recompute == Recompute::none) return;
        const int64_t N = B * seq_len, C = shape.channels;
        const auto& p = weights.pointers.blocks[l];
        auto& a = acts.blocks[l];
        norm_forward(norm_before(l));
        if (acts.recompute == Recompute::block) return forward_inside(l);
        layernorm_forward(device, a.ln_2, a.ln_2_mean, a.ln_2_rstd, a.residual_mid, p.ln_2_weight, p.ln_2_bias, N, C,
                          kLayernormEps);
        gelu_forward(device, a.gelu, a.hidden, N * 4 * C);
    }

    // What `add`, which adds a loss to scalars in the device's memory, has added. Waits for it.
    template <class Add>
    double looked_at(Add&& add) {
        StepScalars scalars;
        copy_to_device(device, acts.scalars, &scalars, 1);
        add(acts.scalars);
        copy_to_host(device, &scalars, acts.scalars, 1);
        return scalars.loss;
    }

    // Final norm -> logits -> losses, a chunk of rows at a time, and with `scale` back to d_norm and the head's
    // gradient while the chunk is at hand.
    void head(StepScalars* s, const int32_t* targets, double weight, const float* scale) {
        const int64_t N = B * seq_len, C = shape.channels, V = shape.vocab_size, Vp = shape.padded_vocab_size();
        for (int64_t first = 0; first < N; first += acts.head_rows) {
            const int64_t rows = std::min(acts.head_rows, N - first);
            logits(first, rows);  // (rows, Vp)
            if (!scale) {
                cross_entropy_forward(device, acts.losses + first, acts.logits, targets + first, rows, V,
                                      Vp);  // (rows)
                continue;
            }
            cross_entropy_forward_backward(device, acts.losses + first, acts.logits, targets + first, *scale, rows, V,
                                           Vp);
            matmul_backward(device, acts.d_norm + first * C, gradients.pointers.wte, static_cast<float*>(nullptr),
                            acts.logits, acts.ln_f + first * C, weights.pointers.wte, rows, C, Vp);  // (rows, C)
        }
        add_mean_loss(device, s, acts.losses, N, weight);
    }
};
