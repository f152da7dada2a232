/*
Intel AMX: eight tile registers of 16 rows of 64 bytes, and the one instruction that multiplies them in bf16.

  has_amx()        whether this process may use AMX: the processor has it, and the kernel grants it (asked once)
  AmxTiles         load, store, zero and multiply; the loops of gemm_tiles.h are instantiated with it

tdpbf16ps multiplies a (16, 32) tile of bf16 by a (32, 16) tile, stored as pairs of neighbors in k, and adds the product
to a (16, 16) tile of float. For each element (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2,
TDPBF16PS, "Operation"; the same in the Instruction Set Extensions Programming Reference, 319433, chapter 3):

  even = odd = 0;   for the 16 pairs in order:  even = fma(a[2k], b[2k], even),  odd = fma(a[2k+1], b[2k+1], odd)
  sum = sum + (even + odd)

rounded to nearest, with subnormals (below 1.2e-38) flushed to zero in inputs and results. test/cpu/software_tiles.h
does the same in software. Inline assembly, since intrinsics would require -mamx-bf16 in every file that includes this.
*/
#pragma once
#include <cstdint>
#include <type_traits>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include "llmc/base/processor.h"     // may_use_amx
#include "llmc/platform/platform.h"  // permit_amx

// A tile register by its number. Tiles hold sums (rows, cols) or factors: (rows, depth) and (depth, cols).
template <int number>
using Tmm = std::integral_constant<int, number>;
inline constexpr int64_t kTmmRows = 16, kTmmCols = 16, kTmmDepth = 32;

#if defined(__x86_64__)

inline bool ask_for_amx() {
#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
    return false;  // MemorySanitizer does not see what a tile store writes
#endif
#endif
    if (!may_use_amx()) return false;
    unsigned a, b, c, d;
    // Palette 1: bytes per tile and per row, number of tiles, rows per tile
    if (!__get_cpuid_count(0x1D, 1, &a, &b, &c, &d)) return false;
    if (a >> 16 != 1024 || (b & 0xFFFF) != 64 || b >> 16 != 8 || (c & 0xFFFF) != 16) return false;
    return permit_amx();
}

struct AmxTiles {
    // Call on each thread before its first multiplication. Makes all tiles full-sized, which they remain: nothing else
    // in the process uses tiles.
    static void prepare() {
        thread_local bool prepared = false;
        if (prepared) return;
        struct alignas(64) {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        } const shapes;
        static_assert(sizeof shapes == 64);
        asm volatile("ldtilecfg %0" : : "m"(shapes));
        prepared = true;
    }

    template <int tile>
    static void zero(Tmm<tile>) {
        asm volatile("tilezero %%tmm%c0" : : "i"(tile));
    }
    // rows: 16 rows of 64 bytes each, row_bytes apart
    template <int tile>
    static void load(Tmm<tile>, const void* rows, int64_t row_bytes) {
        asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(tile), "r"(rows), "r"(row_bytes) : "memory");
    }
    template <int tile>
    static void store(Tmm<tile>, void* rows, int64_t row_bytes) {
        asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(tile), "r"(rows), "r"(row_bytes) : "memory");
    }
    // sum += a b
    template <int sum, int a, int b>
    static void multiply(Tmm<sum>, Tmm<a>, Tmm<b>) {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sum), "i"(a), "i"(b));
    }
};

#else
inline bool ask_for_amx() { return false; }
#endif

inline bool has_amx() {
    static const bool granted = ask_for_amx();
    return granted;
}
