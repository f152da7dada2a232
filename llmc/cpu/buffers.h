/*
Sums and casts of buffers on the CPU: llmc/ops/buffers.h.
*/
#pragma once
#include <cstdint>
#include <span>
#include "llmc/cpu/device.h"   // Cpu, parallel_chunks
#include "llmc/cpu/moments.h"  // rounded_moments
#include "llmc/cpu/simd.h"
#include "llmc/ops/buffers.h"  // RoundedSum
#include "llmc/ops/op_cost.h"  // accumulate_cost

inline void accumulate(Cpu& cpu, float* to, const float* from, int64_t n) {
    const OpScope op(cpu, __func__, accumulate_cost(n));
    parallel_chunks(cpu, n, 16384, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) to[i] += from[i];
    });
}

inline void accumulate_rounded(Cpu& cpu, const RoundedSum* sums, int64_t count, int64_t micro_batch,
                               const StepScalars* s) {
    const bool is_first = micro_batch == 0;
    const OpScope op(cpu, __func__, accumulate_rounded_cost(num_elements(sums, count), is_first));
    for (const RoundedSum& sum : std::span(sums, size_t(count))) {
        const uint64_t key = rounded_sum_key(sum.rounding, s->updates, micro_batch);
        parallel_chunks(cpu, sum.n, 16384, [=](int64_t begin, int64_t end) {
            for_lanes(end - begin, [=](int64_t offset, auto width) {
                const int64_t i = begin + offset;
                const F32x16 more = load(sum.from + i, width);
                uint32_t random[kLanes];
                element_bits(random, key, sum.rounding.first + uint64_t(i));
                const F32x16 x = is_first ? more : load(sum.to + i, width) + more;
                store(sum.to + i, rounded_moments(x, random, Moment::first), width);
            });
        });
    }
}

template <class To, class From>
void cast(Cpu& cpu, To* out, const From* inp, int64_t n) {
    const OpScope op(cpu, __func__);
    parallel_chunks(cpu, n, 16384, [=](int64_t begin, int64_t end) {
        for_lanes(end - begin,
                  [=](int64_t i, auto width) { store(out + begin + i, load(inp + begin + i, width), width); });
    });
}
