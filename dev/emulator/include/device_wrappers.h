/*
The wrappers of llmc/cuda/device.cuh for g++. Each does what the PTX ISA specifies for its instruction.
*/
#pragma once
#include <cstring>
#include <tuple>
#include <type_traits>
#include "dev/emulator/emulator.h"
#include "llmc/base/bf16.h"         // bf16, to_bf16
#include "llmc/base/fp8.h"          // to_fp8
#include "llmc/cuda/cuda_device.h"  // Cuda

namespace emulator {
template <class T>
using type_of = T;  // type_of<float[4][2]>: allows an array type as a macro argument
void submit(cudaStream_t stream, std::function<void()> work);
}  // namespace emulator

// Every array is an allocation of its own for each CUDA block, so that AddressSanitizer checks its bounds.
#define SMEM_STATIC(T, name, extents)                          \
    using name##_shared_type = ::emulator::type_of<T extents>; \
    static const char name##_shared_key = 0;                   \
    auto& name = *static_cast<name##_shared_type*>(            \
        ::emulator::shared_static(&name##_shared_key, sizeof(name##_shared_type), alignof(name##_shared_type)))
#define SMEM_DYNAMIC(T, name) T* const name = static_cast<T*>(::emulator::shared_dynamic())

inline void check_16(const void* pointer, const char* what, emulator::Site site) {
    if (reinterpret_cast<uintptr_t>(pointer) % 16)
        emulator::fail("%s at %s:%d: the address %p is not a multiple of 16", what, site.file, site.line, pointer);
}
template <class T>
Pack<T> load16(const T* from, EMULATOR_SITE) {
    check_16(from, "load16", EMULATOR_HERE);
    return *reinterpret_cast<const Pack<T>*>(from);
}
template <class T>
Pack<T> load16_streaming(const T* from, EMULATOR_SITE) {
    check_16(from, "load16_streaming", EMULATOR_HERE);
    return *reinterpret_cast<const Pack<T>*>(from);
}
template <class T>
Pack<T> load16_uncached(const T* from, EMULATOR_SITE) {
    check_16(from, "load16_uncached", EMULATOR_HERE);
    return *reinterpret_cast<const Pack<T>*>(from);
}
template <class T>
void store16(T* to, const Pack<T>& pack, EMULATOR_SITE) {
    check_16(to, "store16", EMULATOR_HERE);
    *reinterpret_cast<Pack<T>*>(to) = pack;
}
template <class T>
void store16_streaming(T* to, const Pack<T>& pack, EMULATOR_SITE) {
    check_16(to, "store16_streaming", EMULATOR_HERE);
    *reinterpret_cast<Pack<T>*>(to) = pack;
}

inline void publish(int* counter, int value) { __atomic_store_n(counter, value, __ATOMIC_RELEASE); }
inline int published(const int* counter) { return __atomic_load_n(counter, __ATOMIC_ACQUIRE); }
// Blocks run one after the other, so a thread waits in vain for what no earlier block has done. A counter that is past
// the value was waited for too early: where blocks run at the same time, the thread might have gone on before them.
inline void wait_until(const int* counter, int value, EMULATOR_SITE) {
    const int found = published(counter);
    if (found != value)
        emulator::fail("wait_until at %s:%d waits for what no earlier block has left: its counter is %d, expected %d",
                       EMULATOR_HERE.file, EMULATOR_HERE.line, found, value);
}

inline uint32_t bf16x2(float low, float high) { return to_bf16(low).bits | uint32_t(to_bf16(high).bits) << 16; }
template <class T>
T from_float(float x) {
    if constexpr (std::is_same_v<T, float>) return x;
    if constexpr (std::is_same_v<T, bf16>) return to_bf16(x);
}

template <class Fp8>
uint16_t fp8x2(float low, float high) {
    return uint16_t(to_fp8<Fp8>(low).bits | to_fp8<Fp8>(high).bits << 8);
}

inline float fast_exp2(float x) {
    const float y = std::exp2(x);
    return y < 0x1p-126f ? 0 : y;
}

namespace emulator {
// Lane l, with g = l / 4 and c = 2 (l % 4), holds
//   a[g][c], a[g + 8][c], a[g][c + 8], a[g + 8][c + 8], each with its right neighbor in one register;
//   b[c][g], b[c + 8][g], each with the next k in one register;
//   d[g][c], d[g][c + 1], d[g + 8][c], d[g + 8][c + 1].
struct Mma {
    float* d;
    const uint32_t *a, *b;
};
// Takes a quarter of the time of all tests, so it computes eight columns at once. It is not checked by sanitizers: the
// operands are arrays of the calling lanes.
EMULATOR_UNCHECKED EMULATOR_UNBOUNDED inline void act_mma(void** operands, uint32_t mask, void*) {
    if (mask != 0xFFFFFFFF) fail("mma.sync by part of a warp: mask %08x", mask);
    using Row = float __attribute__((vector_size(32)));
    float a[16][16];
    Row b[16], sums[16] = {};
    for (int lane = 0; lane < 32; lane++) {
        const Mma& own = *static_cast<Mma*>(operands[lane]);
        const int g = lane / 4, c = lane % 4 * 2;
        for (int i = 0; i < 4; i++) {
            float* const pair = &a[g + i % 2 * 8][c + i / 2 * 8];
            pair[0] = __builtin_bit_cast(float, own.a[i] << 16);
            pair[1] = __builtin_bit_cast(float, own.a[i] & 0xFFFF0000);
        }
        for (int i = 0; i < 2; i++) {
            b[c + 8 * i][g] = __builtin_bit_cast(float, own.b[i] << 16);
            b[c + 8 * i + 1][g] = __builtin_bit_cast(float, own.b[i] & 0xFFFF0000);
        }
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++) sums[row] += a[row][k] * b[k];
    for (int lane = 0; lane < 32; lane++) {
        const Mma& own = *static_cast<Mma*>(operands[lane]);
        for (int i = 0; i < 4; i++) own.d[i] += sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    }
}

struct Ldmatrix {
    uint32_t* r;
    const void* row;
};
template <bool transposed>
EMULATOR_UNCHECKED void act_ldmatrix(void** operands, uint32_t mask, void*) {
    if (mask != 0xFFFFFFFF) fail("ldmatrix by part of a warp: mask %08x", mask);
    for (int matrix = 0; matrix < 4; matrix++) {
        uint16_t m[8][8];
        for (int row = 0; row < 8; row++) {
            const auto* from = static_cast<const uint16_t*>(static_cast<Ldmatrix*>(operands[8 * matrix + row])->row);
            for (int col = 0; col < 8; col++) m[row][col] = from[col];
        }
        for (int lane = 0; lane < 32; lane++) {
            const int g = lane / 4, c = lane % 4 * 2;
            const uint16_t low = transposed ? m[c][g] : m[g][c], high = transposed ? m[c + 1][g] : m[g][c + 1];
            static_cast<Ldmatrix*>(operands[lane])->r[matrix] = low | uint32_t(high) << 16;
        }
    }
}
}  // namespace emulator

inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], EMULATOR_SITE) {
    emulator::Mma own{d, a, b};
    emulator::warp_operation("mma.sync", EMULATOR_HERE, 0xFFFFFFFF, &own, emulator::act_mma, nullptr);
}
inline void ldmatrix_x4(uint32_t (&r)[4], const void* row, EMULATOR_SITE) {
    check_16(row, "ldmatrix", EMULATOR_HERE);
    emulator::note_access(row, 16, false, EMULATOR_HERE);
    emulator::Ldmatrix own{r, row};
    emulator::warp_operation("ldmatrix", EMULATOR_HERE, 0xFFFFFFFF, &own, emulator::act_ldmatrix<false>, nullptr);
}
inline void ldmatrix_x4_transposed(uint32_t (&r)[4], const void* row, EMULATOR_SITE) {
    check_16(row, "ldmatrix.trans", EMULATOR_HERE);
    emulator::note_access(row, 16, false, EMULATOR_HERE);
    emulator::Ldmatrix own{r, row};
    emulator::warp_operation("ldmatrix.trans", EMULATOR_HERE, 0xFFFFFFFF, &own, emulator::act_ldmatrix<true>, nullptr);
}

inline void cp_async16(void* to_shared, const void* from, bool valid, EMULATOR_SITE) {
    check_16(to_shared, "cp.async to", EMULATOR_HERE);
    check_16(from, "cp.async from", EMULATOR_HERE);
    emulator::copy_async(to_shared, from, valid, EMULATOR_HERE);
}
inline void cp_async_commit() { emulator::copy_commit(); }
template <int n>
void cp_async_wait() {
    emulator::copy_wait(n);
}

template <class... P>
void launch(Cuda& cuda, const KernelLabel& label, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
            std::type_identity_t<P>... args) {
    const KernelScope scope(cuda, label);
    emulator::submit(cuda.stream, [=, name = label.name] {
        if (emulator::run_elsewhere && emulator::run_elsewhere(reinterpret_cast<const void*>(kernel), grid, block,
                                                               shared_bytes, {{&args, sizeof args}...}))
            return;
        emulator::run(name, grid, block, shared_bytes, [=] { kernel(args...); });
    });
}
