/*
Quantizes a tensor to FP8 with one scale, computed from the tensor itself ("FP8 Formats for Deep Learning", Micikevicius
et al., 2022, arXiv:2209.05433, section 3.2):

  amax = max |inp|,   scale = MAX / max(amax, 1e-12),   out = inp * scale rounded (to_fp8),   inverse_scale = 1 / scale

  inp (rows, cols) float or bf16     out (rows, cols) e4m3 or e5m2     out_transposed (cols, rows), may be null
  amax, inverse_scale: one float each     column_sums (cols) float +=, may be null: of inp before it is quantized, a
                                          bias's gradient if inp is the gradient of a linear layer's output
An activation of inp can be quantized without being stored: gelu(inp), max(inp, 0)^2 or SwiGLU, for which inp is
(rows, 2 cols). It is first rounded to T, so the bits are those of the activation's own op. column_sums must be null
then. absmax is that of n elements of inp, or of an activation of as many; SwiGLU's have rows of `cols`.

quantize_mx: to e4m3 in MX (llmc/base/fp8.h), out.data along rows and out.transposed along columns, each with scales of
its own blocks. Nothing is known beforehand, so it reads inp once. Rows and columns are multiples of 32. column_sums and
activation are as above. A block with a number that is not finite has a scale of NaN, and codes.

MAX is the type's largest number. All other outputs are overwritten. A NaN in inp makes amax NaN, and with it every
element of out. An infinity makes inverse_scale infinite, so whatever is multiplied by it is not finite either.

With delayed scaling (the same paper; TransformerEngine's DelayedScaling) amax comes from earlier steps, and quantize is
the only pass over the tensor. It records the tensor's own amax:

  notes.amax = max(notes.amax, max |inp|)     notes.saturated += the number of |inp| > amax, unless it is null

Elements beyond the given amax become MAX with their sign, and those that are not finite become NaN. Such a pass can
also quantize the gradient of an activation, inp * activation'(hidden) rounded to T, if `hidden` (rows, cols) is not
null; column_sums and notes are then those of the gradient. For SwiGLU's, inp is (rows, cols / 2) and column_sums null.

transpose_codes: out (cols, rows) = the transpose of codes inp (rows, cols), not in place.

  update_amax: once per step, for `tensors` tensors. state: 2 + (1 + length) * tensors floats, all zero at first:
    next, filled                  where the next entry of the history goes, and how many there are
    amax (tensors)                the largest entry of each history; 448, a scale of 1 in e4m3, if all are zero
    history (length, tensors)     a ring buffer: the largest magnitudes per step
  seen (ranks, tensors): what the step's passes on each rank recorded. A maximum is the same in any order, so ranks and
  micro-batches may be divided in any way. A value that is not finite counts as 0: its step is not applied.
*/
#pragma once
#include <cstdint>
#include <type_traits>
#include "llmc/base/fp8.h"  // e4m3, e5m2, MxTensor

// How an op's output is written: it overwrites (=) its output, which is then never read, or adds to it (+=).
enum class Write { set, add };

// What an op applies to each element before it uses it.
enum class Activation { none, gelu, relu_squared, swiglu };

struct QuantizeNotes {
    float* amax = nullptr;  // null: nothing is recorded
    uint64_t* saturated = nullptr;
};

// Where an op stores the codes of its output (rows, cols), with a delayed scale, instead of the output: the codes and
// notes are those of quantize, without a separate pass. Null codes: the op stores its output.
struct DelayedCodes {
    e4m3 *codes = nullptr, *transposed = nullptr;  // (rows, cols), (cols, rows)
    float* inverse_scale = nullptr;
    const float* amax = nullptr;
    QuantizeNotes notes = {};
};

// A tensor (rows, cols) as the GEMMs that read it next want it. The op that computes it also stores what they would
// otherwise read it again for; the op's header says which of these it can.
template <class T>
struct GemmInputOf {
    T* values;           // with codes only scratch
    float* amax;         // the largest magnitude of the values, as absmax would compute it; may be null
    float* column_sums;  // (cols) +=: of the values, a bias's gradient; may be null
    DelayedCodes codes;  // of the values
    GemmInputOf(T* values, float* amax = nullptr, float* column_sums = nullptr, const DelayedCodes& codes = {})
        : values(values), amax(amax), column_sums(column_sums), codes(codes) {}
};
// T is not deduced from it, so that an argument may also be a T*, of which the values are all that is wanted.
template <class T>
using GemmInput = std::type_identity_t<GemmInputOf<T>>;

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
inline constexpr uint32_t kInfinityBits = 0x7F800000;  // magnitudes with these bits or larger are not finite

template <class Device, class T>
struct QuantizeOps {
    void (*absmax)(Device&, float* amax, const T* inp, int64_t n, Activation activation, int64_t cols);
    void (*quantize_e4m3)(Device&, e4m3* out, e4m3* out_transposed, float* inverse_scale, const T* inp,
                          const float* amax, int64_t rows, int64_t cols, float* column_sums, Activation activation,
                          const T* hidden, const QuantizeNotes& notes);
    void (*quantize_e5m2)(Device&, e5m2* out, e5m2* out_transposed, float* inverse_scale, const T* inp,
                          const float* amax, int64_t rows, int64_t cols, float* column_sums, Activation activation,
                          const T* hidden, const QuantizeNotes& notes);
    void (*quantize_mx)(Device&, const MxTensor& out, const T* inp, float* column_sums, Activation activation);
    void (*transpose_codes)(Device&, e4m3* out, const e4m3* inp, int64_t rows, int64_t cols);
    void (*update_amax)(Device&, const AmaxState& state, const float* seen, int64_t ranks);
};
