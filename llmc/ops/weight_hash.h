/*
A 64-bit hash of weights that does not depend on how they are partitioned, nor on the order of the parts. Ranks compare
their hashes:

  sum += sum over j of mix64((first + j + 1) K + word j)   mod 2^64      mix64, K: splitmix64's (llmc/base/rng.h)

  x (n) f32 or bf16     sum: one integer, accumulated
Word j is the 8 bytes of the elements from 8/sizeof(T) j on, the first in the lowest bits; the last word is padded with
zeros. x begins at element `first_index` of the whole, which must begin a word: word `first`.

mix64 is a bijection, so a change within one word always changes the sum. Other changes, such as two swapped elements,
go undetected with probability 2^-64. Bits are compared, not values: -0 is not 0.
*/
#pragma once
#include <cstdint>

template <class Device, class T>
struct WeightHashOps {
    void (*add_hash)(Device&, uint64_t* sum, const T* x, int64_t n, int64_t first_index);
};
