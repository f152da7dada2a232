/*
Sums one buffer per rank:   out[o][i] = sum over r of inp[r][i], in the order of sum_tree

  inp (num_ranks) pointers to n elements each: float, bf16 (summed in float, rounded once) or uint64_t
  out (num_outs)  pointers to n elements each, all of which receive the sum; they may be among the inputs. Of the
                  inputs' type, or float for bf16 inputs, which rounds nothing

Reads num_ranks n elements and writes num_outs n.
*/
#pragma once
#include <array>
#include <cstdint>
#include <type_traits>
#include "llmc/base/bf16.h"      // bf16
#include "llmc/base/sum_tree.h"  // sum_tree
#include "llmc/cpu/device.h"     // Cpu, parallel_chunks
#include "llmc/cpu/simd.h"       // F32x16, for_lanes

// With compile-time counts and local copies of the pointers, which no store can alias, all of them stay in registers.
template <int num_ranks, int num_outs, class Out, class T>
void sum_ranks_fixed(Out* const* out, const T* const* inp, int64_t begin, int64_t end) {
    std::array<const T*, num_ranks> from;
    std::array<Out*, num_outs> to;
    for (size_t r = 0; r < num_ranks; r++) from[r] = inp[r] + begin;
    for (size_t o = 0; o < num_outs; o++) to[o] = out[o] + begin;
    for_lanes(end - begin, [&](int64_t i, auto width) {
        const F32x16 sum = sum_tree<0, num_ranks>([&](int r) { return load(from[size_t(r)] + i, width); });
        for (Out* const p : to) store(p + i, sum, width);
    });
}

template <class Out, class T>
void sum_ranks(Cpu& cpu, Out* const* out, const T* const* inp, int num_outs, int num_ranks, int64_t n) {
    const OpScope op(cpu, __func__);
    if (num_ranks == 1 && num_outs == 1 && static_cast<const void*>(out[0]) == inp[0]) return;
    // Reduce-scatter has one output and all-reduce one per rank; specialized for few ranks per host.
    using Fixed = void (*)(Out* const*, const T* const*, int64_t, int64_t);
    Fixed fixed = nullptr;
    if constexpr (!std::is_same_v<T, uint64_t>) {
        const auto choose = [&](auto ranks) {
            if (num_ranks == ranks && num_outs == 1) fixed = sum_ranks_fixed<ranks, 1, Out, T>;
            if (num_ranks == ranks && num_outs == ranks) fixed = sum_ranks_fixed<ranks, ranks, Out, T>;
        };
        choose(std::integral_constant<int, 2>());
        choose(std::integral_constant<int, 3>());
        choose(std::integral_constant<int, 4>());
        choose(std::integral_constant<int, 8>());
    }
    parallel_chunks(cpu, n, 1 << 14, [=](int64_t begin, int64_t end) {
        if (fixed) return fixed(out, inp, begin, end);
        if constexpr (std::is_same_v<T, uint64_t>) {
            for (int64_t i = begin; i < end; i++) {
                const uint64_t sum = sum_tree(num_ranks, [=](int r) { return inp[r][i]; });
                for (int o = 0; o < num_outs; o++) out[o][i] = sum;
            }
        } else {
            for_lanes(end - begin, [=](int64_t i, auto width) {
                const F32x16 sum = sum_tree(num_ranks, [=](int r) { return load(inp[r] + begin + i, width); });
                for (int o = 0; o < num_outs; o++) store(out[o] + begin + i, sum, width);
            });
        }
    });
}

template <class Out, class T>
void sum_ranks(Cpu& cpu, Out* out, const T* const* inp, int num_ranks, int64_t n) {
    sum_ranks(cpu, &out, inp, 1, num_ranks, n);
}
