/*
The CUDA language for a device that launches nothing: what kernels call is declared, so that the files that launch them
compile, and never runs.
*/
#pragma once
#include <cuda_runtime_api.h>

inline constexpr uint3 threadIdx = {}, blockIdx = {};
inline constexpr dim3 blockDim, gridDim;

using std::fma;
using std::max;
using std::min;

inline void __syncthreads() {}
inline int __syncthreads_or(int p) { return p; }
inline int __syncthreads_and(int p) { return p; }
inline int __syncthreads_count(int p) { return p; }
inline void __syncwarp(uint32_t = 0) {}
inline void __threadfence() {}
template <class T>
T __shfl_sync(uint32_t, T value, int, int = 32) {
    return value;
}
template <class T>
T __shfl_xor_sync(uint32_t, T value, int, int = 32) {
    return value;
}
template <class T>
T __shfl_down_sync(uint32_t, T value, unsigned, int = 32) {
    return value;
}
template <class T>
T __shfl_up_sync(uint32_t, T value, unsigned, int = 32) {
    return value;
}
inline int __any_sync(uint32_t, int p) { return p; }
inline int __all_sync(uint32_t, int p) { return p; }
inline uint32_t __ballot_sync(uint32_t, int p) { return uint32_t(p); }
inline uint32_t __reduce_add_sync(uint32_t, uint32_t x) { return x; }
template <class T>
T atomicAdd(T* to, std::type_identity_t<T>) {
    return *to;
}
template <class T>
T atomicMax(T* to, std::type_identity_t<T>) {
    return *to;
}
inline uint32_t atomicInc(uint32_t* to, uint32_t) { return *to; }
inline float rsqrtf(float x) { return x; }
inline float __expf(float x) { return x; }
inline float __logf(float x) { return x; }
inline float __fdividef(float a, float) { return a; }
inline float __frcp_rn(float x) { return x; }
inline float __fsqrt_rn(float x) { return x; }
inline float __fmul_rn(float a, float) { return a; }
inline float __fdiv_rn(float a, float) { return a; }
inline float __int_as_float(int) { return 0; }
inline float __uint_as_float(uint32_t) { return 0; }
inline int __float_as_int(float) { return 0; }
inline uint32_t __float_as_uint(float) { return 0; }
inline int __popc(uint32_t) { return 0; }
inline int __clz(int) { return 0; }
inline int __ffs(int) { return 0; }
template <class T>
T __ldg(const T* p) {
    return *p;
}
template <class T>
T __ldcs(const T* p) {
    return *p;
}
template <class T>
void __stcs(T*, std::type_identity_t<T>) {}
