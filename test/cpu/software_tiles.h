/*
AMX's tiles in software, to the bit, from the same description (llmc/cpu/amx.h): the loops of llmc/cpu/gemm_tiles.h
run with them on any machine.

  const UsedTiles used(software_tiles());    products of bf16 are made so until the scope ends
  const UsedTiles used(nullptr);             by the ordinary registers, whatever the processor has
*/
#pragma once
#include <cstdint>
#include <cstring>
#include "llmc/base/check.h"      // ensure
#include "llmc/base/level.h"      // ANVIL_CPU_LEVEL
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
    // Registers that nobody has loaded hold NaN here, so that whoever counts on their being zero is found out.
    static void prepare() {
        if (mine().prepared) return;
        std::memset(mine().tmm, 0xFF, sizeof mine().tmm);
        mine().prepared = true;
    }
    static Register& prepared(int tile) {
        ensure(mine().prepared);  // the processor would end the program
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
    // Numbers below the smallest normal one are zero, with their sign.
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

// Null where panels are narrower than a tile, as with SSE: then there is nothing to test.
template <class Tiles = SoftwareTiles>
TileKernel software_tiles() {
    if constexpr (kPanelsFitTiles)
        return multiply_panels_in_tiles<Tiles>;
    else
        return nullptr;
}

// Used by the test's own ops and, where panels are as wide as the test's, by those of cpu_kernels().
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
