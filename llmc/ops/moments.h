/*
Moments in bf16 (--moments bf16): the optimizer's state tensors of a parameter's size, in half the memory. An update
reads them, continues in fp32 with the new values, and stores these rounded stochastically: up or down, with the
probabilities that make the mean exact. Rounding to nearest would not work: with beta2 = 0.999 a second moment decays by
at most a thousandth of itself per step, while half a unit of bf16 is a 512th or more, so it would never decay.

  stored = the upper half of (the bits of x) + (16 random bits)          NaN stays NaN; infinity stays what it is

The low half of an element's random bits (element_bits in llmc/base/rng.h) rounds the first moment or momentum, the high
half the second moment. The bits depend on the seed, the parameter's name, the index of the update and the element's
index in the whole parameter. So they are the same on any device, for any number of threads and ranks, and on resume.

Weights in bf16 without fp32 master weights (--memory lean) are rounded in the same way, by the low half of the bits of
another stream (other_rounding). A weight of which an update changes less than half a unit would else never move.
*/
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include "llmc/base/bf16.h"  // bf16, ANVIL_HOST_DEVICE
#include "llmc/base/rng.h"   // Rng, mix64, Stream

// What the random bits of a piece of a parameter depend on, besides the step.
struct MomentRounding {
    uint64_t key = 0;    // moments_key()
    uint64_t first = 0;  // index of the piece's first element in the whole parameter
};

// Selects a half of an element's random bits.
enum class Moment { first, second };

inline uint64_t moments_key(uint64_t seed, const std::string& parameter) {
    for (const char letter : parameter) seed = mix64(seed ^ uint64_t(letter));
    return Rng(seed, Stream::moments).state;
}
// The key for one update; `updates` is StepScalars::updates after it.
constexpr uint64_t moments_key_of(uint64_t key, int64_t updates) { return mix64(key + uint64_t(updates) * Rng::kStep); }

// For other values of the same piece, with random bits that are independent of those of the moments.
constexpr MomentRounding other_rounding(const MomentRounding& moments, Stream stream) {
    return {mix64(~moments.key + uint64_t(stream) * Rng::kStep), moments.first};
}

// `random`: 16 bits
ANVIL_HOST_DEVICE bf16 rounded_moment(float x, uint32_t random) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    // Without a branch, like to_bf16().
    const uint32_t nan = 0u - uint32_t((bits & 0x7FFFFFFF) > 0x7F800000);
    return bf16{uint16_t(((bits + random) >> 16 & ~nan) | ((bits >> 16 | 0x40) & nan))};
}
