/*
Pairwise sums in an order that does not depend on how the work is divided: the terms are the leaves of a binary tree.

  sum_tree(6, value)              ((v0 + v1) + (v2 + v3)) + (v4 + v5): the largest power of two goes left
  sum_tree<0, 6>(value)           the same, unrolled by the compiler: for kernels

A rank that sums its own 2^j micro-batches in this way holds a node of the tree over all micro-batches, so that any
number of ranks gets the same bits (--grad-sum tree, llmc/train/step.h).
*/
#pragma once
#include "llmc/base/bf16.h"  // ANVIL_HOST_DEVICE

template <class Value>
auto sum_tree(int n, Value&& value) {
    const auto sum = [&](auto&& self, int begin, int end) {
        if (end - begin == 1) return value(begin);
        int half = 1;
        while (2 * half < end - begin) half *= 2;
        const auto left = self(self, begin, begin + half);
        return left + self(self, begin + half, end);
    };
    return sum(sum, 0, n);
}

// The largest power of two below n; n must be at least 2.
constexpr int largest_power_below(int n) {
    int power = 1;
    while (2 * power < n) power *= 2;
    return power;
}
// `value` is often a host function whose caller runs on the host only, so nvcc's warning does not apply.
#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
template <int begin, int end, class Value>
ANVIL_HOST_DEVICE auto sum_tree(const Value& value) {
    if constexpr (end - begin == 1) {
        return value(begin);
    } else {
        constexpr int middle = begin + largest_power_below(end - begin);
        const auto left = sum_tree<begin, middle>(value);
        return left + sum_tree<middle, end>(value);
    }
}
