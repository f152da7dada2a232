/*
What the forward pass leaves for the backward pass, and the scratch of both, for up to B x T tokens. Everything is taken
from one arena at the start.

Saved, per block and token: the input and output of both norms (4 C floats), q k v (3 C), attention's output (C), the
MLP's hidden layer before and after GELU (8 C): 16 C, and a few for statistics. The logits are never stored whole: see
Gpt::head.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>
#include "llmc/base/memory.h"  // Arena
#include "llmc/model/shape.h"  // GptShape

template <class T>
struct Activations {
    struct Block {
        T *residual_in, *ln_1, *qkv, *attention;               // (N, C), (N, C), (N, 3C), (N, C)
        T *residual_mid, *ln_2, *hidden, *gelu;                // (N, C), (N, C), (N, 4C), (N, 4C)
        float *ln_1_mean, *ln_1_rstd, *ln_2_mean, *ln_2_rstd;  // (N)
        float* lse;                                            // (B, NH, T)
    };
    std::vector<Block> blocks;
    T *residual_out, *ln_f;        // (N, C)
    float *ln_f_mean, *ln_f_rstd;  // (N)
    float* losses;                 // (N)
    T* branch;                     // (N, C): a block's two additions to the residual stream, one after the other
    T* logits;                     // (head_rows, Vp)
    T *d_residual, *d_norm;        // (N, C)
    T *d_hidden, *d_qkv;           // (N, 4C), (N, 3C)
    int64_t head_rows;             // rows of logits that exist at one time

    // Walks all of them: visit(pointer, number of elements). Called once to count and once to take.
    template <class Visit>
    void each(const GptShape& s, int64_t B, int64_t T_, Visit&& visit) {
        const int64_t N = B * T_, C = s.channels;
        // About 64 MiB of logits: long enough for full speed, short enough to stay a small part of the memory.
        head_rows = std::min(N, std::max<int64_t>(64, (int64_t(16) << 20) / s.padded_vocab_size() / 64 * 64));
        blocks.resize(size_t(s.num_layers));
        for (Block& b : blocks) {
            visit(b.residual_in, N * C), visit(b.ln_1, N * C), visit(b.ln_1_mean, N), visit(b.ln_1_rstd, N);
            visit(b.qkv, N * 3 * C), visit(b.attention, N * C), visit(b.lse, N * s.num_heads);
            visit(b.residual_mid, N * C), visit(b.ln_2, N * C), visit(b.ln_2_mean, N), visit(b.ln_2_rstd, N);
            visit(b.hidden, N * 4 * C), visit(b.gelu, N * 4 * C);
        }
        visit(residual_out, N * C), visit(ln_f, N * C), visit(ln_f_mean, N), visit(ln_f_rstd, N), visit(losses, N);
        visit(branch, N * C), visit(logits, head_rows * s.padded_vocab_size());
        visit(d_residual, N * C), visit(d_norm, N * C), visit(d_hidden, N * 4 * C), visit(d_qkv, N * 3 * C);
    }
};
