/*
Activations of up to B x T tokens: tensors that the forward pass saves for the backward pass, and the scratch memory of
both passes. All memory comes from one arena that is allocated at the start.

Per block and token, GPT-2 saves 16 C values of T and a few floats of statistics: the inputs and outputs of both norms
(4 C), q k v (3 C), attention's output (C), the MLP's hidden layer before and after its activation (8 C). Residual
lambdas add the block's input from before the mix (C). Activation checkpointing (Chen et al., 2016, arXiv:1604.06174)
trades memory for time:

  Recompute::norms    recomputes the outputs of norms and of the activation: keeps 10 C per block
  Recompute::block    recomputes the whole block, for one more forward pass: keeps C per block, and 15 C once;
                      with Recomputation::blocks only the first n
  Recompute::never    no backward pass: like block, but without gradients and all that only the backward pass needs

FP8 linear layers (linear.h) save their inputs quantized, one byte per value. Then all blocks share the memory of the
unquantized inputs, except attention's output, which has other readers. Each block also has its quantized weights. In MX
a scale for each 32 codes comes with them. Beside adapters, which read inputs as they are, these are kept, and of the
weights the codes alone, once.

All logits never exist at once: Gpt::add_loss.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>
#include "llmc/base/check.h"        // ensure
#include "llmc/base/memory.h"       // Arena, aligned
#include "llmc/model/linear.h"      // Fp8LinearState
#include "llmc/model/lora.h"        // LoraScratch, lora_width
#include "llmc/model/parameters.h"  // DiscardedGradients
#include "llmc/model/shape.h"       // GptShape
#include "llmc/ops/quantize.h"      // AmaxState
#include "llmc/ops/step_scalars.h"  // StepScalars

enum class Recompute { none, norms, block, never };  // each shares more memory between blocks than the one before

// --recompute: what, and in how many blocks, from the first on. The others keep all.
struct Recomputation {
    static constexpr int64_t kAll = INT64_MAX;
    Recompute what = Recompute::none;
    int64_t blocks = kAll;

    Recomputation(Recompute what, int64_t blocks = kAll) : what(what), blocks(blocks) {}
    Recompute of(int64_t block) const { return block < blocks ? what : Recompute::none; }
};

// The choices that determine the activations' memory.
struct ActivationPolicy {
    Recomputation recompute = Recompute::none;
    bool fp8 = false;
    int64_t head_rows = 0;     // 0: Device::head_rows()
    int64_t amax_history = 0;  // steps of delayed scaling's history (linear.h); 0: scales are current
    bool mx = false;           // with fp8: in MX
    ActivationPolicy(Recomputation recompute, bool fp8 = false, int64_t head_rows = 0, int64_t amax_history = 0,
                     bool mx = false)
        : recompute(recompute), fp8(fp8), head_rows(head_rows), amax_history(amax_history), mx(mx) {}
    ActivationPolicy(Recompute recompute, bool fp8 = false, int64_t head_rows = 0, int64_t amax_history = 0,
                     bool mx = false)
        : ActivationPolicy(Recomputation(recompute), fp8, head_rows, amax_history, mx) {}
};

// Pointers that an architecture does not need are null. F, NKV and the rows of q k v: see GptShape.
template <class T>
struct Activations {
    struct Block {
        T* residual_before = nullptr;                                      // (N, C): the input before lambdas mix
        T *residual_in = nullptr, *ln_1 = nullptr, *qkv = nullptr;         // (N, C), (N, C), (N, qkv rows)
        T *attention = nullptr, *residual_mid = nullptr, *ln_2 = nullptr;  // (N, CQ), (N, C), (N, C)
        T *hidden = nullptr, *activated = nullptr;                         // (N, hidden rows), (N, F)
        float *ln_1_mean = nullptr, *ln_1_rstd = nullptr;                  // (N)
        float *ln_2_mean = nullptr, *ln_2_rstd = nullptr;                  // (N)
        T* qk_before = nullptr;                    // (N, NH + NKV, HS): queries and keys before qk_rmsnorm
        float *qk_rstd = nullptr, *lse = nullptr;  // (N, NH + NKV), (B, NH, T)
        Fp8LinearState fp8[std::size(kLinearKinds)];
    };
    std::vector<Block> blocks;
    ActivationPolicy policy = Recompute::none;
    int64_t head_rows = 0;  // rows of logits that exist at a time
    Fp8Scratch fp8_scratch;
    LoraScratch<T> lora;
    float* discarded = nullptr;       // gradients of what does not learn, where an op computes them along with others
    AmaxState amax;                   // delayed scaling's history
    float* rotary_table = nullptr;    // (max T, 2, HS / 2)
    int32_t* starts = nullptr;        // (N): where documents begin (Gpt::document_token)
    float* embedding_rstd = nullptr;  // (N)
    T* embedded = nullptr;            // (N, C): before smear
    T* residual_last = nullptr;       // (N, C): the last block's output, before backout
    T *residual_out = nullptr, *ln_f = nullptr;        // (N, C)
    float *ln_f_mean = nullptr, *ln_f_rstd = nullptr;  // (N)
    float* losses = nullptr;                           // (N)
    T* branch = nullptr;                         // (N, C): attention's, then the MLP's addition to the residual stream
    T* logits = nullptr;                         // (head_rows, Vp)
    T *d_residual = nullptr, *d_norm = nullptr;  // (N, C), (N, C or CQ)
    T *d_hidden = nullptr, *d_qkv = nullptr;     // (N, F), (N, qkv rows)
    T *d_first = nullptr, *d_backout = nullptr;  // (N, C): gradients of the first block's input, of backout's
    StepScalars* scalars = nullptr;              // for Gpt::loss

    Activations() = default;
    // For at most B x T tokens. how.head_rows must be set. take() sets the pointers.
    Activations(const GptShape& shape, int64_t B, int64_t T_, ActivationPolicy how)
        : blocks(size_t(shape.num_layers)),
          policy(how),
          head_rows(std::min(B * T_, how.head_rows)),
          shape_(shape),
          N_(B * T_) {
        ensure(how.head_rows > 0);  // the device's default, which is not known here
        ensure(!shape.lora.is_on() || how.fp8 == shape.lora.fp8_base);
        if (how.fp8 && how.amax_history > 0)
            amax = {.tensors = shape.num_layers * kDelayedPerBlock, .length = how.amax_history};
    }

    size_t bytes() const {
        size_t sum = 0;
        each(
            *this, [&](const auto* pointer, int64_t n) { sum += aligned(size_t(n) * sizeof *pointer); },
            [](const auto*, const auto*) {});
        return sum;
    }
    void take(Arena& arena) {
        each(
            *this,
            [&](auto*& pointer, int64_t n) { pointer = arena.take<std::remove_reference_t<decltype(*pointer)>>(n); },
            [](auto*& pointer, auto* owner) { pointer = owner; });
    }

private:
    GptShape shape_ = {};
    int64_t N_ = 0;

    // The list: own(pointer, number of elements) for all that has memory of its own, share(pointer, owner) for what a
    // block shares with the first one. `self` is these Activations, const to count.
    template <class Self, class Own, class Share>
    static void each(Self& self, Own&& own, Share&& share) {
        const GptShape& s = self.shape_;
        const ActivationPolicy how = self.policy;
        const Architecture& arch = s.architecture;
        const int64_t N = self.N_, C = s.channels, CQ = s.query_channels(), F = s.hidden(),
                      norm_mean = arch.norm == NormKind::layernorm ? N : 0;
        for (auto& b : self.blocks) {
            const Recompute recompute = how.recompute.of(&b - self.blocks.data());
            const auto saved = [&](auto Block::*member, int64_t n, Recompute shared_from) {
                if (n == 0) return;
                if (recompute < shared_from || &b == &self.blocks[0])
                    own(b.*member, n);
                else
                    share(b.*member, self.blocks[0].*member);
            };
            const auto saved_input = [&](auto Block::*member, int64_t n, LinearKind kind) {
                const bool keeps_codes = how.fp8 && !s.lora.is_on() && suits_fp8(s, kind);
                saved(member, n, keeps_codes ? Recompute::none : Recompute::norms);
            };
            // A block's input is always saved; its mix by the lambdas is recomputed.
            own(arch.residual_lambdas ? b.residual_before : b.residual_in, N * C);
            if (arch.residual_lambdas) saved(&Block::residual_in, N * C, Recompute::norms);
            saved_input(&Block::ln_1, N * C, kQkv);
            saved(&Block::ln_1_mean, norm_mean, Recompute::block), saved(&Block::ln_1_rstd, N, Recompute::block);
            saved(&Block::qkv, N * s.qkv_rows(), Recompute::block), saved(&Block::attention, N * CQ, Recompute::block);
            const int64_t normed = arch.rotary.qk_norm || arch.qk_rmsnorm ? N * (s.num_heads + s.kv_heads()) : 0;
            saved(&Block::qk_rstd, normed, Recompute::block);
            saved(&Block::qk_before, arch.qk_rmsnorm ? normed * s.head_size() : 0, Recompute::block);
            saved(&Block::lse, N * s.num_heads, Recompute::block);
            saved(&Block::residual_mid, N * C, Recompute::block), saved_input(&Block::ln_2, N * C, kUp);
            saved(&Block::ln_2_mean, norm_mean, Recompute::block), saved(&Block::ln_2_rstd, N, Recompute::block);
            saved(&Block::hidden, N * s.hidden_rows(), Recompute::block);
            saved_input(&Block::activated, N * F, kDown);
            if (how.fp8) each_fp8(self, b, recompute, own, share);
        }
        if (how.fp8) {
            const int64_t widest = std::max({C, s.qkv_rows(), s.hidden_rows()});
            own(self.fp8_scratch.rows, N * widest);
            if (s.lora.is_on())
                own(self.fp8_scratch.weight_t, most_fp8_codes(s));
            else
                own(self.fp8_scratch.columns, N * widest);
            if (how.mx) {
                own(self.fp8_scratch.row_scales, mx_scale_bytes(N, widest));
                own(self.fp8_scratch.column_scales, mx_scale_bytes(widest, N));
            } else {
                own(self.fp8_scratch.amax, 1), own(self.fp8_scratch.inverse_scale, 1);
                own(self.fp8_scratch.inp_amax, 1), own(self.fp8_scratch.dout_amax, 1);
            }
            if (self.amax.length > 0) own(self.amax.data, AmaxState::size_of(self.amax.tensors, self.amax.length));
        }
        if (s.lora.is_on()) {
            own(self.lora.low, N * lora_width(s));
            if (how.recompute.what != Recompute::never) own(self.lora.dlow, N * lora_width(s));
            if (s.lora.dropout > 0) own(self.lora.dropped, N * std::max({C, CQ, F}));
            if (how.recompute.what != Recompute::never) own(self.discarded, DiscardedGradients(ParameterList(s)).size);
        }
        if (arch.rotary_positions) own(self.rotary_table, s.max_seq_len * s.head_size());
        own(self.starts, N);
        if (arch.embedding_norm) own(self.embedding_rstd, N);
        if (arch.smear) own(self.embedded, N * C);
        if (arch.backout) own(self.residual_last, N * C);
        own(self.residual_out, N * C), own(self.ln_f, N * C), own(self.ln_f_rstd, N), own(self.losses, N);
        if (norm_mean > 0) own(self.ln_f_mean, norm_mean);
        own(self.branch, N * C), own(self.logits, self.head_rows * s.padded_vocab_size());
        own(self.scalars, 1);
        if (how.recompute.what == Recompute::never) return;
        own(self.d_residual, N * C), own(self.d_norm, N * std::max(C, CQ)), own(self.d_hidden, N * F);
        own(self.d_qkv, N * s.qkv_rows());
        if (arch.residual_lambdas) own(self.d_first, N * C);
        if (arch.backout) own(self.d_backout, N * C);
    }
    template <class Self, class SelfBlock, class Own, class Share>
    static void each_fp8(Self& self, SelfBlock& b, Recompute recompute, Own&& own, Share&& share) {
        for (const LinearKind kind : kLinearKinds) {
            auto &fp8 = b.fp8[kind], &first = self.blocks[0].fp8[kind];
            if (!suits_fp8(self.shape_, kind)) continue;
            const auto [in, out] = linear_size(self.shape_, kind);
            own(fp8.weight, out * in);
            if (self.shape_.lora.is_on()) {
                own(fp8.weight_inverse_scale, 1), own(fp8.inp_inverse_scale, 1);
                continue;
            }
            own(fp8.weight_t, in * out);
            const bool is_owner = recompute == Recompute::none || &fp8 == &first;
            if (self.policy.mx) {
                own(fp8.weight_scales, mx_scale_bytes(out, in)), own(fp8.weight_t_scales, mx_scale_bytes(in, out));
                if (is_owner)
                    own(fp8.inp_t, in * self.N_), own(fp8.inp_t_scales, mx_scale_bytes(in, self.N_));
                else
                    share(fp8.inp_t, first.inp_t), share(fp8.inp_t_scales, first.inp_t_scales);
                continue;
            }
            own(fp8.weight_inverse_scale, 1);
            if (is_owner)
                own(fp8.inp_t, in * self.N_), own(fp8.inp_inverse_scale, 1);
            else
                share(fp8.inp_t, first.inp_t), share(fp8.inp_inverse_scale, first.inp_inverse_scale);
        }
    }
};
