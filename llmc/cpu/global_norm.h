/*
The norm of the gradient on the CPU: llmc/ops/global_norm.h.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include "llmc/base/exact_sum.h"  // ExactSum
#include "llmc/cpu/device.h"      // Cpu, parallel_for
#include "llmc/cpu/simd.h"
#include "llmc/ops/op_cost.h"  // add_squares_cost

inline constexpr int64_t kNormUnit = 2 * kLanes;
inline constexpr int64_t kNormAhead = 768;  // elements to prefetch ahead, within 4 KB (dev/log/cpu.md)

// An ExactSum of non-negative numbers, sixteen at a time in SIMD lanes. The fast path requires that they begin in one
// of three neighboring words, a range of 2^96, as nearly all elements of a tensor do; others are added one by one.
class SumOfSixteens {
    typedef uint64_t Lanes __attribute__((vector_size(4 * kRegisterLanes)));  // half as many, twice as wide
    static constexpr uint64_t kLow = 0xFFFFFFFF;
    static constexpr int kWindow = 3;
    Lanes words_[kWindow + 1];  // of sum_.words[first_], ...
    int first_ = 0;
    ExactSum sum_;

    // Numbers as in exact_part(): mantissa * 2^shift for words[word] and the next one, where `word` counts from first_
    struct Parts {
        UintRegister mantissa, shift, word;
    };

    ANVIL_INLINE void add_half(Lanes mantissa, Lanes shift, Lanes word) {
        const Lanes bits = mantissa << shift;
        const Lanes low = bits & kLow, high = bits >> 32;
#pragma GCC unroll 4
        for (int k = 0; k < kWindow; k++) {
            const Lanes here = Lanes(word == uint64_t(k));
            words_[k] += low & here;
            words_[k + 1] += high & here;
        }
    }
    void move(int first) {
        for (int k = 0; k <= kWindow; k++)
            for (int lane = 0; lane < kRegisterLanes / 2; lane++) sum_.words[first_ + k] += words_[k][lane];
        std::fill_n(words_, kWindow + 1, Lanes{});
        first_ = first;
    }
    // Then moves the window to the largest of these numbers, because later ones tend to resemble it.
    __attribute__((noinline)) void add_one_by_one(const float (&numbers)[kLanes]) {
        float largest = 0;
        for (const float number : numbers) {
            sum_.add(number);
            if (is_finite(number)) largest = std::max(largest, number);
        }
        move(std::max(exact_part(largest).word - 1, 0));
    }

public:
    // A default initializer of an array of vectors is an internal error of nvcc 13.0: "unsupported aggregate constant".
    SumOfSixteens() {
        for (Lanes& word : words_) word = Lanes{};
    }
    void add(float x) { sum_.add(x); }
    ANVIL_INLINE void add(F32x16 x) {
        Parts parts[kRegisters];
        UintRegister elsewhere{};
#pragma GCC unroll 4
        for (int i = 0; i < kRegisters; i++) {
            const UintRegister raw = UintRegister(x.part[i]), exponent = raw >> 23 & 0xFFu;
            const UintRegister subnormal = UintRegister(exponent == 0);  // all bits set, -1 as an integer
            const UintRegister mantissa = (raw & 0x7FFFFFu) | (~subnormal & 0x800000u);
            const UintRegister position = exponent - subnormal + uint32_t(-150 - ExactSum::kLowest);
            const UintRegister word = (position >> 5) - uint32_t(first_);
            parts[i] = {mantissa, position & 31u, word};
            elsewhere |= (UintRegister(word >= uint32_t(kWindow)) & UintRegister(mantissa != 0)) |
                         UintRegister(exponent == 0xFFu);
        }
        uint32_t any = 0;
        for (int lane = 0; lane < kRegisterLanes; lane++) any |= elsewhere[lane];
        if (__builtin_expect(any, 0)) {
            float numbers[kLanes];
            store(numbers, x);
            return add_one_by_one(numbers);
        }
#pragma GCC unroll 4
        for (const Parts& p : parts) {
            const Lanes mantissa = Lanes(p.mantissa), shift = Lanes(p.shift), word = Lanes(p.word);
            add_half(mantissa & kLow, shift & kLow, word & kLow);
            add_half(mantissa >> 32, shift >> 32, word >> 32);
        }
    }
    ExactSum total() {
        move(first_);
        return sum_;
    }
};

inline void add_squares(Cpu& cpu, ExactSum* sum, const float* x, int64_t n) {
    const OpScope op(cpu, __func__, add_squares_cost(n));
    const int64_t units = (n + kNormUnit - 1) / kNormUnit, threads = cpu.num_threads;
    ExactSum* partials =
        reinterpret_cast<ExactSum*>(cpu.shared_scratch(threads * int64_t(sizeof(ExactSum) / sizeof(float))));
    parallel_for(cpu, threads, [=](int64_t thread) {
        SumOfSixteens own;
        const int64_t end = std::min(n, units * (thread + 1) / threads * kNormUnit);
        int64_t i = units * thread / threads * kNormUnit;
        for (; i + kLanes * kNormUnit <= end; i += kLanes * kNormUnit) {
            F32x16 of_unit[kLanes];
            const float* ahead = x + std::min(i + kNormAhead, end - kLanes * kNormUnit);
            // Not unrolled completely: the compiler would reorder the reads, and the hardware prefetcher would
            // stop following them.
#pragma GCC unroll 2
            for (int k = 0; k < kLanes; k++, ahead += kNormUnit) {
                const float* unit = x + i + k * kNormUnit;
                for (int64_t line = 0; line < kNormUnit; line += kLanes) __builtin_prefetch(ahead + line);
                const F32x16 a = load(unit), b = load(unit + kLanes);
                of_unit[k] = fma(b, b, a * a);
            }
            own.add(sum_rows(of_unit));
        }
        for (; i < end; i += kNormUnit) {
            const int left = int(std::min(end - i, kNormUnit));
            const F32x16 a = load(x + i, std::min(left, kLanes)), b = load(x + i + kLanes, std::max(left - kLanes, 0));
            own.add(sum_lanes(fma(b, b, a * a)));
        }
        partials[thread] = own.total();
    });
    for (int64_t thread = 0; thread < threads; thread++) sum->add(partials[thread]);
}
