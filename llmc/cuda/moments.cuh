/*
Loads and stores of bf16 moments in the kernels of optimizers (llmc/ops/moments.h):

  float ms[P];
  load_floats(ms, tensor.m + i);                                     float or bf16
  const MomentBits<M, P> bits(key, tensor.rounding.first + i);       of P elements; none where M is float
  store_moments(tensor.m + i, ms, bits, Moment::first);
*/
#pragma once
#include "llmc/cuda/device.cuh"  // Pack, load16, store16, load_floats, store_floats
#include "llmc/ops/moments.h"    // MomentRounding, rounded_moment

// Elements that a thread takes at a time, with weights T and moments M: sixteen bytes of the smaller type.
template <class T, class M>
inline constexpr int kUpdatePack = Pack<T>::size > Pack<M>::size ? Pack<T>::size : Pack<M>::size;

// The random bits of elements e, e + 1, ... of a parameter, given a step's key.
template <class M, int P>
struct MomentBits {
    DEVICE MomentBits(uint64_t, uint64_t) {}
    DEVICE uint32_t of(int, Moment) const { return 0; }
};
template <int P>
struct MomentBits<bf16, P> {
    uint32_t bits[P];

    DEVICE MomentBits(uint64_t key, uint64_t e) {
        if constexpr (P % 2 == 0)
            if (e % 2 == 0) {  // almost always: few pieces begin at an odd element
                for (int k = 0; k < P; k += 2) {
                    const uint64_t pair = pair_bits(key, e / 2 + uint64_t(k) / 2);
                    bits[k] = uint32_t(pair), bits[k + 1] = uint32_t(pair >> 32);
                }
                return;
            }
        for (int k = 0; k < P; k++) bits[k] = element_bits(key, e + uint64_t(k));
    }
    DEVICE uint32_t of(int k, Moment moment) const {
        return moment == Moment::first ? bits[k] & 0xFFFFu : bits[k] >> 16;
    }
};

DEVICE void store_moment(float* to, float x, uint32_t) { *to = x; }
DEVICE void store_moment(bf16* to, float x, uint32_t random) { *to = rounded_moment(x, random); }

template <int P>
DEVICE void load_floats(float (&to)[P], const bf16* from) {
    const Pack<bf16> pack = load16(from);
    static_assert(P == pack.size);
    for (int k = 0; k < P; k++) to[k] = to_float(pack[k]);
}
template <int P>
DEVICE void store_moments(float* to, const float (&from)[P], const MomentBits<float, P>&, Moment) {
    store_floats(to, from);
}
template <int P>
DEVICE void store_moments(bf16* to, const float (&from)[P], const MomentBits<bf16, P>& bits, Moment moment) {
    Pack<bf16> pack;
    static_assert(P == pack.size);
    for (int k = 0; k < P; k++) pack[k] = rounded_moment(from[k], bits.of(k, moment));
    store16(to, pack);
}
