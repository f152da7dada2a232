/*
A hash of weights on the CPU: llmc/ops/weight_hash.h.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include "llmc/base/check.h"  // ensure
#include "llmc/base/rng.h"    // mix64
#include "llmc/cpu/device.h"  // Cpu, parallel_for

template <class T>
void add_hash(Cpu& cpu, uint64_t* sum, const T* x, int64_t n, int64_t first_index) {
    const OpScope op(cpu, __func__);
    constexpr int64_t in_word = 8 / sizeof(T);
    ensure(first_index % in_word == 0);
    const uint64_t first = uint64_t(first_index / in_word);
    const auto hash = [=](int64_t j, uint64_t word) { return mix64((first + uint64_t(j) + 1) * Rng::kStep + word); };
    const int64_t whole = n / in_word, threads = cpu.num_threads;
    uint64_t* partials = reinterpret_cast<uint64_t*>(cpu.shared_scratch(2 * threads));
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
