/*
Ways to multiply bf16 that a test selects, whatever its machine would. AMX tiles are emulated in software, bit for bit
as llmc/cpu/amx.h describes them, so that the loops of llmc/cpu/gemm_tiles.h run on any machine.

  const UsedTiles used(software_tiles());    bf16 GEMMs use software tiles until the scope ends
  const UsedTiles used(nullptr);             bf16 GEMMs use vector registers, even on a CPU with AMX
  const UsedRegisters used(true);            the same, and in them pairs of bf16; false: bf16 widened to float
*/
#pragma once
#include <cstdint>
#include <cstring>
#include "llmc/base/check.h"      // ensure
#include "llmc/base/processor.h"  // ANVIL_CPU_LEVEL
#include "llmc/cpu/bf16_pairs.h"  // multiplies_pairs
#include "llmc/cpu/gemm_tiles.h"  // tile_kernel, Tmm
#include "llmc/cpu/kernels.h"     // cpu_kernels

struct SoftwareTiles {
    struct Register {
        uint32_t rows[16][16];
    };
    struct Registers {
        bool prepared = false;
        Register tmm[8];
    };
    static Registers& mine() {
        thread_local Registers registers;
        return registers;
    }
    // Fills the registers with NaN, to detect code that relies on zeros in them.
    static void prepare() {
        if (mine().prepared) return;
        std::memset(mine().tmm, 0xFF, sizeof mine().tmm);
        mine().prepared = true;
    }
    static Register& prepared(int tile) {
        ensure(mine().prepared);  // a CPU would raise a fault
        return mine().tmm[tile];
    }

    template <int tile>
    static void zero(Tmm<tile>) {
        prepared(tile) = {};
    }
    template <int tile>
    static void load(Tmm<tile>, const void* rows, int64_t row_bytes) {
        Register& to = prepared(tile);
        for (int64_t i = 0; i < 16; i++) std::memcpy(to.rows[i], static_cast<const char*>(rows) + i * row_bytes, 64);
    }
    template <int tile>
    static void store(Tmm<tile>, void* rows, int64_t row_bytes) {
        const Register& from = prepared(tile);
        for (int64_t i = 0; i < 16; i++) std::memcpy(static_cast<char*>(rows) + i * row_bytes, from.rows[i], 64);
    }
    template <int sum, int a, int b>
    static void multiply(Tmm<sum>, Tmm<a>, Tmm<b>) {
        multiply(prepared(sum), prepared(a), prepared(b));
    }

private:
    // Subnormal numbers become zero, with their sign.
    static F32x16 flushed(F32x16 x) {
        for (FloatRegister& part : x.part) {
            const UintRegister bits = UintRegister(part);
            part = FloatRegister((bits & 0x7F800000u) == 0 ? bits & 0x80000000u : bits);
        }
        return x;
    }
    static F32x16 floats(const uint32_t* bits) {
        F32x16 x;
        std::memcpy(&x, bits, sizeof x);
        return x;
    }
    static F32x16 first(F32x16 pairs) {
        for (FloatRegister& part : pairs.part) part = FloatRegister(UintRegister(part) << 16);
        return flushed(pairs);
    }
    static F32x16 second(F32x16 pairs) {
        for (FloatRegister& part : pairs.part) part = FloatRegister(UintRegister(part) & 0xFFFF0000u);
        return flushed(pairs);
    }
    __attribute__((noinline)) static void multiply(Register& sum, const Register& a, const Register& b) {
        for (int m = 0; m < 16; m++) {
            F32x16 even = zeros(), odd = zeros();
            for (int k = 0; k < 16; k++) {
                uint32_t same[16];
                for (uint32_t& pair : same) pair = a.rows[m][k];
                const F32x16 pairs = floats(same), others = floats(b.rows[k]);
                even = flushed(fma(first(pairs), first(others), even));
                odd = flushed(fma(second(pairs), second(others), odd));
            }
            const F32x16 total = flushed(flushed(floats(sum.rows[m])) + flushed(even + odd));
            std::memcpy(sum.rows[m], &total, sizeof total);
        }
    }
};

// Null if panels are narrower than a tile, as with SSE.
template <class Tiles = SoftwareTiles>
TileKernel software_tiles() {
    if constexpr (kPanelsFitTiles)
        return &kTileFunctions<Tiles>;
    else
        return nullptr;
}

// Sets the tile kernel of the test's own ops, and of cpu_kernels() if those are compiled for the same CPU level.
class UsedTiles {
public:
    explicit UsedTiles(TileKernel kernel) { use(kernel, kernel); }
    UsedTiles(const UsedTiles&) = delete;
    UsedTiles& operator=(const UsedTiles&) = delete;
    ~UsedTiles() { use(before_, kernels_before_); }

private:
    const TileKernel before_ = tile_kernel(), kernels_before_ = cpu_kernels().tile_kernel();

    static void use(TileKernel own, TileKernel kernels) {
        tile_kernel() = own;
        if (cpu_kernels().level == CpuLevel::ANVIL_CPU_LEVEL) cpu_kernels().tile_kernel() = kernels;
    }
};

// The same for multiplies_pairs(), without tiles.
class UsedRegisters {
public:
    explicit UsedRegisters(bool pairs) { use(pairs, pairs); }
    UsedRegisters(const UsedRegisters&) = delete;
    UsedRegisters& operator=(const UsedRegisters&) = delete;
    ~UsedRegisters() { use(before_, kernels_before_); }

private:
    const UsedTiles none_{nullptr};
    const bool before_ = multiplies_pairs(), kernels_before_ = cpu_kernels().multiplies_pairs();

    static void use(bool own, bool kernels) {
        multiplies_pairs() = own;
        if (cpu_kernels().level == CpuLevel::ANVIL_CPU_LEVEL) cpu_kernels().multiplies_pairs() = kernels;
    }
};
