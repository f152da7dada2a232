/*
Random numbers that are the same on every machine, compiler and thread count.

  Rng rng(seed, stream)    splitmix64 (Steele, Lea, Flood, OOPSLA 2014); its whole state is one 64-bit word
  Permutation p(n, seed)   a random order of 0..n-1 that needs no memory: p(i) is the i-th element
  element_bits(key, e)     32 bits that depend only on the key and the element's number, so any thread can compute them

Streams are independent: with one seed, the weights, the data order and the sampler do not affect each other.
*/
#pragma once
#include <cmath>
#include <cstdint>

// The output function of splitmix64, a bijection of 64-bit words.
constexpr uint64_t mix64(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

enum class Stream : uint64_t {
    weights = 1,
    data,
    sampling,
    corpus,
    tests,
    dropout,
    moments,
    rounded_weights,
    rounded_gradients
};

struct Rng {
    static constexpr uint64_t kStep = 0x9E3779B97F4A7C15ull;
    uint64_t state;

    explicit Rng(uint64_t seed, Stream stream) : state(mix64(seed + kStep * uint64_t(stream))) {}

    uint64_t next() { return mix64(state += kStep); }
    // Skips n calls of next() (a normal() uses two), so that threads can divide a sequence.
    void skip(uint64_t n) { state += n * kStep; }

    // in [0, 1), 53 random bits
    double uniform() { return double(next() >> 11) * 0x1p-53; }

    // in [0, n), without bias (Lemire, 2019, arXiv:1805.10941)
    uint64_t below(uint64_t n) {
        for (;;) {
            const unsigned __int128 product = static_cast<unsigned __int128>(next()) * n;
            if (uint64_t(product) >= -n % n) return uint64_t(product >> 64);
        }
    }

    // standard normal (Box-Muller; the second number of the pair is dropped, so that the state stays one word)
    double normal() {
        const double radius = std::sqrt(-2 * std::log(1 - uniform()));
        return radius * std::cos(2 * M_PI * uniform());
    }
};

// Elements 2 pair and 2 pair + 1 get the low and the high half of number `pair` of splitmix64 with the initial state
// `key`.
constexpr uint64_t pair_bits(uint64_t key, uint64_t pair) { return mix64(key + (pair + 1) * Rng::kStep); }
constexpr uint32_t element_bits(uint64_t key, uint64_t e) { return uint32_t(pair_bits(key, e / 2) >> (e % 2 * 32)); }

// A four-round Feistel network over the smallest power of four that is at least n, iterated until the result is
// in [0, n) (Black and Rogaway, CT-RSA 2002). Needs constant memory, also for an epoch of 10^9 sequences.
struct Permutation {
    uint64_t n, seed;
    int half_bits = 1;

    Permutation(uint64_t n, uint64_t seed) : n(n), seed(seed) {
        while ((uint64_t(1) << (2 * half_bits)) < n) half_bits++;
    }

    uint64_t operator()(uint64_t i) const {
        const uint64_t mask = (uint64_t(1) << half_bits) - 1;
        do {
            uint64_t left = i >> half_bits, right = i & mask;
            for (uint64_t round = 0; round < 4; round++) {
                const uint64_t next = left ^ (mix64(mix64(mix64(seed) + round) ^ right) & mask);
                left = right;
                right = next;
            }
            i = left << half_bits | right;
        } while (i >= n);
        return i;
    }
};
