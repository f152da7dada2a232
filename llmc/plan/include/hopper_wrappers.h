// The wrappers of llmc/cuda/hopper.cuh for a device that launches nothing.
#pragma once

#define __grid_constant__

struct TensorMap {};
inline bool built_for_hopper() { return true; }
inline TensorMap encode_tensor_map(const bf16*, const TensorLayout&) { return {}; }

struct alignas(8) Mbarrier {
    uint64_t opaque;
};
inline void mbarrier_init(Mbarrier*, int) {}
inline void mbarrier_fence_init() {}
inline void mbarrier_arrive(Mbarrier*) {}
inline void mbarrier_arrive_expect(Mbarrier*, int) {}
inline void mbarrier_wait(Mbarrier*, int) {}
inline void barrier_sync(int, int) {}
inline void barrier_arrive(int, int) {}
inline void tma_load(void*, const TensorMap&, Mbarrier*, int, int, int, int) {}
inline void bulk_load(void*, const void*, int, Mbarrier*) {}
inline void fence_async() {}
template <int n>
void give_registers() {}
template <int n>
void take_registers() {}
inline uint64_t wgmma_tile(const void*, int = 16) { return 0; }
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int n>
void wgmma_wait() {}
template <class Array>
void wgmma_pin(Array&) {}
inline int computed_here(int x) { return x; }
template <int N, bool transposed_b = false, bool transposed_a = false>
void wgmma(float (&)[N / 2], uint64_t, uint64_t, bool) {}
template <int N, bool transposed_b = false>
void wgmma(float (&)[N / 2], const uint32_t (&)[4], uint64_t, bool) {}
