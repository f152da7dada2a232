/*
A sum without rounding, hence the same in any order and however it is cut: all numbers are added as integers to one long
fixed-point number (Kulisch, Computer Arithmetic and Validity, 2008: the long accumulator).

  ExactSum sum;
  sum.add(0.1), sum.add(1e20), sum.add(-1e20);
  sum.value()                                     0.1: the exact total rounded once, to nearest; NaN if not finite

The number reaches from 2^-192 to 2^288, 32 bits per word. Each word has 64 bits and is added to on its own, a negative
number as its two's complement, and carries are left for value(): so the sum of two ExactSums, on other threads or other
ranks, is the sum of their words as integers, which commutes. What is added changes a word by less than 2^32, so 2^31
additions in all cannot overflow one.

The part of a number below 2^-192 is dropped. NaN, infinity and numbers from 2^288 on only make the sum not finite.
All of it runs in kernels too.
*/
#pragma once
#include <bit>
#include <cstdint>
#include <limits>

// |x| of a float as the words hold it: bits * 2^(32 word - 192) with bits < 2^55, in `word` and the one after it.
struct ExactPart {
    int word;
    uint64_t bits;
};
constexpr ExactPart exact_part(float x) {
    const uint32_t raw = std::bit_cast<uint32_t>(x), exponent = raw >> 23 & 0xFF, normal = exponent != 0;
    const uint64_t mantissa = (raw & 0x7FFFFF) | normal << 23;
    const uint32_t position = exponent + (1 - normal) + (192 - 150);  // of the mantissa's lowest bit
    return {int(position / 32), mantissa << position % 32};
}
constexpr bool is_finite(float x) { return (std::bit_cast<uint32_t>(x) & 0x7FFFFFFF) < 0x7F800000; }

struct ExactSum {
    static constexpr int kWords = 15, kLowest = -192, kHighest = 32 * kWords + kLowest;
    uint64_t words[kWords] = {};
    uint64_t not_finite = 0;  // how many were

    constexpr void add(double x) {
        const uint64_t raw = std::bit_cast<uint64_t>(x);
        const int exponent = int(raw >> 52 & 0x7FF);
        if (exponent >= 1023 + kHighest) {
            not_finite++;
            return;
        }
        uint64_t mantissa = (raw & ((uint64_t(1) << 52) - 1)) | uint64_t(1) << 52;
        int position = exponent - 1075 - kLowest;  // of the mantissa's lowest bit
        if (position < 0) {
            if (position < -52) return;  // zero, too
            mantissa >>= -position;
            position = 0;
        }
        const int word = position / 32, shift = position % 32;
        const uint64_t low = mantissa << shift, high = shift ? mantissa >> (64 - shift) : 0;
        const bool negative = raw >> 63;
        words[word] += with_sign(uint32_t(low), negative);
        words[word + 1] += with_sign(low >> 32, negative);
        if (high) words[word + 2] += with_sign(high, negative);  // otherwise there may be no such word
    }

    constexpr void add(float x) {
        if (!is_finite(x)) {
            not_finite++;
            return;
        }
        const ExactPart part = exact_part(x);
        words[part.word] += with_sign(uint32_t(part.bits), x < 0);
        words[part.word + 1] += with_sign(part.bits >> 32, x < 0);
    }

    constexpr void add(const ExactSum& other) {
        for (int w = 0; w < kWords; w++) words[w] += other.words[w];
        not_finite += other.not_finite;
    }

    constexpr double value() const {
        if (not_finite) return std::numeric_limits<double>::quiet_NaN();
        int64_t carry = 0;
        for (int w = 0; w < kWords; w++) carry = (int64_t(words[w]) + carry) >> 32;
        const bool negative = carry < 0;

        // The 32-bit digits of the total without its sign, upwards: of the last one that is not 0, and of the two below
        // it, `top` and `next`; `rest`: whether there is anything further down. The last digit is what is carried out.
        uint64_t top = 0, next = 0, below = 0, below_that = 0;
        int top_digit = 0;
        bool rest = false, further = false;
        carry = 0;
        for (int w = 0; w <= kWords; w++) {
            if (w < kWords) carry += int64_t(with_sign(words[w], negative));
            const uint64_t digit = uint32_t(carry);
            carry >>= 32;
            if (digit) {
                top = digit << 32 | below;
                next = below_that;
                rest = further;
                top_digit = w;
            }
            further |= below_that != 0;
            below_that = below;
            below = digit;
        }
        if (!top) return 0;

        int shift = 0;  // until the highest bit of `top` is set
        for (int step = 16; step > 0; step /= 2)
            if (!(top >> (64 - step))) {
                top <<= step;
                shift += step;
            }
        top |= next >> (32 - shift);
        // The conversion rounds 64 bits to 53, to nearest. Of what is below the 64 it need only know whether it is 0.
        top |= rest || uint32_t(next << shift) != 0;
        const int exponent = 32 * (top_digit - 1) - shift + kLowest;
        const double size = double(top) * std::bit_cast<double>(uint64_t(1023 + exponent) << 52);
        return negative ? -size : size;
    }

private:
    static constexpr uint64_t with_sign(uint64_t x, bool negative) { return negative ? -x : x; }
};
static_assert(sizeof(ExactSum) == 16 * sizeof(uint64_t));  // ranks and kernels add it up word by word
