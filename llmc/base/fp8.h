/*
FP8 numbers ("FP8 Formats for Deep Learning", Micikevicius et al., 2022, arXiv:2209.05433), used only as operands of
GEMMs:

  e4m3   4 bits of exponent, 3 of mantissa: up to 448, no infinity; for weights and activations
  e5m2   5 bits of exponent, 2 of mantissa: the upper half of a half-precision float, up to 57344; for gradients

  float y = to_float(x);            exact
  e4m3 x = to_fp8<e4m3>(y);         to nearest, ties to even; saturates at the largest number; NaN stays NaN

Infinity becomes the largest number, too, as with the GPU's instruction (PTX ISA, cvt.rn.satfinite). PyTorch 2.13 does
the same for e4m3, but in e5m2 it converts magnitudes of 61440 and more to infinity. A tensor is scaled into range
before it is converted, so its values are never that large.

A tensor is stored with one scale: x ~ code * inverse_scale (llmc/cpu/quantize.h). Or, in MX ("OCP Microscaling Formats
(MX) Specification", version 1.0), with one for each 32 consecutive codes of a row, a power of two: x ~ code * scale.
*/
#pragma once
#include <cstdint>
#include <cstring>
#include "llmc/base/bf16.h"   // ANVIL_HOST_DEVICE, to_float
#include "llmc/base/check.h"  // require

struct e4m3 {
    uint8_t bits;
    static constexpr int kMantissaBits = 3, kBias = 7;
    static constexpr float kMax = 448;
    static constexpr uint32_t kFirstSpecial = 0x7F, kNan = 0x7F;  // bit patterns from kFirstSpecial on are not finite
};

struct e5m2 {
    uint8_t bits;
    static constexpr int kMantissaBits = 2, kBias = 15;
    static constexpr float kMax = 57344;
    static constexpr uint32_t kFirstSpecial = 0x7C, kNan = 0x7F;  // 0x7C is infinity
};

namespace fp8 {
ANVIL_HOST_DEVICE uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
ANVIL_HOST_DEVICE float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

template <class Fp8>
ANVIL_HOST_DEVICE float widen(Fp8 x) {
    constexpr int kShift = 23 - Fp8::kMantissaBits;
    const uint32_t code = x.bits & 0x7F, sign = uint32_t(x.bits & 0x80) << 24;
    // Read as a float, the shifted code is 2^(127 - bias) times too small, also for denormals.
    constexpr uint32_t kRebias = uint32_t(127 + 127 - Fp8::kBias) << 23;
    const float number = float_of(code << kShift) * float_of(kRebias);
    const bool is_infinity = code == Fp8::kFirstSpecial && Fp8::kFirstSpecial != Fp8::kNan;
    const uint32_t special = is_infinity ? 0x7F800000 : 0x7FC00000;
    return float_of((code < Fp8::kFirstSpecial ? bits_of(number) : special) | sign);
}
}  // namespace fp8

ANVIL_HOST_DEVICE float to_float(e4m3 x) { return fp8::widen(x); }
ANVIL_HOST_DEVICE float to_float(e5m2 x) { return fp8::widen(x); }

template <class Fp8>
ANVIL_HOST_DEVICE Fp8 to_fp8(float x) {
    using fp8::bits_of, fp8::float_of;
    constexpr int kShift = 23 - Fp8::kMantissaBits;
    const uint32_t sign = bits_of(x) >> 24 & 0x80, magnitude = bits_of(x) & 0x7FFFFFFF;
    const uint32_t inside = magnitude < bits_of(Fp8::kMax) ? magnitude : bits_of(Fp8::kMax);
    // Normal: adds half a unit in the last place, slightly less if the last kept bit is 0, so ties go to even. A carry
    // may run into the exponent.
    const uint32_t rounded = inside + ((1u << (kShift - 1)) - 1 + (inside >> kShift & 1));
    const uint32_t normal = (rounded >> kShift) - (uint32_t(127 - Fp8::kBias) << Fp8::kMantissaBits);
    // Denormal: adding a float whose unit in the last place is the smallest denormal rounds to a multiple of that
    // denormal.
    constexpr uint32_t kAnchor = uint32_t(127 + 1 - Fp8::kBias - Fp8::kMantissaBits + 23) << 23;
    const uint32_t denormal = bits_of(float_of(inside) + float_of(kAnchor)) - kAnchor;
    constexpr uint32_t kSmallestNormal = uint32_t(127 + 1 - Fp8::kBias) << 23;
    const uint32_t code = inside < kSmallestNormal ? denormal : normal;
    return Fp8{uint8_t(magnitude > 0x7F800000 ? Fp8::kNan : code | sign)};
}

// The scale that maps a largest magnitude of `amax` to the largest number of Fp8. At most MAX / 1e-12, so that the
// scale of a tensor of zeros is finite. Computed in float: the quotient in double, rounded to float, would be the same.
// An amax of NaN gives NaN, and then every quantized value is NaN. An infinite amax gives 0, whose inverse is infinite,
// so the result of a GEMM is not finite either.
template <class Fp8>
ANVIL_HOST_DEVICE float fp8_scale(float amax) {
    constexpr float kSmallest = 1e-12f;
    return Fp8::kMax / (amax < kSmallest ? kSmallest : amax);
}

// A tensor in FP8 as GEMMs take it. FP8 GEMMs reduce along rows of both operands, so backward also needs each operand
// transposed.
template <class Fp8>
struct Quantized {
    const Fp8* data;             // (rows, cols)
    const Fp8* transposed;       // (cols, rows); may be null if only forward is computed
    const float* inverse_scale;  // one float, in the same memory as data
    int64_t rows, cols;
};

// ---- MX ------------------------------------------------------------------------------------------------------------

// A power of two by its exponent, 2^(bits - 127); 0xFF is NaN.
struct e8m0 {
    uint8_t bits;
};
inline constexpr int64_t kMxBlock = 32;  // codes that share a scale
inline constexpr uint32_t kMxNotFinite = 0xFF;

ANVIL_HOST_DEVICE float to_float(e8m0 x) {
    constexpr uint32_t kDenormal = 0x00400000;  // 2^-127
    return fp8::float_of(x.bits == kMxNotFinite ? 0x7FC00000 : x.bits == 0 ? kDenormal : uint32_t(x.bits) << 23);
}

// The scale of a block of e4m3 whose largest magnitude, a float, has these bits: the smallest power of two with which
// no element is beyond 448 = 1.75 * 2^8, at least 2^-127 ("Recipes for Pre-training LLMs with MXFP8", arXiv:2506.08027;
// the specification rounds down, which saturates). NaN for a block with an element that is not finite.
ANVIL_HOST_DEVICE e8m0 mx_scale(uint32_t largest_bits) {
    if (largest_bits >= 0x7F800000) return {uint8_t(kMxNotFinite)};
    const int exponent = int(largest_bits >> 23) - 8 + int((largest_bits & 0x7FFFFF) > 0x600000);
    return {uint8_t(exponent > 0 ? exponent : 0)};
}
// The inverse of mx_scale()'s result, exactly.
ANVIL_HOST_DEVICE float mx_inverse(e8m0 scale) {
    return fp8::float_of(scale.bits == kMxNotFinite ? 0x7FC00000 : uint32_t(254 - scale.bits) << 23);
}

// Scales lie as tensor cores read them (cuBLAS's documentation, "1D Block Scaling Factors Layout"): tiles of 128 rows
// by 4 scales, 512 bytes each, in the order of a row-major matrix. In a tile, 16 bytes have four rows that are 32
// apart. Parts of a tile beyond the tensor are there, and zero.
inline constexpr int64_t kMxTileRows = 128, kMxTileCols = 4 * kMxBlock, kMxTileBytes = 512;

// The bytes of a tensor's scales.
inline int64_t mx_scale_bytes(int64_t rows, int64_t cols) {
    return (rows + kMxTileRows - 1) / kMxTileRows * ((cols + kMxTileCols - 1) / kMxTileCols) * kMxTileBytes;
}
// Where the scale of an element lies.
inline int64_t mx_scale_at(int64_t row, int64_t col, int64_t cols) {
    const int64_t tile = row / kMxTileRows * ((cols + kMxTileCols - 1) / kMxTileCols) + col / kMxTileCols;
    return tile * kMxTileBytes + row % 32 * 16 + row % kMxTileRows / 32 * 4 + col % kMxTileCols / kMxBlock;
}

// A tensor in MX, as quantize_mx writes it and GEMMs read it. Blocks lie along the sum of a product, so the transposed
// codes are others, with scales of their own.
struct MxTensor {
    e4m3* data;        // (rows, cols)
    e8m0* scales;      // of data
    e4m3* transposed;  // (cols, rows)
    e8m0* transposed_scales;
    int64_t rows, cols;
};
// Throws an Error unless whole blocks fit rows and columns.
inline void check_mx_tensor(const char* op, int64_t rows, int64_t cols) {
    require(rows % kMxBlock == 0 && cols % kMxBlock == 0,
            "%s of (%ld, %ld): in MX tokens and channels must be multiples "
            "of %ld",
            op, rows, cols, kMxBlock);
}

inline void check_mx_layer(const char* op, const MxTensor& inp, const MxTensor& weight) {
    check_mx_tensor(op, inp.rows, inp.cols), check_mx_tensor(op, weight.rows, weight.cols);
    ensure(weight.cols == inp.cols);
}

// FP8 GEMMs read the rows of operands and transposed operands in units of 16 bytes.
inline constexpr int64_t kFp8Multiple = 16;

// Throws an Error unless a GEMM of (N, C) by (OC, C) has sizes that FP8 supports. `op` is named in the error.
inline void check_fp8_layer(const char* op, int64_t N, int64_t C, int64_t OC) {
    require(N % kFp8Multiple == 0 && C % kFp8Multiple == 0 && OC % kFp8Multiple == 0,
            "%s of (%ld, %ld) by (%ld, %ld): in fp8 tokens and channels must be multiples of %ld", op, N, C, OC, C,
            kFp8Multiple);
}

// Whether FP8 speeds up a linear layer (nanochat's rule): converting a smaller one takes longer than it saves.
inline bool suits_fp8(int64_t C, int64_t OC) {
    return C % kFp8Multiple == 0 && OC % kFp8Multiple == 0 && C >= 128 && OC >= 128;
}
