/*
The wrappers of llmc/cuda/hopper.cuh for g++. They are implemented in dev/emulator/hopper.cpp, which is compiled without
the race checker.
*/
#pragma once
#include "dev/emulator/hopper.h"

#define __grid_constant__

using TensorMap = emulator::TensorMap;
inline bool built_for_hopper() { return true; }
inline TensorMap encode_tensor_map(const bf16* base, const TensorLayout& layout) {
    TensorMap map{reinterpret_cast<const char*>(base), {}, {sizeof(bf16)}, {}, {}};
    for (int i = 0; i < 4; i++) map.dims[i] = layout.dims[i], map.box[i] = layout.box[i];
    for (int i = 0; i < 3; i++) map.strides[i + 1] = layout.strides[i] * int64_t(sizeof(bf16));
    return map;
}

struct alignas(8) Mbarrier {
    uint64_t opaque;
};
inline void mbarrier_init(Mbarrier* barrier, int arrivals, EMULATOR_SITE) {
    emulator::mbarrier_init(barrier, arrivals, EMULATOR_HERE);
}
inline void mbarrier_fence_init() { emulator::mbarrier_fence_init(); }
inline void mbarrier_arrive(Mbarrier* barrier, EMULATOR_SITE) {
    emulator::mbarrier_arrive(barrier, 0, "mbarrier_arrive", EMULATOR_HERE);
}
inline void mbarrier_arrive_expect(Mbarrier* barrier, int bytes, EMULATOR_SITE) {
    emulator::mbarrier_arrive(barrier, bytes, "mbarrier_arrive_expect", EMULATOR_HERE);
}
inline void mbarrier_wait(Mbarrier* barrier, int parity, EMULATOR_SITE) {
    emulator::mbarrier_wait(barrier, parity, EMULATOR_HERE);
}

inline void barrier_sync(int number, int threads, EMULATOR_SITE) {
    emulator::named_barrier(number, threads, true, EMULATOR_HERE);
}
inline void barrier_arrive(int number, int threads, EMULATOR_SITE) {
    emulator::named_barrier(number, threads, false, EMULATOR_HERE);
}

inline void tma_load(void* to, const TensorMap& map, Mbarrier* barrier, int c0, int c1, int c2, int c3, EMULATOR_SITE) {
    emulator::tma_load(to, map, barrier, {c0, c1, c2, c3}, EMULATOR_HERE);
}
inline void bulk_load(void* to, const void* from, int bytes, Mbarrier* barrier, EMULATOR_SITE) {
    emulator::bulk_load(to, from, bytes, barrier, EMULATOR_HERE);
}
inline void fence_async() { emulator::fence_async(); }

template <int n>
void give_registers(EMULATOR_SITE) {
    static_assert(n >= 24 && n <= 256 && n % 8 == 0);
    emulator::give_registers(n, EMULATOR_HERE);
}
template <int n>
void take_registers(EMULATOR_SITE) {
    static_assert(n >= 24 && n <= 256 && n % 8 == 0);
    emulator::take_registers(n, EMULATOR_HERE);
}

inline uint64_t wgmma_tile(const void* start, int next_columns = 16, EMULATOR_SITE) {
    return uint64_t((emulator::shared_address(start, "wgmma_tile", EMULATOR_HERE) & 0x3FFFF) >> 4) |
           uint64_t(next_columns >> 4) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}
inline void wgmma_fence(EMULATOR_SITE) { emulator::wgmma_fence(EMULATOR_HERE); }
inline void wgmma_commit(EMULATOR_SITE) { emulator::wgmma_commit(EMULATOR_HERE); }
template <int n>
void wgmma_wait(EMULATOR_SITE) {
    emulator::wgmma_wait(n, EMULATOR_HERE);
}
template <class Array>
void wgmma_pin(Array&) {
    emulator::wgmma_pin();
}
inline int computed_here(int x) { return x; }
template <int N, bool transposed_b = false, bool transposed_a = false>
void wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, bool add, EMULATOR_SITE) {
    static_assert(N == 64 || N == 128);
    emulator::wgmma({N, transposed_a, transposed_b, add, d, nullptr, a, b}, EMULATOR_HERE);
}
template <int N, bool transposed_b = false>
void wgmma(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool add, EMULATOR_SITE) {
    static_assert(N == 64 || N == 128);
    emulator::wgmma({N, false, transposed_b, add, d, a, 0, b}, EMULATOR_HERE);
}
