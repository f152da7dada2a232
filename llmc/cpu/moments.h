/*
Moments in bf16 on the CPU: llmc/ops/moments.h.
*/
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>
#include "llmc/cpu/simd.h"
#include "llmc/ops/moments.h"  // MomentRounding

// Rounds x stochastically to values that bf16 holds exactly. random[k] is for lane k.
ANVIL_INLINE F32x16 rounded_moments(F32x16 x, const uint32_t (&random)[kLanes], Moment moment) {
    for (int i = 0; i < kRegisters; i++) {
        UintRegister bits;
        std::memcpy(&bits, random + i * kRegisterLanes, sizeof bits);
        bits = moment == Moment::first ? bits & 0xFFFFu : bits >> 16;
        const FloatRegister rounded = FloatRegister((UintRegister(x.part[i]) + bits) & 0xFFFF0000u);
        x.part[i] = x.part[i] != x.part[i] ? x.part[i] : rounded;
    }
    return x;
}

// Stores the moments of a piece of a parameter in one step; those in bf16 are rounded with random bits.
template <class M>
struct MomentStore {
    static constexpr bool kRounds = !std::is_same_v<M, float>;
    uint64_t key, first;

    MomentStore(const MomentRounding& rounding, int64_t updates)
        : key(kRounds ? moments_key_of(rounding.key, updates) : 0), first(rounding.first) {}

    // Stores both moments of elements i, i + 1, ... of the piece.
    template <class Width>
    ANVIL_INLINE void store_moments(int64_t i, M* m, F32x16 new_m, M* v, F32x16 new_v, Width width) const {
        if constexpr (kRounds) {
            uint32_t random[kLanes];
            element_bits(random, key, first + uint64_t(i));
            new_m = rounded_moments(new_m, random, Moment::first);
            new_v = rounded_moments(new_v, random, Moment::second);
        }
        store(m + i, new_m, width);
        store(v + i, new_v, width);
    }
    template <class Width>
    ANVIL_INLINE void store_moment(int64_t i, M* m, F32x16 new_m, Width width) const {
        if constexpr (kRounds) {
            uint32_t random[kLanes];
            element_bits(random, key, first + uint64_t(i));
            new_m = rounded_moments(new_m, random, Moment::first);
        }
        store(m + i, new_m, width);
    }
};
