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
#include <cstdint>

template <class Device, class T>
struct WeightHashOps {
    void (*add_hash)(Device&, uint64_t* sum, const T* x, int64_t n, int64_t first_index);
};
