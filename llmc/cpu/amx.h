/*
Intel's tiles (AMX): eight registers of 16 rows of 64 bytes, and the one instruction that multiplies them in bf16.

  has_amx()        does this process have them: the processor, and Linux, which is asked once for the memory they take
  AmxTiles         load, store, zero and multiply; what the loops of gemm_tiles.h are instantiated with

tdpbf16ps multiplies 16 rows of 32 values with 32 rows of 16, which lie in pairs of neighbors in k, and adds the result
to sums of float. For each of these (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, TDPBF16PS,
"Operation"; the same in the Instruction Set Extensions Programming Reference, 319433, chapter 3):

  even = odd = 0;   for the 16 pairs in order:  even = fma(a[2k], b[2k], even),  odd = fma(a[2k+1], b[2k+1], odd)
  sum = sum + (even + odd)

rounded to nearest, and numbers below 1.2e-38 are zero wherever they are read or made. test/cpu/software_tiles.h does
the same without the processor. Inline assembly, since intrinsics would need -mamx-bf16 for all that includes this.
*/
#pragma once
#include <cstdint>
#include <type_traits>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#include "llmc/base/processor.h"  // may_use_amx

// One of the tile registers by its number, and what they hold: sums (rows, cols), factors (rows, depth), (depth, cols).
template <int number>
using Tmm = std::integral_constant<int, number>;
inline constexpr int64_t kTmmRows = 16, kTmmCols = 16, kTmmDepth = 32;

#if defined(__x86_64__)

inline bool ask_for_amx() {
#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
    return false;  // it does not see what a tile's store writes
#endif
#endif
    if (!may_use_amx()) return false;
    unsigned a, b, c, d;
    // Palette 1: bytes of a tile and of its rows, number of tiles, rows
    if (!__get_cpuid_count(0x1D, 1, &a, &b, &c, &d)) return false;
    if (a >> 16 != 1024 || (b & 0xFFFF) != 64 || b >> 16 != 8 || (c & 0xFFFF) != 16) return false;
    // The system keeps the tiles for a process that asked for it, with all its threads, those to come too.
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, Linux 5.16
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

struct AmxTiles {
    // Before a thread's first product: all tiles whole. They stay so, and nothing else in the process uses them.
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
    // 16 rows of 64 bytes each, row_bytes apart
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
