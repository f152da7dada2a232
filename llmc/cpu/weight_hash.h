/*
A 64-bit hash of weights that does not depend on how they are cut, nor on the order of the parts: what ranks compare.

  sum += sum over j of mix64((first + j + 1) K + word j)   mod 2^64      mix64, K: splitmix64's (llmc/base/rng.h)

  x (n) f32 or bf16     sum: one integer, accumulated
Word j is elements 8/sizeof(T) j and on, 8 bytes of them, the first in the lowest bits; what is missing of the last word
counts as zeros. x begins at element `first_index` of the whole, word `first` of it, which it must begin with.

mix64 is one to one, so a change within one word always changes the sum; others, as two elements that changed places,
are missed with a chance of 2^-64. Bits count, not values: -0 is not 0.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include "llmc/base/check.h"  // ensure
#include "llmc/base/rng.h"    // mix64
#include "llmc/cpu/device.h"  // Cpu, parallel_for

inline namespace ANVIL_CPU_LEVEL {

template <class T>
void add_hash(Cpu& cpu, uint64_t* sum, const T* x, int64_t n, int64_t first_index) {
    const OpScope op(cpu, __func__);
    constexpr int64_t in_word = 8 / sizeof(T);
    ensure(first_index % in_word == 0);
    const uint64_t first = uint64_t(first_index / in_word);
    const auto hash = [=](int64_t j, uint64_t word) { return mix64((first + uint64_t(j) + 1) * Rng::kStep + word); };
    const int64_t whole = n / in_word, threads = cpu.num_threads;
    uint64_t* partials = reinterpret_cast<uint64_t*>(cpu.shared(2 * threads));
    parallel_for(cpu, threads, [=](int64_t thread) {
        uint64_t own = 0;
        for (int64_t j = whole * thread / threads; j < whole * (thread + 1) / threads; j++) {
            uint64_t word;
            std::memcpy(&word, x + j * in_word, sizeof word);
            own += hash(j, word);
        }
        partials[thread] = own;
    });
    for (int64_t thread = 0; thread < threads; thread++) *sum += partials[thread];
    if (const int64_t left = n - whole * in_word) {
        uint64_t word = 0;
        std::memcpy(&word, x + whole * in_word, size_t(left) * sizeof(T));
        *sum += hash(whole, word);
    }
}

}  // namespace ANVIL_CPU_LEVEL
