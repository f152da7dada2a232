/*
What the forward pass leaves for the backward pass, and the scratch of both, for up to B x T tokens. Everything is taken
from one arena at the start.

Per block and token, GPT-2 saves 16 C values of T and a few floats of statistics: the input and output of both norms (4
C), q k v (3 C), attention's output (C), the MLP's hidden layer before and after its activation (8 C). Residual lambdas
add what comes in before they mix it (C). Saving less takes time:

  Recompute::norms    the norms' outputs and the activation's are made again: 10 C a block, one pass over them more
  Recompute::block    the whole block is: C a block, a forward pass more, and one block's 15 C besides
  Recompute::never    nothing is, for there will be no backward pass: that, without what only the pass needs, and
                      without gradients

Linear layers in eight bits (linear.h) keep codes of their inputs, a byte each, and, as attention's output is needed
elsewhere, the inputs of the other three are then shared by all blocks. Beside them each block has its weights' codes.

The logits are never stored whole: see Gpt::head.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>
#include "llmc/base/check.h"     // ensure
#include "llmc/base/memory.h"    // Arena, aligned
#include "llmc/base/op_types.h"  // StepScalars
#include "llmc/model/linear.h"   // LinearCodes
#include "llmc/model/shape.h"    // GptShape

enum class Recompute { none, norms, block, never };  // from little to much that blocks share

// How a step's passes are made: what is computed twice, whether large linear layers are computed in eight bits, and how
// many rows of logits exist at one time.
struct Passes {
    Recompute recompute = Recompute::none;
    bool fp8 = false;
    int64_t head_rows = 0;  // 0: Device::head_rows()
    Passes(Recompute recompute, bool fp8 = false, int64_t head_rows = 0)
        : recompute(recompute), fp8(fp8), head_rows(head_rows) {}
};

// Null: the architecture has none. F, NKV and the rows of q k v: see GptShape.
template <class T>
struct Activations {
    struct Block {
        T* residual_before = nullptr;                          // (N, C): what comes in, before lambdas mix it
        T *residual_in, *ln_1, *qkv, *attention;               // (N, C), (N, C), (N, qkv rows), (N, C)
        T *residual_mid, *ln_2, *hidden, *activated;           // (N, C), (N, C), (N, hidden rows), (N, F)
        float *ln_1_mean, *ln_1_rstd, *ln_2_mean, *ln_2_rstd;  // (N)
        float *qk_rstd = nullptr, *lse;                        // (N, NH + NKV), (B, NH, T)
        LinearCodes codes[std::size(kLinearKinds)];
    };
    std::vector<Block> blocks;
    Passes passes = Recompute::none;
    CodeScratch code_scratch;
    float* rotary_table = nullptr;    // (max T, 2, HS / 2)
    int32_t* starts = nullptr;        // (N): where documents begin (Gpt::document_token)
    float* embedding_rstd = nullptr;  // (N)
    T* embedded = nullptr;            // (N, C): before smear
    T* residual_last = nullptr;       // (N, C): what the last block gives, before backout
    T *residual_out, *ln_f;           // (N, C)
    float *ln_f_mean, *ln_f_rstd;     // (N)
    float* losses;                    // (N)
    T* branch;                        // (N, C): a block's two additions to the residual stream, one after the other
    T* logits;                        // (head_rows, Vp)
    T *d_residual, *d_norm;           // (N, C)
    T *d_hidden, *d_qkv;              // (N, F), (N, qkv rows)
    T *d_first = nullptr, *d_backout = nullptr;  // (N, C): of the first block's input, and of what backout took
    StepScalars* scalars;                        // of a look at the loss
    int64_t head_rows;                           // rows of logits that exist at one time

    // Walks all of them: visit(pointer, number of elements). Called once to count and once to take. What is recomputed
    // exists once, for all blocks. `how` has a number of head_rows.
    template <class Visit>
    void each(const GptShape& s, int64_t B, int64_t T_, Passes how, Visit&& visit) {
        const Architecture& arch = s.architecture;
        const int64_t N = B * T_, C = s.channels, F = s.hidden(), norm_mean = arch.norm == NormKind::layernorm ? N : 0;
        passes = how;
        ensure(how.head_rows > 0);  // the device's, which is not known here
        head_rows = std::min(N, how.head_rows);
        blocks.resize(size_t(s.num_layers));
        for (Block& b : blocks) {
            const auto saved = [&](auto Block::*member, int64_t n, Recompute shared_from) {
                if (n == 0)
                    b.*member = nullptr;
                else if (how.recompute < shared_from || &b == &blocks[0])
                    visit(b.*member, n);
                else
                    b.*member = blocks[0].*member;
            };
            const auto saved_input = [&](auto Block::*member, int64_t n, LinearKind kind) {
                saved(member, n, how.fp8 && suits_fp8(s, kind) ? Recompute::none : Recompute::norms);
            };
            // What comes into a block is kept; what lambdas make of it is made again.
            visit(arch.residual_lambdas ? b.residual_before : b.residual_in, N * C);
            if (arch.residual_lambdas) saved(&Block::residual_in, N * C, Recompute::norms);
            saved_input(&Block::ln_1, N * C, kQkv);
            saved(&Block::ln_1_mean, norm_mean, Recompute::block), saved(&Block::ln_1_rstd, N, Recompute::block);
            saved(&Block::qkv, N * s.qkv_rows(), Recompute::block), saved(&Block::attention, N * C, Recompute::block);
            saved(&Block::qk_rstd, arch.rotary.qk_norm ? N * (s.num_heads + s.kv_heads()) : 0, Recompute::block);
            saved(&Block::lse, N * s.num_heads, Recompute::block);
            saved(&Block::residual_mid, N * C, Recompute::block), saved_input(&Block::ln_2, N * C, kUp);
            saved(&Block::ln_2_mean, norm_mean, Recompute::block), saved(&Block::ln_2_rstd, N, Recompute::block);
            saved(&Block::hidden, N * s.hidden_rows(), Recompute::block);
            saved_input(&Block::activated, N * F, kDown);
            if (how.fp8) visit_codes(s, N, b, visit);
        }
        if (how.fp8) {
            const int64_t widest = std::max({C, s.qkv_rows(), s.hidden_rows()});
            visit(code_scratch.rows, N * widest), visit(code_scratch.columns, N * widest);
            visit(code_scratch.amax, 1), visit(code_scratch.inverse_scale, 1);
        }
        if (arch.rotary_positions) visit(rotary_table, s.max_seq_len * s.head_size());
        visit(starts, N);
        if (arch.embedding_norm) visit(embedding_rstd, N);
        if (arch.smear) visit(embedded, N * C);
        if (arch.backout) visit(residual_last, N * C);
        visit(residual_out, N * C), visit(ln_f, N * C), visit(ln_f_rstd, N), visit(losses, N);
        ln_f_mean = nullptr;
        if (norm_mean > 0) visit(ln_f_mean, norm_mean);
        visit(branch, N * C), visit(logits, head_rows * s.padded_vocab_size());
        visit(scalars, 1);
        if (how.recompute == Recompute::never) return;
        visit(d_residual, N * C), visit(d_norm, N * C), visit(d_hidden, N * F), visit(d_qkv, N * s.qkv_rows());
        if (arch.residual_lambdas) visit(d_first, N * C);
        if (arch.backout) visit(d_backout, N * C);
    }

    size_t bytes(const GptShape& s, int64_t B, int64_t T_, Passes how) {
        size_t sum = 0;
        each(s, B, T_, how, [&](auto* pointer, int64_t n) { sum += aligned(size_t(n) * sizeof *pointer); });
        return sum;
    }

private:
    template <class Visit>
    void visit_codes(const GptShape& s, int64_t N, Block& b, Visit&& visit) {
        for (const LinearKind kind : kLinearKinds) {
            LinearCodes &codes = b.codes[kind], &first = blocks[0].codes[kind];
            codes = {};
            if (!suits_fp8(s, kind)) continue;
            const auto [in, out] = linear_size(s, kind);
            visit(codes.weight, out * in), visit(codes.weight_turned, in * out);
            visit(codes.weight_inverse_scale, 1);
            if (passes.recompute == Recompute::none || &codes == &first)
                visit(codes.inp_turned, in * N), visit(codes.inp_inverse_scale, 1);
            else
                codes.inp_turned = first.inp_turned, codes.inp_inverse_scale = first.inp_inverse_scale;
        }
    }
};
