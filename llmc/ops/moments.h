/*
Moments in bf16 (--moments bf16): the state tensors of an optimizer that are as large as their parameter, in half of the
bytes. An update reads them, goes on with the new values in fp32, and stores those rounded stochastically: up or down,
with the probabilities that make the mean exact. To nearest would not do: with beta2 = 0.999 a second moment moves by
at most a thousandth of itself, half a unit of bf16 is a 512th or more, and it would stand still.

  stored = the upper half of (the bits of x) + (16 random bits)          NaN stays NaN; infinity stays what it is

Of an element's random bits (element_bits in llmc/base/rng.h) the low half rounds the first moment or momentum, the high
half the second moment. They follow from the seed, the parameter's name, the number of the update and the element's
number in the whole parameter: the same on any device, at any number of threads and ranks, and after a resume.
*/
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include "llmc/base/bf16.h"  // bf16, ANVIL_HOST_DEVICE
#include "llmc/base/rng.h"   // Rng, mix64, Stream

// Of a piece of a parameter: what its random bits follow from, but for the step.
struct MomentRounding {
    uint64_t key = 0;    // moments_key()
    uint64_t first = 0;  // the element of the whole parameter that is the piece's first
};

// Which half of an element's random bits.
enum class Moment { first, second };

inline uint64_t moments_key(uint64_t seed, const std::string& parameter) {
    for (const char letter : parameter) seed = mix64(seed ^ uint64_t(letter));
    return Rng(seed, Stream::moments).state;
}
// In the update that makes StepScalars::updates this number.
constexpr uint64_t moments_key_of(uint64_t key, int64_t updates) { return mix64(key + uint64_t(updates) * Rng::kStep); }

// `random`: 16 bits
ANVIL_HOST_DEVICE bf16 rounded_moment(float x, uint32_t random) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    // Without a branch, as to_bf16().
    const uint32_t nan = 0u - uint32_t((bits & 0x7FFFFFFF) > 0x7F800000);
    return bf16{uint16_t(((bits + random) >> 16 & ~nan) | ((bits >> 16 | 0x40) & nan))};
}
