/*
A GPT of any architecture (architecture.h): forward and backward, op by op, on any device. One micro-batch goes

  model.forward(tokens, B, T);
  loss = model.loss(targets);                        to look:   mean over the B*T tokens, in nats
  loss = model.loss_and_gradient(targets, scale);    to learn:  the same; also starts the backward pass,
  model.backward(tokens);                            which ends here

Texts are continued a token at a time by prefill() and decode() (kv_cache.h), of which the same holds op by op.

Tokens and targets lie in the device's memory. loss() waits for the device; add_loss() leaves the number there, for
loops that must not wait (llmc/train/step.h).

A model made for eight bits (Passes, linear.h) computes in them between begin_step() and end_step(), where weights stay
as they are; outside, to look at it, in T. Only there it can learn.

The residual stream: stream_before(l) is what block l gets. With residual lambdas the block reads r x + z x0 instead, x0
the first stream; behind the last block backout takes out a part of a stream from the middle.

  stream -> [mix] -> norm -> q k v -> [+ value embedding] -> [rotary, QK-norm] -> attention -> projection -> + stream
         -> norm -> MLP -> + stream

Gradients: those of parameters accumulate (+=), so that micro-batches add up; zero_gradients() begins a step. It leaves
those of the linear layers and of the head as they are: the first product since then writes them (=). Those of
activations overwrite (=), except d_residual, to which every branch adds. They are of sum(losses) * scale; a step over n
tokens in all its micro-batches has scale = 1/n.

Weights and activations are of type T, gradients of parameters float. Shapes at the right margin: N = B*T, C channels,
NH heads, NKV of keys and values, HS = C/NH, F the MLP's width, V vocabulary, Vp padded.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>
#include "llmc/base/bf16.h"          // to_bf16
#include "llmc/base/head_rows.h"     // even_head_rows
#include "llmc/base/op_scope.h"      // PhaseScope
#include "llmc/base/op_types.h"      // AttentionShape, StepScalars, Write
#include "llmc/model/activations.h"  // Activations, Passes
#include "llmc/model/kv_cache.h"     // KvCache
#include "llmc/model/linear.h"       // LinearSite, linear_forward
#include "llmc/model/mlp.h"          // mlp_up, mlp_down_backward
#include "llmc/model/norm.h"         // NormSite
#include "llmc/model/parameters.h"   // ParameterList, Buffer
#include "llmc/model/shape.h"        // GptShape
#include "llmc/ops/ops.h"            // Ops

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
    int64_t B = 0, seq_len = 0;  // of the last forward

    // For whoever moves weights and gradients meanwhile (llmc/train/step.h): the forward pass is about to read the
    // weights of `layer` and later ones; the backward pass has all gradients of this layer and later ones. -1: what
    // comes before all layers, whose gradients, a tied head's included, are complete last; num_layers: the last norm
    // and a head of its own.
    std::function<void(int64_t layer)> before_forward, after_backward;

    int32_t document_token = -1;   // the first token of each document, which sees no other one; -1: they all do
    std::vector<int64_t> windows;  // how far each layer sees, as AttentionShape::window; may change between passes

    // Weights and gradients lie in memory of `shared`: the device, or what exchanges them between ranks.
    template <class Source>
    Gpt(Device& device, const ParameterList& list, int64_t max_B, int64_t max_T, Passes passes, Source& shared)
        : device(device),
          op(ops<T>(device)),
          parameters(list),
          shape(parameters.model),
          weights(device, shared, "weights", parameters),
          gradients(device, shared, "gradients", parameters, passes.recompute != Recompute::never),
          max_tokens_(max_B * max_T) {
        set_windows(1);
        if (passes.head_rows == 0)
            passes.head_rows = device.head_rows(max_tokens_, shape.padded_vocab_size(), sizeof(T));
        arena = Arena(device, "activations", acts.bytes(shape, max_B, max_T, passes));
        acts.each(shape, max_B, max_T, passes, [&](auto*& pointer, int64_t n) {
            pointer = arena.take<std::remove_reference_t<decltype(*pointer)>>(n);
        });
        if (!acts.rotary_table) return;
        const std::vector<float> table = rotary_table(shape.max_seq_len, shape.head_size(), shape.architecture.rotary);
        copy_to_device(device, acts.rotary_table, table.data(), int64_t(table.size()));
    }
    Gpt(Device& device, const GptShape& model, int64_t max_B, int64_t max_T, Passes passes = Recompute::none)
        : Gpt(device, ParameterList(model), max_B, max_T, passes, device) {}

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

    // The initial weights, which depend on the seed alone. `also(i, values)` sees parameter i's before they are
    // rounded.
    template <class Also>
    void initialize_weights(uint64_t seed, Also&& also) {
        std::vector<float> host;
        for (size_t i = 0; i < parameters.parameters.size(); i++) {
            const Parameter& p = parameters.parameters[i];
            host.resize(size_t(p.size()));
            initialize(p, host.data(), seed);
            set_weight(p, host.data());
            also(i, host.data());
        }
    }
    void initialize_weights(uint64_t seed) {
        initialize_weights(seed, [](size_t, const float*) {});
    }

    // Every layer sees this part of what it will see (layer_windows).
    void set_windows(double part) {
        windows = layer_windows(shape.architecture, shape.num_layers, shape.max_seq_len, part);
    }

    void begin_step() { in_step_ = has_new_weights_ = true; }
    void end_step() { in_step_ = false; }

    // After this, or on a new model, a pass of loss_and_gradient() and backward() gives gradients, and each further one
    // adds its own.
    void zero_gradients() {
        float* at = gradients.data;
        const auto zero_until = [&](float* end) {
            if (end > at) fill_zero(device, at, end - at);
        };
        if (products_.empty()) products_ = products();
        for (const std::span<float> product : products_) {
            zero_until(product.data());
            at = product.data() + product.size();
        }
        zero_until(gradients.data + gradients.size);
        head_write_ = linear_write_ = Write::set;
    }

    // `starts` (B, T), in the device's memory until the backward pass is over: where in its row the document of each
    // token begins, and attention with it. Null: found by document_token, or each row is one document.
    void forward(const int32_t* tokens, int64_t batch, int64_t length, const int32_t* starts = nullptr) {
        const PhaseScope phase(device, "forward");
        begin(tokens, batch, length, starts);
        run(tokens);
    }

    // As forward() of one sequence, which becomes the text of a row of the cache.
    void prefill(KvCache<Device, T>& cache, int64_t row, const std::vector<int32_t>& tokens) {
        const int32_t* sent = cache.begin_row(row, tokens, document_token);
        begin(sent, 1, int64_t(tokens.size()), nullptr);
        kept_ = {&cache, row};
        run(sent);
        kept_ = {};
        if (arch().smear)
            copy_on_device(device, cache.newest(row), acts.embedded + (seq_len - 1) * shape.channels, shape.channels);
    }

    // As the last position of forward() of every row of the cache with this token behind it.
    void decode(KvCache<Device, T>& cache, const std::vector<int32_t>& tokens) {
        const int32_t* sent = cache.begin_step(tokens, document_token);
        B = cache.rows(), seq_len = 1, starts_ = nullptr;
        ensure(B <= max_tokens_);
        kept_ = {&cache, -1};
        run(sent);
        kept_ = {};
        cache.end_step(tokens, document_token);
    }

    double loss(const int32_t* targets) {
        return looked_at([&](StepScalars* s) { add_loss(s, targets, 1); });
    }
    double loss_and_gradient(const int32_t* targets, float scale) {
        return looked_at([&](StepScalars* s) { add_loss_and_gradient(s, targets, scale, 1); });
    }
    // s->sums.loss += weight * mean of the losses; s is in the device's memory.
    void add_loss(StepScalars* s, const int32_t* targets, double weight) { head(s, targets, weight, nullptr); }
    void add_loss_and_gradient(StepScalars* s, const int32_t* targets, float scale, double weight) {
        head(s, targets, weight, &scale);
    }

    void backward(const int32_t* tokens) {
        ensure(in_step_ || !acts.passes.fp8);  // or the layers' inputs are gone
        ensure(head_write_ == Write::add);     // the head has its gradient
        const PhaseScope phase(device, "backward");
        const int64_t N = B * seq_len, C = shape.channels;
        const GptPointers<T>& w = weights.pointers;
        const GptPointers<float>& g = gradients.pointers;

        const auto have_gradients = [&](int64_t layer) {
            if (after_backward) after_backward(layer);
        };
        const size_t L = w.blocks.size();
        fill_zero(device, acts.d_residual, N * C);
        norm_backward(device, arch(), first_norm(L), acts.d_residual, g.ln_f_weight, g.ln_f_bias, acts.d_norm, N, C);
        have_gradients(shape.num_layers);
        if (arch().backout)
            op.residual_mix_backward(device, acts.d_residual, acts.d_backout, nullptr, g.backout_lambda,
                                     acts.d_residual, acts.residual_last, backout_stream(), nullptr, w.backout_lambda,
                                     -1.f, false, N * C);
        for (size_t l = L; l-- > 0;) {
            const auto& d = g.blocks[l];
            auto& a = acts.blocks[l];
            if (arch().backout && int64_t(l) == shape.backout_layer()) add(acts.d_residual, acts.d_backout);
            const PhaseScope block(device, "block", int64_t(l));
            if (l + 1 < L) recompute(l, tokens);  // the last block's are still there

            const T* d_hidden = mlp_down_backward(device, acts.d_hidden, acts.d_residual, a.activated, a.hidden,
                                                  linear(l, kDown), arch().mlp);     // (N, hidden rows)
            linear_backward(device, acts.d_norm, d_hidden, a.ln_2, linear(l, kUp));  // (N, C)
            norm_backward(device, arch(), second_norm(l), acts.d_residual, d.ln_2_weight, d.ln_2_bias, acts.d_norm, N,
                          C);                                                                            // (N, C)
            linear_backward(device, acts.d_norm, acts.d_residual, a.attention, linear(l, kProjection));  // (N, C)
            attend_backward(l, tokens);  // d_norm -> d_norm (N, C)
            norm_backward(device, arch(), first_norm(l), acts.d_residual, d.ln_1_weight, d.ln_1_bias, acts.d_norm, N,
                          C);  // (N, C)
            if (arch().residual_lambdas)
                op.residual_mix_backward(device, acts.d_residual, acts.d_first, g.resid_lambdas + l, g.x0_lambdas + l,
                                         acts.d_residual, a.residual_before, stream_before(0), w.resid_lambdas + l,
                                         w.x0_lambdas + l, 1.f, l + 1 < L, N * C);
            have_gradients(int64_t(l));
        }
        linear_write_ = Write::add;
        if (arch().residual_lambdas) add(acts.d_residual, acts.d_first);
        embed_backward(tokens);
        have_gradients(-1);
    }

    // Logits of `rows` rows of the last forward, from row `first` on: (rows, Vp), of which V columns count. Before the
    // softcap, which capped() applies.
    const T* logits(int64_t first, int64_t rows) {
        require(rows <= acts.head_rows, "logits of %ld rows at once: at most %ld", rows, acts.head_rows);
        op.matmul_forward(device, acts.logits, acts.ln_f + first * shape.channels, weights.pointers.lm_head, nullptr,
                          rows, shape.channels, shape.padded_vocab_size());
        return acts.logits;
    }

    double flops_per_token(int64_t T_) const { return ::flops_per_token(parameters, T_); }

private:
    int64_t max_tokens_;
    const int32_t* starts_ = nullptr;  // of the last forward
    struct Kept {
        KvCache<Device, T>* cache = nullptr;
        int64_t row = -1;  // -1: all rows, by one token each

        bool by_one() const { return cache && row < 0; }
    } kept_;  // of the pass under way
    bool in_step_ = false, has_new_weights_ = false;
    // What the next product of the head, and those of the next backward pass, do to their gradients.
    Write head_write_ = Write::add, linear_write_ = Write::add;
    std::vector<std::span<float>> products_;  // see products(); empty before the first step

    const Architecture& arch() const { return shape.architecture; }
    int64_t N() const { return B * seq_len; }

    // The residual stream in front of block l, or, behind the last one, in front of backout.
    T* stream_before(size_t l) const {
        if (l == acts.blocks.size()) return arch().backout ? acts.residual_last : acts.residual_out;
        return arch().residual_lambdas ? acts.blocks[l].residual_before : acts.blocks[l].residual_in;
    }
    T* backout_stream() const { return stream_before(size_t(shape.backout_layer()) + 1); }

    // The first norm of block l, or, behind the last block, the one before the head.
    NormSite<T> first_norm(size_t l) const {
        const GptPointers<T>& w = weights.pointers;
        if (l == w.blocks.size())
            return {acts.residual_out, acts.ln_f, acts.ln_f_mean, acts.ln_f_rstd, w.ln_f_weight, w.ln_f_bias};
        const auto& a = acts.blocks[l];
        return {a.residual_in, a.ln_1, a.ln_1_mean, a.ln_1_rstd, w.blocks[l].ln_1_weight, w.blocks[l].ln_1_bias};
    }
    NormSite<T> second_norm(size_t l) const {
        const auto& a = acts.blocks[l];
        const auto& p = weights.pointers.blocks[l];
        return {a.residual_mid, a.ln_2, a.ln_2_mean, a.ln_2_rstd, p.ln_2_weight, p.ln_2_bias};
    }

    // A linear layer of block l.
    LinearSite<T> linear(size_t l, LinearKind kind) const {
        const auto& p = weights.pointers.blocks[l];
        const auto& d = gradients.pointers.blocks[l];
        const LinearCodes& codes = acts.blocks[l].codes[kind];
        const auto [C, OC] = linear_size(shape, kind);
        LinearSite<T> s{.N = N(),
                        .C = C,
                        .OC = OC,
                        .codes = in_step_ && codes.weight ? &codes : nullptr,
                        .scratch = acts.code_scratch,
                        .write = linear_write_};
        const auto with = [&](const T* weight, const T* bias, float* dweight, float* dbias) {
            s.weight = weight, s.bias = bias, s.dweight = dweight, s.dbias = dbias;
            return s;
        };
        switch (kind) {
            case kQkv:
                return with(p.c_attn_weight, p.c_attn_bias, d.c_attn_weight, d.c_attn_bias);
            case kProjection:
                return with(p.c_proj_weight, p.c_proj_bias, d.c_proj_weight, d.c_proj_bias);
            case kUp:
                return with(p.c_fc_weight, p.c_fc_bias, d.c_fc_weight, d.c_fc_bias);
            case kDown:
                return with(p.mlp_c_proj_weight, p.mlp_c_proj_bias, d.mlp_c_proj_weight, d.mlp_c_proj_bias);
        }
        return s;
    }

    // The gradients that are products of matrices, as they lie in the Buffer.
    std::vector<std::span<float>> products() const {
        std::vector<std::span<float>> all = {
            {gradients.pointers.lm_head, size_t(shape.padded_vocab_size() * shape.channels)}};
        for (size_t l = 0; l < gradients.pointers.blocks.size(); l++)
            for (const LinearKind kind : kLinearKinds) {
                const LinearSite<T> s = linear(l, kind);
                all.push_back({s.dweight, size_t(s.OC * s.C)});
            }
        std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.data() < b.data(); });
        return all;
    }

    void begin(const int32_t* tokens, int64_t batch, int64_t length, const int32_t* starts) {
        require(batch * length <= max_tokens_ && length <= shape.max_seq_len,
                "a batch of %ld x %ld tokens: the model holds %ld at most, of sequences up to %ld", batch, length,
                max_tokens_, shape.max_seq_len);
        B = batch, seq_len = length;
        starts_ = starts;
        if (starts || document_token < 0) return;
        op.document_starts(device, acts.starts, tokens, document_token, B, seq_len);
        starts_ = acts.starts;
    }

    // The forward pass over B x seq_len tokens.
    void run(const int32_t* tokens) {
        const int64_t N = B * seq_len, C = shape.channels;
        const GptPointers<T>& w = weights.pointers;
        const auto about_to_read = [&](int64_t layer) {
            if (before_forward) before_forward(layer);
        };
        about_to_read(-1);
        embed(tokens);
        about_to_read(0);
        mix(0);
        norm_forward(device, arch(), first_norm(0), N, C);
        for (size_t l = 0; l < w.blocks.size(); l++) {
            const PhaseScope block(device, "block", int64_t(l));
            if (has_new_weights_)
                for (const LinearKind kind : kLinearKinds) linear_convert_weight(device, linear(l, kind));
            forward_inside(l, tokens);
            linear_forward(device, acts.branch, acts.blocks[l].activated, linear(l, kDown));  // (N, C)
            about_to_read(int64_t(l) + 1);                                                    // its norm already
            leave(l);
        }
        has_new_weights_ = false;
    }

    // to += from
    void add(T* to, const T* from) {
        op.residual_mix_forward(device, to, to, from, nullptr, nullptr, 1.f, N() * shape.channels);
    }

    void embed(const int32_t* tokens) {
        const GptPointers<T>& w = weights.pointers;
        const int64_t C = shape.channels;
        T* out = arch().smear ? acts.embedded : stream_before(0);  // (N, C)
        if (arch().embedding_norm)
            op.embedding_rmsnorm_forward(device, out, acts.embedding_rstd, tokens, w.wte, N(), C,
                                         float(arch().norm_eps));
        else
            each_position([&](int64_t first, int64_t rows, int64_t position) {
                const T* wpe = w.wpe ? w.wpe + position * C : nullptr;
                op.embedding_forward(device, out + first * C, tokens + first, w.wte, wpe, rows, seq_len, C);
            });
        if (!arch().smear) return;
        if (!kept_.by_one())
            return op.smear_forward(device, stream_before(0), out, w.smear_gate, w.smear_lambda, B, seq_len, C,
                                    kSmearChannels);
        KvCache<Device, T>& cache = *kept_.cache;
        for (int64_t b = 0; b < B; b++) copy_on_device(device, cache.next(b), out + b * C, C);
        op.smear_forward(device, cache.smeared, cache.pairs, w.smear_gate, w.smear_lambda, B, 2, C, kSmearChannels);
        for (int64_t b = 0; b < B; b++) {
            copy_on_device(device, stream_before(0) + b * C, cache.smeared + (2 * b + 1) * C, C);
            copy_on_device(device, cache.newest(b), cache.next(b), C);
        }
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

    // Of the stream in front of block l, what the block reads.
    void mix(size_t l) {
        if (!arch().residual_lambdas) return;
        const GptPointers<T>& w = weights.pointers;
        op.residual_mix_forward(device, acts.blocks[l].residual_in, stream_before(l), stream_before(0),
                                w.resid_lambdas + l, w.x0_lambdas + l, 1.f, N() * shape.channels);
    }

    // Block l's end: what its MLP gave goes onto the stream, and through the norm behind it.
    void leave(size_t l) {
        const int64_t C = shape.channels;
        const GptPointers<T>& w = weights.pointers;
        const bool is_last = l + 1 == w.blocks.size(), is_mixed = is_last ? arch().backout : arch().residual_lambdas;
        const NormSite<T> norm = first_norm(l + 1);
        const T* mid = acts.blocks[l].residual_mid;
        if (!is_mixed) return residual_norm_forward(device, arch(), norm, mid, acts.branch, N(), C);
        if (!is_last && arch().norm == NormKind::plain_rmsnorm)
            return op.residual_mix_rmsnorm_forward(device, stream_before(l + 1), norm.residual, norm.out, norm.rstd,
                                                   mid, acts.branch, stream_before(0), w.resid_lambdas + l + 1,
                                                   w.x0_lambdas + l + 1, N(), C, float(arch().norm_eps));
        op.residual_mix_forward(device, stream_before(l + 1), mid, acts.branch, nullptr, nullptr, 1.f, N() * C);
        if (is_last)
            op.residual_mix_forward(device, acts.residual_out, acts.residual_last, backout_stream(), nullptr,
                                    w.backout_lambda, -1.f, N() * C);
        else
            mix(l + 1);
        norm_forward(device, arch(), norm, N(), C);
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

    // body(first, rows, position) for the rows [first, first + rows) of the batch that begin at this position.
    template <class Body>
    void each_position(Body&& body) const {
        if (!kept_.by_one()) return body(0, B, 0);
        kept_.cache->each_position(body);
    }

    void rotate(size_t l, AttentionShape attention) {
        auto& a = acts.blocks[l];
        const float* table = kept_.by_one() ? kept_.cache->rotary_table : acts.rotary_table;
        each_position([&](int64_t first, int64_t rows, int64_t position) {
            attention.B = rows;
            float* rstd = a.qk_rstd ? a.qk_rstd + first * (attention.NH + attention.NKV) : nullptr;
            op.rotary_forward(device, a.qkv + first * attention.row(), rstd, table + position * attention.HS, attention,
                              arch().rotary);
        });
    }

    // With a cache, keys and values are left there.
    void attend(size_t l, const AttentionShape& attention) {
        auto& a = acts.blocks[l];
        if (!kept_.by_one()) op.attention_forward(device, a.attention, a.lse, a.qkv, attention);
        if (!kept_.cache) return;
        const auto& layer = kept_.cache->layers[l];
        KeyValueShape rows = layer.shape;
        if (!kept_.by_one()) {
            const int64_t at = kept_.row * rows.row_size();
            rows.B = 1;
            return op.attention_remember(device, layer.keys + at, layer.values + at, a.qkv, nullptr, seq_len, rows);
        }
        const int32_t *positions = kept_.cache->positions, *starts = kept_.cache->starts;
        op.attention_remember(device, layer.keys, layer.values, a.qkv, positions, 1, rows);
        op.attention_decode(device, a.attention, a.qkv, layer.keys, layer.values, positions, starts, rows);
    }

    // Block l from its first norm's output to the MLP's activation.
    void forward_inside(size_t l, const int32_t* tokens) {
        const int64_t C = shape.channels;
        const auto& p = weights.pointers.blocks[l];
        auto& a = acts.blocks[l];
        const AttentionShape attention = attention_shape(l);
        linear_forward(device, a.qkv, a.ln_1, linear(l, kQkv));
        if (p.value_embeds)
            op.value_embedding_forward(device, a.qkv, a.ln_1, tokens, p.value_embeds, p.ve_gate, attention, C,
                                       kGateChannels, kGateScale);
        if (arch().rotary_positions) rotate(l, attention);
        attend(l, attention);                                                                       // (N, C)
        linear_forward(device, acts.branch, a.attention, linear(l, kProjection));                   // (N, C)
        residual_norm_forward(device, arch(), second_norm(l), a.residual_in, acts.branch, N(), C);  // (N, C)
        mlp_up(device, a.activated, a.hidden, a.ln_2, linear(l, kUp), arch().mlp);                  // (N, F)
    }

    // d_norm: of attention's output -> of the first norm's.
    void attend_backward(size_t l, const int32_t* tokens) {
        const int64_t C = shape.channels;
        const auto& p = weights.pointers.blocks[l];
        const auto& d = gradients.pointers.blocks[l];
        auto& a = acts.blocks[l];
        const AttentionShape attention = attention_shape(l);
        op.attention_backward(device, acts.d_qkv, acts.d_norm, a.attention, a.lse, a.qkv, attention);  // (N, qkv rows)
        if (arch().rotary_positions)
            op.rotary_backward(device, acts.d_qkv, a.qkv, a.qk_rstd, acts.rotary_table, attention, arch().rotary);
        linear_backward(device, acts.d_norm, acts.d_qkv, a.ln_1, linear(l, kQkv));  // (N, C)
        if (p.value_embeds)
            op.value_embedding_backward(device, acts.d_norm, d.value_embeds, d.ve_gate, acts.d_qkv, a.ln_1, tokens,
                                        p.value_embeds, p.ve_gate, attention, C, kGateChannels, kGateScale);
    }

    // What block l's forward left and another block's has overwritten since.
    void recompute(size_t l, const int32_t* tokens) {
        auto& a = acts.blocks[l];
        if (acts.passes.recompute == Recompute::none) {
            // In eight bits only a gate still asks for the norm itself.
            if (linear(l, kQkv).codes && weights.pointers.blocks[l].ve_gate)
                norm_forward(device, arch(), first_norm(l), N(), shape.channels);
            return;
        }
        mix(l);
        norm_forward(device, arch(), first_norm(l), N(), shape.channels);
        if (acts.passes.recompute == Recompute::block) {
            forward_inside(l, tokens);
        } else {
            linear_convert_input(device, a.ln_1, linear(l, kQkv));
            linear_convert_input(device, a.attention, linear(l, kProjection));
            norm_forward(device, arch(), second_norm(l), N(), shape.channels);
            linear_convert_input(device, a.ln_2, linear(l, kUp));
            mlp_activate(device, a.activated, a.hidden, N(), shape.hidden(), arch().mlp);
        }
        linear_convert_input(device, a.activated, linear(l, kDown));
    }

    // What `add`, which adds a loss to scalars in the device's memory, has added. Waits for it.
    template <class Add>
    double looked_at(Add&& add) {
        StepScalars scalars;
        copy_to_device(device, acts.scalars, &scalars, 1);
        add(acts.scalars);
        copy_to_host(device, &scalars, acts.scalars, 1);
        return scalars.sums.loss.value();
    }

    // Final norm -> logits -> losses, a chunk of rows at a time, and with `scale` back to d_norm and the head's
    // gradient while the chunk is at hand.
    void head(StepScalars* s, const int32_t* targets, double weight, const float* scale) {
        const int64_t N = B * seq_len, C = shape.channels, V = shape.vocab_size, Vp = shape.padded_vocab_size();
        const Softcap cap = arch().softcap;
        const PhaseScope phase(device, "head");
        const int64_t chunk = even_head_rows(N, acts.head_rows);
        for (int64_t first = 0; first < N; first += chunk) {
            const int64_t rows = std::min(chunk, N - first);
            logits(first, rows);  // (rows, Vp)
            if (!scale) {
                op.cross_entropy_forward(device, acts.losses + first, acts.logits, targets + first, rows, V, Vp,
                                         cap);  // (rows)
                continue;
            }
            op.cross_entropy_forward_backward(device, acts.losses + first, acts.logits, targets + first, *scale, rows,
                                              V, Vp, cap);
            op.matmul_backward(device, acts.d_norm + first * C, gradients.pointers.lm_head, nullptr, acts.logits,
                               acts.ln_f + first * C, weights.pointers.lm_head, rows, C, Vp,
                               head_write_);  // (rows, C)
            head_write_ = Write::add;
        }
        op.add_mean_loss(device, s, acts.losses, N, weight);
    }
};
