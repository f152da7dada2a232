/*
A sum without rounding. It is the same in any order and for any partition of the terms, because all numbers are added as
integers to one long fixed-point number (Kulisch, Computer Arithmetic and Validity, 2008: the long accumulator).

  ExactSum sum;
  sum.add(0.1), sum.add(1e20), sum.add(-1e20);
  sum.value()                                     0.1: the exact total rounded once, to nearest; NaN if not finite

The fixed-point number reaches from 2^-192 to 2^288, 32 bits per word. Each word is stored in 64 bits. A negative number
adds its two's complement to each word, and carries are propagated only in value(). So the sum of two ExactSums, from
other threads or ranks, is the sum of their words as integers, which commutes. An addition changes a word by less than
2^32, so up to 2^31 additions in total cannot overflow a word.

The part of a number below 2^-192 is dropped. NaN, infinity and numbers of at least 2^288 make the sum not finite. All
of this also works in CUDA kernels.
*/
#pragma once
#include <bit>
#include <cstdint>
#include <limits>

// A float's |x| in the words: bits * 2^(32 word - 192) with bits < 2^55, in `word` and the one after it.
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
    uint64_t not_finite = 0;  // how many terms were not finite

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
            if (position < -52) return;  // x is 0 or too small
            mantissa >>= -position;
            position = 0;
        }
        const int word = position / 32, shift = position % 32;
        const uint64_t low = mantissa << shift, high = shift ? mantissa >> (64 - shift) : 0;
        const bool negative = raw >> 63;
        words[word] += with_sign(uint32_t(low), negative);
        words[word + 1] += with_sign(low >> 32, negative);
        if (high) words[word + 2] += with_sign(high, negative);  // otherwise the word may not exist
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

        // The 32-bit digits of the total's magnitude, from the lowest up. `top`: the highest nonzero digit and the
        // digit below it; `next`: the digit below these; `rest`: whether any further digit is nonzero. The last digit
        // is the final carry.
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
        // The conversion rounds 64 bits to 53, to nearest. For the bits below these 64 only whether any is set matters.
        top |= rest || uint32_t(next << shift) != 0;
        const int exponent = 32 * (top_digit - 1) - shift + kLowest;
        const double size = double(top) * std::bit_cast<double>(uint64_t(1023 + exponent) << 52);
        return negative ? -size : size;
    }

private:
    static constexpr uint64_t with_sign(uint64_t x, bool negative) { return negative ? -x : x; }
};
static_assert(sizeof(ExactSum) == 16 * sizeof(uint64_t));  // ranks and kernels add it up word by word
