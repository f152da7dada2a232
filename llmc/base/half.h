/*
Half precision (IEEE 754 binary16), found in other programs' files. Anvil computes in float and bfloat16.

  sign 1 bit, exponent 5 bits with bias 15, fraction 10 bits; exponent 0: fraction / 2^24; exponent 31: infinity or NaN
*/
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

// Exact.
inline float half_to_float(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float size =
        exponent == 31  ? (fraction ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity())
        : exponent == 0 ? std::ldexp(float(fraction), -24)
                        : std::ldexp(float(1024 + fraction), exponent - 25);
    return bits & 0x8000 ? -size : size;
}
