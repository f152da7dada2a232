/*
A GPT of any architecture (architecture.h): forward and backward, op by op, on any device. One micro-batch:

  model.forward(tokens, B, T);
  loss = model.loss(targets);                        evaluation: the mean over B*T tokens, in nats
  loss = model.loss_and_gradient(targets, scale);    training: the same, and the backward pass of lm_head
  model.backward(tokens);                            the rest of the backward pass

Tokens and targets are in device memory. loss() and loss_and_gradient() wait for the device. add_loss() and
add_loss_and_gradient() leave the sum in device memory, for loops that must not wait (llmc/train/step.h). Generation
with a KV cache: gpt_decoder.h.

Each block is a pre-norm transformer block. The parts in brackets depend on the architecture:

  residual -> [mix with x0] -> ln_1 -> q k v -> [+ value embedding] -> [QK-norm with gains] -> [RoPE, QK-norm]
           -> attention -> projection -> + residual -> ln_2 -> MLP -> + residual

After the last block: [backout] -> ln_f -> lm_head. With tied weights (Press and Wolf, 2017, arXiv:1608.05859) lm_head
is the token embedding.

  activation checkpointing   backward() recomputes the activations that Recompute names (activations.h)
  chunked lm_head            the (N, Vp) logits never exist at once: matmul, loss and gradients take some rows at a time
  packed sequences           a row may hold several documents; document masking keeps attention inside each
  dropout                    in training only: after the embeddings and after the last projections of attention and MLP,
                             as in nanoGPT, but not on attention's probabilities (model.dropout)
  FP8                        of the blocks' linear layers: linear_layers.h. Then backward() needs begin_step()

Gradients of parameters accumulate (+=) over micro-batches; zero_gradients() begins a step. It skips the gradients of
the linear layers' weights and of lm_head, which the first matmul of the step overwrites (=). Gradients of activations
are overwritten, except d_residual, to which each branch adds. All are gradients of sum(losses) * scale; for a step of n
tokens over all its micro-batches, scale = 1/n.

Weights and activations have type T, gradients of parameters are float. Shapes at the right margin: N = B*T, C channels,
NH query heads, NKV key/value heads, HS channels per head (usually C/NH), CQ = NH*HS, F the MLP's width, V vocabulary,
Vp padded vocabulary.
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>
#include "llmc/base/bf16.h"            // to_bf16
#include "llmc/base/fp8.h"             // to_fp8, fp8_scale
#include "llmc/base/head_rows.h"       // even_head_rows
#include "llmc/base/op_scope.h"        // PhaseScope
#include "llmc/model/activations.h"    // Activations, ActivationPolicy
#include "llmc/model/linear.h"         // linear_forward, linear_backward
#include "llmc/model/linear_layers.h"  // LinearLayers
#include "llmc/model/mlp.h"            // mlp_up, mlp_backward
#include "llmc/model/norm.h"           // NormLayer, norm_backward
#include "llmc/model/parameters.h"     // ParameterList, Buffer
#include "llmc/model/shape.h"          // GptShape
#include "llmc/ops/attention.h"        // AttentionShape
#include "llmc/ops/dropout.h"          // dropout_mask, dropout_key
#include "llmc/ops/matmul.h"           // Write
#include "llmc/ops/ops.h"              // Ops
#include "llmc/ops/rotary.h"           // rotary_table
#include "llmc/ops/step_scalars.h"     // StepScalars

template <class Device, class T = float>
struct Gpt {
    Device& device;
    const Ops<Device, T>& op;
    const ParameterList parameters;
    const GptShape& shape;
    Buffer<Device, T> weights;
    Buffer<Device, float> gradients;
    Arena arena;
    Activations<T> acts;
    LinearLayers<T> linear;
    int64_t B = 0, seq_len = 0;  // of the last forward pass

    // Hooks for overlapping communication (llmc/train/step.h). before_forward(layer): the forward pass is about to read
    // the weights of this layer. after_backward(layer): the gradients of this layer and all later ones are complete.
    // Layer -1 is everything before the blocks; its gradients, which include those of tied weights, are complete last.
    // Layer num_layers is ln_f and an untied lm_head.
    std::function<void(int64_t layer)> before_forward, after_backward;

    Dropout dropout;               // off except in training passes; whoever turns it on turns it off again
    int32_t document_token = -1;   // first token of every document, for document masking; -1: no masking
    std::vector<int64_t> windows;  // of each layer, as AttentionShape::window; may change between passes

    // The ops that depend on a token's position or on the tokens before it; all other ops work on one token at a time.
    // These are for whole sequences. Generation has its own, which use a KV cache (gpt_decoder.h).
    struct SequenceOps {
        Gpt& model;

        void embedding_forward(T* out, const int32_t* tokens) const {
            const GptPointers<T>& w = model.weights.pointers;
            model.op.embedding_forward(model.device, out, tokens, w.wte, w.wpe, model.B, model.seq_len,
                                       model.shape.channels);
        }
        void smear_forward(T* out, const T* inp) const {
            const GptPointers<T>& w = model.weights.pointers;
            model.op.smear_forward(model.device, out, inp, w.smear_gate, w.smear_lambda, model.B, model.seq_len,
                                   model.shape.channels, kSmearChannels);
        }
        void rotary_forward(size_t l, const AttentionShape& attention) const {
            auto& a = model.acts.blocks[l];
            model.op.rotary_forward(model.device, a.qkv, model.rotary_rstd(l), model.acts.rotary_table, attention,
                                    model.arch().rotary);
        }
        void attention_forward(size_t l, const AttentionShape& attention) const {
            auto& a = model.acts.blocks[l];
            model.op.attention_forward(model.device, a.attention, a.lse, a.qkv, attention);
        }
    };

    // A model for at most max_B * max_T tokens at a time. `shared` allocates weights and gradients: the device, or the
    // Comm that communicates them.
    template <class Source>
    Gpt(Device& device, const ParameterList& list, int64_t max_B, int64_t max_T, ActivationPolicy policy,
        Source& shared)
        : Gpt(device, list, max_B, max_T, policy, shared, gradients_of(list)) {}
    // The same with another layout of gradients, in which they may share memory (llmc/optim/gradient_layout.h).
    template <class Source>
    Gpt(Device& device, const ParameterList& list, int64_t max_B, int64_t max_T, ActivationPolicy policy,
        Source& shared, const ParameterList& of_gradients)
        : device(device),
          op(ops<T>(device)),
          parameters(list),
          shape(parameters.model),
          weights(device, shared, "weights", parameters),
          gradients(device, shared, "gradients", of_gradients, policy.recompute.what != Recompute::never),
          linear(shape, weights.pointers, gradients.pointers, acts),
          max_tokens_(max_B * max_T) {
        set_windows(1);
        if (policy.head_rows == 0)
            policy.head_rows = device.head_rows(max_tokens_, shape.padded_vocab_size(), sizeof(T));
        acts = Activations<T>(shape, max_B, max_T, policy);
        arena = Arena(device, "activations", acts.bytes());
        acts.take(arena);
        if (acts.discarded) discard_gradients();
        if (acts.amax.data) fill_zero(device, acts.amax.data, acts.amax.size());
        if (!acts.rotary_table) return;
        const std::vector<float> table = rotary_table(shape.max_seq_len, shape.head_size(), shape.architecture.rotary);
        copy_to_device(device, acts.rotary_table, table.data(), int64_t(table.size()));
    }
    Gpt(Device& device, const GptShape& model, int64_t max_B, int64_t max_T, ActivationPolicy policy = Recompute::none)
        : Gpt(device, ParameterList(model), max_B, max_T, policy, device) {}

    // Sets a weight from fp32 values in host memory, rounded to T.
    void set_weight(const Parameter& p, const float* values) {
        if (p.codes_of) {
            set_codes(acts.blocks[size_t(p.layer)].fp8[*p.codes_of], values, p.size());
        } else if constexpr (std::is_same_v<T, float>) {
            copy_to_device(device, weights.at(p), values, p.size());
        } else {
            std::vector<T> rounded(static_cast<size_t>(p.size()));
            for (size_t i = 0; i < rounded.size(); i++) rounded[i] = to_bf16(values[i]);
            copy_to_device(device, weights.at(p), rounded.data(), p.size());
        }
    }

    // The codes that linear_quantize_weight would compute, on the host: the device has no memory for the weight in T.
    void set_codes(const Fp8LinearState& to, const float* values, int64_t n) {
        const auto value = [&](int64_t i) {
            if constexpr (std::is_same_v<T, float>) return values[i];
            return to_float(to_bf16(values[i]));
        };
        float amax = 0;
#pragma omp parallel for reduction(max : amax)
        for (int64_t i = 0; i < n; i++) amax = std::max(amax, std::fabs(value(i)));
        const float scale = fp8_scale<e4m3>(amax), inverse = 1 / scale;
        std::vector<e4m3> codes(static_cast<size_t>(n));
#pragma omp parallel for
        for (int64_t i = 0; i < n; i++) codes[size_t(i)] = to_fp8<e4m3>(value(i) * scale);
        copy_to_device(device, to.weight, codes.data(), n);
        copy_to_device(device, to.weight_inverse_scale, &inverse, 1);
    }

    // Sets the initial weights, which depend only on the seed. also(i, values) receives parameter i's fp32 values,
    // before rounding.
    template <class Also>
    void initialize_weights(uint64_t seed, Also&& also) {
        std::vector<float> host;
        for (size_t i = 0; i < parameters.parameters.size(); i++) {
            const Parameter& p = parameters.parameters[i];
            if (p.is_frozen) continue;  // another model's
            host.resize(size_t(p.size()));
            initialize(p, host.data(), seed);
            set_weight(p, host.data());
            also(i, host.data());
        }
    }
    void initialize_weights(uint64_t seed) {
        initialize_weights(seed, [](size_t, const float*) {});
    }

    // Sets each layer's attention window to this fraction of its full size (layer_windows).
    void set_windows(double fraction) {
        windows = layer_windows(shape.architecture, shape.num_layers, shape.max_seq_len, fraction);
    }

    // Between them weights do not change.
    void begin_step() { linear.begin_step(); }
    void end_step() { linear.end_step(); }

    // The next pass of loss_and_gradient() and backward() sets the gradients; each further pass adds to them.
    void zero_gradients() {
        begin_gradients();
        zero_gradients(0, gradients.size, gradients.data);
    }
    // The same in parts, for gradients that share memory: begin_gradients() at the beginning of the pass, and
    // zero_gradients() for each part before backward() writes to it. `part`: where the gradients of elements
    // [begin, end) of the weights are stored.
    void begin_gradients() { head_write_ = linear.write = Write::set; }
    void zero_gradients(int64_t begin, int64_t end, float* part) {
        int64_t at = begin;
        const auto zero_until = [&](int64_t next) {
            if (next > at) fill_zero(device, part + (at - begin), next - at);
        };
        if (matmul_weights_.empty()) matmul_weights_ = matmul_weights();
        for (const auto& [first, last] : matmul_weights_) {
            if (first < begin || first >= end) continue;
            zero_until(first);
            at = last;
        }
        zero_until(end);
    }

    // tokens (B, T). `starts` (B, T), for document masking: the position in its row at which each token's document
    // begins, in device memory that remains valid until the end of the backward pass. Null: computed from
    // document_token, if that is set. Throws an Error if the batch is larger than the model was made for.
    void forward(const int32_t* tokens, int64_t batch, int64_t length, const int32_t* starts = nullptr) {
        const PhaseScope phase(device, "forward");
        begin_forward(batch, length);
        set_document_starts(tokens, starts);
        run_forward(tokens, SequenceOps{*this});
    }

    // The parts of forward(), for a pass with other SequenceOps.
    void begin_forward(int64_t batch, int64_t length) {
        require(batch * length <= max_tokens_ && length <= shape.max_seq_len,
                "a batch of %ld x %ld tokens: the model holds %ld at most, of sequences up to %ld", batch, length,
                max_tokens_, shape.max_seq_len);
        B = batch, seq_len = length, starts_ = nullptr;
        linear.begin_pass(N(), seq_len, dropout);
    }
    void set_document_starts(const int32_t* tokens, const int32_t* starts = nullptr) {
        starts_ = starts;
        if (starts || document_token < 0) return;
        op.document_starts(device, acts.starts, tokens, document_token, B, seq_len);
        starts_ = acts.starts;
    }
    template <class PassOps>
    void run_forward(const int32_t* tokens, const PassOps& pass) {
        const int64_t N = B * seq_len, C = shape.channels;
        const size_t L = acts.blocks.size();
        const auto about_to_read = [&](int64_t layer) {
            if (before_forward) before_forward(layer);
        };
        about_to_read(-1);
        embed(tokens, pass);
        about_to_read(0);
        mix_residual(0);
        norm_forward(device, arch(), ln_1(0), N, C);
        for (size_t l = 0; l < L; l++) {
            const PhaseScope block(device, "block", int64_t(l));
            linear.prepare_weights(device, l);
            block_until_down(l, tokens, pass);
            const auto& a = acts.blocks[l];
            mlp_down(device, acts.branch, a.activated, a.hidden, linear(l, kDown));  // (N, C)
            drop(acts.branch, acts.branch, 2 + 2 * l);
            about_to_read(int64_t(l) + 1);  // end_block() applies the next layer's norm
            end_block(l);
        }
    }

    double loss(const int32_t* targets) {
        return host_loss([&](StepScalars* s) { add_loss(s, targets, 1); });
    }
    double loss_and_gradient(const int32_t* targets, float scale) {
        return host_loss([&](StepScalars* s) { add_loss_and_gradient(s, targets, scale, 1); });
    }
    // s->sums.loss += weight * mean of the losses, s->sums.targets += the number of targets (N) that are not ignored
    // (negative). `s` is in device memory.
    void add_loss(StepScalars* s, const int32_t* targets, double weight) {
        const PhaseScope phase(device, "head");
        each_chunk([&](int64_t first, int64_t rows) {
            logits(first, rows);  // (rows, Vp)
            op.cross_entropy_forward(device, acts.losses + first, acts.logits, targets + first, rows, shape.vocab_size,
                                     shape.padded_vocab_size(), arch().softcap);  // (rows)
        });
        op.add_mean_loss(device, s, acts.losses, targets, N(), weight);
    }
    // The same, and the gradients of lm_head and of ln_f's output. The latter is in d_norm, where backward() starts.
    void add_loss_and_gradient(StepScalars* s, const int32_t* targets, float scale, double weight) {
        const int64_t C = shape.channels, Vp = shape.padded_vocab_size();
        const PhaseScope phase(device, "head");
        each_chunk([&](int64_t first, int64_t rows) {
            logits(first, rows);  // (rows, Vp), and then their gradients in place
            op.cross_entropy_forward_backward(device, acts.losses + first, acts.logits, targets + first, scale, rows,
                                              shape.vocab_size, Vp, arch().softcap);
            op.matmul_backward(device, acts.d_norm + first * C, gradients.pointers.lm_head, nullptr, acts.logits,
                               acts.ln_f + first * C, weights.pointers.lm_head, rows, C, Vp,
                               head_write_);  // (rows, C)
            head_write_ = Write::add;
        });
        op.add_mean_loss(device, s, acts.losses, targets, N(), weight);
    }

    void backward(const int32_t* tokens) {
        ensure(linear.keep_inputs());
        ensure(head_write_ == Write::add);  // loss_and_gradient() comes first
        const PhaseScope phase(device, "backward");
        const int64_t N = B * seq_len, C = shape.channels;
        const GptPointers<T>& w = weights.pointers;
        const GptPointers<float>& g = gradients.pointers;

        const auto have_gradients = [&](int64_t layer) {
            if (after_backward) after_backward(layer);
        };
        const size_t L = w.blocks.size();
        norm_backward(device, arch(), ln_f(), linear(L - 1, kDown).dout(acts.d_residual), g.ln_f_weight, g.ln_f_bias,
                      acts.d_norm, N, C, Write::set);
        have_gradients(shape.num_layers);
        if (arch().backout)
            op.residual_mix_backward(device, acts.d_residual, acts.d_backout, nullptr, g.backout_lambda,
                                     acts.d_residual, residual(L), backout_residual(), nullptr, w.backout_lambda, -1.f,
                                     false, N * C);
        for (size_t l = L; l-- > 0;) {
            const auto& d = g.blocks[l];
            auto& a = acts.blocks[l];
            if (arch().backout && int64_t(l) == shape.backout_layer())
                op.residual_add(device, acts.d_residual, acts.d_residual, acts.d_backout, N * C);
            const PhaseScope block(device, "block", int64_t(l));
            if (l + 1 < L) recompute(l, tokens);  // all of the last block's activations are still there

            const T* d_branch = dropped_gradient(2 + 2 * l);
            mlp_backward(device, acts.d_norm, acts.d_hidden, d_branch, a.ln_2, a.activated, a.hidden, linear(l, kUp),
                         linear(l, kDown), arch().mlp);  // (N, C)
            norm_backward(device, arch(), ln_2(l), linear(l, kProjection).dout(acts.d_residual), d.ln_2_weight,
                          d.ln_2_bias, acts.d_norm, N, C);  // (N, C)
            d_branch = dropped_gradient(1 + 2 * l);
            linear_backward(device, acts.d_norm, d_branch, a.attention, linear(l, kProjection));  // (N, CQ)
            attention_backward(l, tokens);  // d_norm -> d_norm (N, C)
            norm_backward(device, arch(), ln_1(l), l > 0 ? linear(l - 1, kDown).dout(acts.d_residual) : acts.d_residual,
                          d.ln_1_weight, d.ln_1_bias, acts.d_norm, N, C);  // (N, C)
            if (arch().residual_lambdas)
                op.residual_mix_backward(device, acts.d_residual, acts.d_first, g.resid_lambdas + l, g.x0_lambdas + l,
                                         acts.d_residual, residual(l), residual(0), w.resid_lambdas + l,
                                         w.x0_lambdas + l, 1.f, l + 1 < L, N * C);
            have_gradients(int64_t(l));
        }
        linear.write = Write::add;
        if (arch().residual_lambdas) op.residual_add(device, acts.d_residual, acts.d_residual, acts.d_first, N * C);
        drop(acts.d_residual, acts.d_residual, 0);
        if (!shape.lora.is_on()) embed_backward(tokens);
        have_gradients(-1);
    }

    // Logits (rows, Vp) of rows [first, first + rows) of the last forward pass; at most acts.head_rows rows. Only the
    // first V columns are valid. The softcap is not applied yet: capped() does that.
    const T* logits(int64_t first, int64_t rows) {
        require(rows <= acts.head_rows, "logits of %ld rows at once: at most %ld", rows, acts.head_rows);
        op.matmul_forward(device, acts.logits, acts.ln_f + first * shape.channels, weights.pointers.lm_head, nullptr,
                          rows, shape.channels, shape.padded_vocab_size());
        return acts.logits;
    }

private:
    int64_t max_tokens_;
    const int32_t* starts_ = nullptr;  // of the last forward pass; null: one document per row
    Write head_write_ = Write::add;    // whether the next matmul for a gradient of lm_head overwrites it or adds to it
    std::vector<std::pair<int64_t, int64_t>> matmul_weights_;  // see matmul_weights(); empty before the first step

    const Architecture& arch() const { return shape.architecture; }
    int64_t N() const { return B * seq_len; }
    // 1 / RMS of the QK-norm that is fused into the rotation; null without it. qk_rmsnorm uses the same memory.
    float* rotary_rstd(size_t l) const { return arch().rotary.qk_norm ? acts.blocks[l].qk_rstd : nullptr; }

    // The residual stream (N, C) before block l; for l = L, after the last block.
    T* residual(size_t l) const {
        if (l == acts.blocks.size()) return arch().backout ? acts.residual_last : acts.residual_out;
        return arch().residual_lambdas ? acts.blocks[l].residual_before : acts.blocks[l].residual_in;
    }
    T* backout_residual() const { return residual(size_t(shape.backout_layer()) + 1); }

    NormLayer<T> ln_1(size_t l) const {
        const auto& a = acts.blocks[l];
        const auto& p = weights.pointers.blocks[l];
        return {a.residual_in, linear(l, kQkv).inp(a.ln_1), a.ln_1_mean, a.ln_1_rstd, p.ln_1_weight, p.ln_1_bias};
    }
    NormLayer<T> ln_2(size_t l) const {
        const auto& a = acts.blocks[l];
        const auto& p = weights.pointers.blocks[l];
        return {a.residual_mid, linear(l, kUp).inp(a.ln_2), a.ln_2_mean, a.ln_2_rstd, p.ln_2_weight, p.ln_2_bias};
    }
    NormLayer<T> ln_f() const {
        const GptPointers<T>& w = weights.pointers;
        return {acts.residual_out, acts.ln_f, acts.ln_f_mean, acts.ln_f_rstd, w.ln_f_weight, w.ln_f_bias};
    }

    // The ranges [first, last) of the weights' elements whose gradients a matmul writes, in ascending order.
    std::vector<std::pair<int64_t, int64_t>> matmul_weights() const {
        std::vector<std::pair<int64_t, int64_t>> all;
        const auto add = [&](const T* weight, int64_t n) {
            all.push_back({weight - weights.data, weight - weights.data + n});
        };
        const bool adapts = shape.lora.is_on();
        if (!adapts) add(weights.pointers.lm_head, shape.padded_vocab_size() * shape.channels);
        for (size_t l = 0; l < weights.pointers.blocks.size(); l++)
            for (const LinearKind kind : kLinearKinds) {
                const LinearLayer<T> s = linear(l, kind);
                if (!adapts) add(s.weight, s.OC * s.C);
                if (s.lora.a) add(s.lora.a, s.lora.shape.width() * s.C), add(s.lora.b, s.OC * s.lora.shape.rank);
            }
        std::sort(all.begin(), all.end());
        return all;
    }

    // What does not learn has gradients nowhere but here, where an op computes them along with others.
    void discard_gradients() {
        const DiscardedGradients discarded(parameters);
        size_t i = 0;
        gradients.pointers.each(shape, [&](float*& pointer, const Parameter& p) {
            const int64_t offset = discarded.offsets[i++];
            if (p.is_frozen) pointer = offset < 0 ? nullptr : acts.discarded + offset;
        });
        gradients.pointers.lm_head = nullptr;  // tied, it is the token embedding's
        fill_zero(device, acts.discarded, discarded.size);
    }

    AttentionShape attention_shape(size_t l) const {
        return {.B = B,
                .T = seq_len,
                .NH = shape.num_heads,
                .NKV = shape.kv_heads(),
                .HS = shape.head_size(),
                .window = windows[l] < seq_len ? windows[l] : -1,
                .scale = float(arch().score_scale),
                .starts = starts_};
    }

    template <class PassOps>
    void embed(const int32_t* tokens, const PassOps& pass) {
        T* out = arch().smear ? acts.embedded : residual(0);  // (N, C)
        if (arch().embedding_norm)
            op.embedding_rmsnorm_forward(device, out, acts.embedding_rstd, tokens, weights.pointers.wte, N(),
                                         shape.channels, float(arch().norm_eps));
        else
            pass.embedding_forward(out, tokens);
        if (arch().smear) pass.smear_forward(residual(0), out);  // (N, C)
        drop(residual(0), residual(0), 0);
    }

    // Beside adapters it is the adapters' alone (lora.h).
    bool has_dropout() const { return dropout.is_on() && !shape.lora.is_on(); }
    // Dropout at a site: 0 is after the embeddings, 1 + 2 * l after attention in block l, 2 + 2 * l after its MLP. Does
    // nothing if dropout is off.
    void drop(T* out, const T* inp, size_t site) const {
        if (!has_dropout()) return;
        const int64_t row = seq_len * shape.channels;
        op.dropout(device, out, inp,
                   dropout_mask(dropout.p, dropout.key_of(site), uint64_t(dropout.first_row) * uint64_t(row)), B * row);
    }
    // The gradient of a branch's output before dropout: d_residual itself, or with dropout a masked copy of it in
    // acts.branch, which the backward pass does not use otherwise.
    const T* dropped_gradient(size_t site) const {
        if (!has_dropout()) return acts.d_residual;
        drop(acts.branch, acts.d_residual, site);
        return acts.branch;
    }
    void embed_backward(const int32_t* tokens) {
        const GptPointers<T>& w = weights.pointers;
        const GptPointers<float>& g = gradients.pointers;
        const int64_t C = shape.channels;
        T* d_embedded = acts.d_residual;
        if (arch().smear) {
            d_embedded = acts.d_norm;
            op.smear_backward(device, d_embedded, g.smear_gate, g.smear_lambda, acts.d_residual, acts.embedded,
                              w.smear_gate, w.smear_lambda, B, seq_len, C, kSmearChannels);
        }
        if (arch().embedding_norm)
            op.embedding_rmsnorm_backward(device, g.wte, d_embedded, tokens, w.wte, acts.embedding_rstd, B, seq_len, C);
        else
            op.embedding_backward(device, g.wte, g.wpe, d_embedded, tokens, B, seq_len, C);
    }

    // With residual lambdas the input of block l is resid_lambda * residual(l) + x0_lambda * residual(0).
    void mix_residual(size_t l) {
        if (!arch().residual_lambdas) return;
        const GptPointers<T>& w = weights.pointers;
        op.residual_mix_forward(device, acts.blocks[l].residual_in, residual(l), residual(0), w.resid_lambdas + l,
                                w.x0_lambdas + l, 1.f, N() * shape.channels);
    }

    // Block l from ln_1's output to the input of the MLP's down projection: the part that backward() may recompute.
    template <class PassOps>
    void block_until_down(size_t l, const int32_t* tokens, const PassOps& pass) {
        const int64_t C = shape.channels;
        const auto& p = weights.pointers.blocks[l];
        auto& a = acts.blocks[l];
        const AttentionShape attention = attention_shape(l);
        linear_forward(device, a.qkv, a.ln_1, linear(l, kQkv));  // (N, qkv rows)
        if (p.value_embeds)
            op.value_embedding_forward(device, a.qkv, a.ln_1, tokens, p.value_embeds, p.ve_gate, attention, C,
                                       kGateChannels, kGateScale);
        if (arch().qk_rmsnorm)
            op.qk_rmsnorm_forward(device, a.qkv, a.qk_before, a.qk_rstd, p.q_norm_weight, p.k_norm_weight, attention,
                                  float(arch().norm_eps));
        if (rotates(arch(), int64_t(l))) pass.rotary_forward(l, attention);
        pass.attention_forward(l, attention);                                      // (N, CQ)
        linear_forward(device, acts.branch, a.attention, linear(l, kProjection));  // (N, C)
        drop(acts.branch, acts.branch, 1 + 2 * l);
        residual_norm_forward(device, arch(), ln_2(l), a.residual_in, acts.branch, N(), C);           // (N, C)
        mlp_up(device, a.activated, a.hidden, a.ln_2, linear(l, kUp), linear(l, kDown), arch().mlp);  // (N, F)
    }

    // Replaces the gradient of attention's output in d_norm by the gradient of ln_1's output.
    void attention_backward(size_t l, const int32_t* tokens) {
        const int64_t C = shape.channels;
        const auto& p = weights.pointers.blocks[l];
        const auto& d = gradients.pointers.blocks[l];
        auto& a = acts.blocks[l];
        const AttentionShape attention = attention_shape(l);
        op.attention_backward(device, acts.d_qkv, acts.d_norm, a.attention, a.lse, a.qkv, attention);  // (N, qkv rows)
        if (rotates(arch(), int64_t(l)))
            op.rotary_backward(device, acts.d_qkv, a.qkv, rotary_rstd(l), acts.rotary_table, attention, arch().rotary);
        if (arch().qk_rmsnorm)
            op.qk_rmsnorm_backward(device, acts.d_qkv, d.q_norm_weight, d.k_norm_weight, a.qk_before, a.qk_rstd,
                                   p.q_norm_weight, p.k_norm_weight, attention);
        linear_backward(device, acts.d_norm, acts.d_qkv, a.ln_1, linear(l, kQkv));  // (N, C)
        if (p.value_embeds)
            op.value_embedding_backward(device, acts.d_norm, d.value_embeds, d.ve_gate, acts.d_qkv, a.ln_1, tokens,
                                        p.value_embeds, p.ve_gate, attention, C, kGateChannels, kGateScale);
    }

    // Adds the MLP's output to the residual stream and applies the next norm: ln_1 of the next block, or ln_f.
    void end_block(size_t l) {
        const int64_t C = shape.channels;
        const GptPointers<T>& w = weights.pointers;
        const bool is_last = l + 1 == w.blocks.size(), is_mixed = is_last ? arch().backout : arch().residual_lambdas;
        const NormLayer<T> norm = is_last ? ln_f() : ln_1(l + 1);
        const T* mid = acts.blocks[l].residual_mid;
        if (!is_mixed) return residual_norm_forward(device, arch(), norm, mid, acts.branch, N(), C);
        if (!is_last && arch().norm == NormKind::plain_rmsnorm)
            return op.residual_mix_rmsnorm_forward(device, residual(l + 1), norm.residual, norm.out.values, norm.rstd,
                                                   mid, acts.branch, residual(0), w.resid_lambdas + l + 1,
                                                   w.x0_lambdas + l + 1, N(), C, float(arch().norm_eps));
        op.residual_add(device, residual(l + 1), mid, acts.branch, N() * C);
        if (is_last)
            op.residual_mix_forward(device, acts.residual_out, residual(l + 1), backout_residual(), nullptr,
                                    w.backout_lambda, -1.f, N() * C);
        else
            mix_residual(l + 1);
        norm_forward(device, arch(), norm, N(), C);
    }

    // Recomputes the activations of block l that other blocks have overwritten since.
    void recompute(size_t l, const int32_t* tokens) {
        auto& a = acts.blocks[l];
        // The last block that would recompute need not: no later block has overwritten what it saved.
        const Recompute what = acts.policy.recompute.of(int64_t(l) + 1);
        if (what == Recompute::none) {
            // A layer that keeps a copy does not keep the norm's output, and the gate of a value embedding reads that.
            if (linear(l, kQkv).keeps_inp() && weights.pointers.blocks[l].ve_gate)
                norm_forward(device, arch(), ln_1(l), N(), shape.channels);
            return;
        }
        linear.is_recomputing = true;
        mix_residual(l);
        norm_forward(device, arch(), ln_1(l), N(), shape.channels);
        if (what == Recompute::block) {
            block_until_down(l, tokens, SequenceOps{*this});
        } else {
            linear_keep_input(device, a.ln_1, linear(l, kQkv));
            linear_keep_input(device, a.attention, linear(l, kProjection));
            norm_forward(device, arch(), ln_2(l), N(), shape.channels);
            linear_keep_input(device, a.ln_2, linear(l, kUp));
            mlp_activate(device, a.activated, a.hidden, linear(l, kDown), arch().mlp);
        }
        mlp_keep_activated(device, a.activated, a.hidden, linear(l, kDown));
        linear.is_recomputing = false;
    }

    // Returns the loss that add(scalars) adds to `scalars` in device memory. Waits for the device.
    template <class Add>
    double host_loss(Add&& add) {
        StepScalars scalars;
        copy_to_device(device, acts.scalars, &scalars, 1);
        add(acts.scalars);
        copy_to_host(device, &scalars, acts.scalars, 1);
        return scalars.sums.loss.value();
    }

    // Calls body(first, rows) for each chunk of rows of logits.
    template <class Body>
    void each_chunk(Body&& body) const {
        const int64_t chunk = even_head_rows(N(), acts.head_rows);
        for (int64_t first = 0; first < N(); first += chunk) body(first, std::min(chunk, N() - first));
    }
};
