/*
out (C, R) = transpose of inp (R, C), not in place, for elements of any type.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include "llmc/cpu/device.h"  // Cpu, parallel_for

template <class T>
void transpose(Cpu& cpu, T* out, const T* inp, int64_t R, int64_t C) {
    constexpr int64_t kTile = 64;  // a tile of both matrices stays in L1
    parallel_for(cpu, (C + kTile - 1) / kTile, [=](int64_t tile) {
        const int64_t first = tile * kTile, end = std::min(C, first + kTile);
        for (int64_t r0 = 0; r0 < R; r0 += kTile)
            for (int64_t c = first; c < end; c++)
                for (int64_t r = r0; r < std::min(R, r0 + kTile); r++) out[c * R + r] = inp[r * C + c];
    });
}
