/*
Quantizes a tensor to FP8 with one scale, computed from the tensor itself ("FP8 Formats for Deep Learning", Micikevicius
et al., 2022, arXiv:2209.05433, section 3.2):

  amax = max |inp|,   scale = MAX / max(amax, 1e-12),   out = inp * scale rounded (to_fp8),   inverse_scale = 1 / scale

  inp (rows, cols) float or bf16     out (rows, cols) e4m3 or e5m2     out_transposed (cols, rows), may be null
  amax, inverse_scale: one float each     column_sums (cols) float +=, may be null: those of inp before it is quantized,
                                          which are a bias's gradient where inp is that of a linear layer's output
What is quantized may be an activation of inp, which is then stored nowhere: gelu(inp), max(inp, 0)^2 or SwiGLU, for
which inp is (rows, 2 cols), rounded to T first, so that the bits are those of the activation's own op. column_sums are
without an activation. absmax is of n numbers, or of an activation of as many; SwiGLU's have rows of cols.

MAX is the type's largest number. All else is overwritten. A NaN in inp makes amax NaN and with it every number; an
infinity leaves inverse_scale infinite, so that what is multiplied with it is not finite either.

With delayed scaling (the same paper; TransformerEngine's DelayedScaling) amax is that of earlier steps, and quantize is
the only pass over the tensor. It notes what the tensor's own amax is:

  notes.amax = max(notes.amax, max |inp|)     notes.saturated += how many |inp| > amax, if it is not null

Numbers beyond the given amax become MAX of their sign, and those that are not finite NaN. Such a pass may also quantize
the gradient of an activation, inp * activation'(hidden), rounded to T first, where `hidden` (rows, cols) is not null;
it is then what column_sums and notes are of. That of SwiGLU has inp (rows, cols / 2), and no column_sums.

  update_amax: once a step, of `tensors` tensors. state: 2 + (1 + length) * tensors floats, all zero at the beginning:
    next, filled                  where the next entry of the history goes, how many there are
    amax (tensors)                the largest of each one's history; 448 if all of it is zero: then there is no scale
    history (length, tensors)     a ring: the largest magnitudes of steps
  seen (ranks, tensors): what the step's passes on each rank have noted. A maximum is the same in any order, so ranks
  and micro-batches may be divided in any way. One that is not finite counts as 0: its step is not applied.
*/
#pragma once
#include <cstdint>
#include "llmc/base/fp8.h"  // e4m3, e5m2

// What an op does to each number before it uses it.
enum class Activation { none, gelu, relu_squared, swiglu };

struct QuantizeNotes {
    float* amax = nullptr;  // null: nothing is noted
    uint64_t* saturated = nullptr;
};

// Where an op leaves the codes of its output (rows, cols) with a delayed scale, instead of the output: what quantize
// would make of it, notes and all, without a pass of its own. Null codes: the op writes its output.
struct DelayedCodes {
    e4m3 *codes = nullptr, *transposed = nullptr;  // (rows, cols), (cols, rows)
    float* inverse_scale = nullptr;
    const float* amax = nullptr;
    QuantizeNotes notes = {};
};

// The parts of update_amax's state.
struct AmaxState {
    float* data = nullptr;
    int64_t tensors = 0, length = 0;

    ANVIL_HOST_DEVICE int64_t size() const { return data ? size_of(tensors, length) : 0; }
    ANVIL_HOST_DEVICE float* amax() const { return data + 2; }
    ANVIL_HOST_DEVICE float* history() const { return amax() + tensors; }
    ANVIL_HOST_DEVICE static int64_t size_of(int64_t tensors, int64_t length) { return 2 + (1 + length) * tensors; }
};
inline constexpr float kNoAmax = 448;
inline constexpr uint32_t kInfinityBits = 0x7F800000;  // magnitudes from here on are not finite

template <class Device, class T>
struct QuantizeOps {
    void (*absmax)(Device&, float* amax, const T* inp, int64_t n, Activation activation, int64_t cols);
    void (*quantize_e4m3)(Device&, e4m3* out, e4m3* out_transposed, float* inverse_scale, const T* inp,
                          const float* amax, int64_t rows, int64_t cols, float* column_sums, Activation activation,
                          const T* hidden, const QuantizeNotes& notes);
    void (*quantize_e5m2)(Device&, e5m2* out, e5m2* out_transposed, float* inverse_scale, const T* inp,
                          const float* amax, int64_t rows, int64_t cols, float* column_sums, Activation activation,
                          const T* hidden, const QuantizeNotes& notes);
    void (*update_amax)(Device&, const AmaxState& state, const float* seen, int64_t ranks);
};
