/*
Rotary positions (Su et al., 2021, arXiv:2104.09864) with QK-norm (Henry et al., 2020, arXiv:2010.04245), in place on
the queries and keys of one attention; the values stay as they are. For each head of each token, x of HS numbers:

  rotated_j        =  x_j cos - x_(j + HS/2) sin          cos, sin of the token's position and j < HS/2
  rotated_(j+HS/2) =  x_j sin + x_(j + HS/2) cos
  out = scale * rstd * rotated,   rstd = 1 / sqrt(mean(x^2) + eps)          (rstd = 1 without QK-norm)

  qkv, dqkv (B, T, NH + 2 NKV, HS) T     rstd (B, T, NH + NKV) float, null without QK-norm     table (T, 2, HS/2):
rotary_table() A rotation keeps the norm, so it does not matter which of the two comes first: nanochat's order and
modded-nanogpt's are the same op. Sampling from a cache starts at a later position: pass the table from that row on.

Both passes overwrite their buffer. Attention keeps the rotated queries and keys for its own backward, and they are all
that backward needs here: with y = out / scale = rstd * rotated, the derivative of the norm is taken at y, and the
rotation is undone by its transpose. The inputs need no memory of their own, rstd is one number a head.
*/
#pragma once
#include <cstdint>
#include "llmc/base/op_types.h"  // AttentionShape, RotaryOptions

template <class Device, class T>
struct RotaryOps {
    void (*rotary_forward)(Device&, T* qkv, float* rstd, const float* table, AttentionShape shape,
                           RotaryOptions options);
    void (*rotary_backward)(Device&, T* dqkv, const T* qkv, const float* rstd, const float* table, AttentionShape shape,
                            RotaryOptions options);
};
