/*
What the forward pass leaves for the backward pass, and the scratch of both, for up to B x T tokens. Everything is taken
from one arena at the start.

Per block and token, 16 C values of T are saved, and a few floats of statistics: the input and output of both norms (4
C), q k v (3 C), attention's output (C), the MLP's hidden layer before and after GELU (8 C). Saving less takes time:

  Recompute::norms    the norms' outputs and GELU's are made again: 10 C a block, one pass over them a block more
  Recompute::block    the whole block is: C a block, a forward pass more, and one block's 15 C besides

The logits are never stored whole: see Gpt::head.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>
#include "llmc/base/memory.h"    // Arena, aligned
#include "llmc/base/op_types.h"  // StepScalars
#include "llmc/model/shape.h"    // GptShape

enum class Recompute { none, norms, block };

template <class T>
struct Activations {
    struct Block {
        T *residual_in, *ln_1, *qkv, *attention;               // (N, C), (N, C), (N, 3C), (N, C)
        T *residual_mid, *ln_2, *hidden, *gelu;                // (N, C), (N, C), (N, 4C), (N, 4C)
        float *ln_1_mean, *ln_1_rstd, *ln_2_mean, *ln_2_rstd;  // (N)
        float* lse;                                            // (B, NH, T)
    };
    std::vector<Block> blocks;
    Recompute recompute = Recompute::none;
    T *residual_out, *ln_f;        // (N, C)
    float *ln_f_mean, *ln_f_rstd;  // (N)
    float* losses;                 // (N)
    T* branch;                     // (N, C): a block's two additions to the residual stream, one after the other
    T* logits;                     // (head_rows, Vp)
    T *d_residual, *d_norm;        // (N, C)
    T *d_hidden, *d_qkv;           // (N, 4C), (N, 3C)
    StepScalars* scalars;          // of a look at the loss
    int64_t head_rows;             // rows of logits that exist at one time

    // Walks all of them: visit(pointer, number of elements). Called once to count and once to take. What is recomputed
    // exists once, for all blocks.
    template <class Visit>
    void each(const GptShape& s, int64_t B, int64_t T_, Recompute how, Visit&& visit) {
        const int64_t N = B * T_, C = s.channels;
        recompute = how;
        // About 64 MiB of fp32 logits: long enough for full speed, short enough to stay a small part of the memory.
        head_rows = std::min(N, std::max<int64_t>(64, (int64_t(16) << 20) / s.padded_vocab_size() / 64 * 64));
        blocks.resize(size_t(s.num_layers));
        for (Block& b : blocks) {
            const auto saved = [&](auto Block::*member, int64_t n, Recompute shared_from) {
                if (how < shared_from || &b == &blocks[0])
                    visit(b.*member, n);
                else
                    b.*member = blocks[0].*member;
            };
            visit(b.residual_in, N * C);
            saved(&Block::ln_1, N * C, Recompute::norms);
            saved(&Block::ln_1_mean, N, Recompute::block), saved(&Block::ln_1_rstd, N, Recompute::block);
            saved(&Block::qkv, N * 3 * C, Recompute::block), saved(&Block::attention, N * C, Recompute::block);
            saved(&Block::lse, N * s.num_heads, Recompute::block);
            saved(&Block::residual_mid, N * C, Recompute::block), saved(&Block::ln_2, N * C, Recompute::norms);
            saved(&Block::ln_2_mean, N, Recompute::block), saved(&Block::ln_2_rstd, N, Recompute::block);
            saved(&Block::hidden, N * 4 * C, Recompute::block), saved(&Block::gelu, N * 4 * C, Recompute::norms);
        }
        visit(residual_out, N * C), visit(ln_f, N * C), visit(ln_f_mean, N), visit(ln_f_rstd, N), visit(losses, N);
        visit(branch, N * C), visit(logits, head_rows * s.padded_vocab_size());
        visit(d_residual, N * C), visit(d_norm, N * C), visit(d_hidden, N * 4 * C), visit(d_qkv, N * 3 * C);
        visit(scalars, 1);
    }

    size_t bytes(const GptShape& s, int64_t B, int64_t T_, Recompute how) {
        size_t sum = 0;
        each(s, B, T_, how, [&](auto* pointer, int64_t n) { sum += aligned(size_t(n) * sizeof *pointer); });
        return sum;
    }
};
