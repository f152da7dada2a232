/*
The part of the CUDA language that Anvil's kernels use, for g++: keywords, built-in variables and functions. It replaces
the toolkit's header of this name.
*/
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include "cuda_runtime_api.h"
#include "dev/emulator/emulator.h"

#define __shared__ static_assert(false, "use SMEM_STATIC or SMEM_DYNAMIC");

#define threadIdx (::emulator::current.thread->index)
#define blockIdx (::emulator::current.block_index)
#define blockDim (::emulator::current.block_dim)
#define gridDim (::emulator::current.grid_dim)

using std::max;
using std::min;

// ---- barriers --------------------------------------------------------------------------------------------------
inline void __syncthreads(EMULATOR_SITE) { emulator::block_barrier("__syncthreads", EMULATOR_HERE); }
inline int __syncthreads_or(int p, EMULATOR_SITE) {
    return emulator::block_vote("__syncthreads_or", EMULATOR_HERE, emulator::Vote::any, p);
}
inline int __syncthreads_and(int p, EMULATOR_SITE) {
    return emulator::block_vote("__syncthreads_and", EMULATOR_HERE, emulator::Vote::all, p);
}
inline int __syncthreads_count(int p, EMULATOR_SITE) {
    return emulator::block_vote("__syncthreads_count", EMULATOR_HERE, emulator::Vote::count, p);
}
inline void __syncwarp(uint32_t mask = 0xFFFFFFFF, EMULATOR_SITE) {
    emulator::warp_operation("__syncwarp", EMULATOR_HERE, mask, nullptr, nullptr, nullptr, true);
}
inline void __threadfence() { emulator::fence(); }

// ---- warps -----------------------------------------------------------------------------------------------------
namespace emulator {
template <class T>
struct Shuffle {
    T in, out;
    int source;
};
template <class T>
EMULATOR_UNCHECKED T shuffle(const char* op, Site site, uint32_t mask, T value, int source) {
    static_assert(std::is_trivially_copyable_v<T>);
    Shuffle<T> own{value, value, source};
    const Act act = [](void** operands, uint32_t mask, void*) EMULATOR_UNCHECKED {
        for (uint32_t left = mask; left; left &= left - 1) {
            auto* lane = static_cast<Shuffle<T>*>(operands[std::countr_zero(left)]);
            if (!(mask >> lane->source & 1))
                fail("a shuffle reads lane %d, which is not in its mask %08x", lane->source, mask);
            lane->out = static_cast<Shuffle<T>*>(operands[lane->source])->in;
        }
    };
    warp_operation(op, site, mask, &own, act, nullptr);
    return own.out;
}
// Returns `target`, or the calling lane if `target` is outside its group of `width` lanes.
inline int lane_in_group(int target, int width) {
    const int lane = int(current.thread->lane), first = lane & ~(width - 1);
    return target < first || target >= first + width ? lane : target;
}
template <class T, class Combine>
EMULATOR_UNCHECKED T warp_reduce(const char* op, Site site, uint32_t mask, T value, Combine combine) {
    const Act act = [](void** operands, uint32_t mask, void* argument) EMULATOR_UNCHECKED {
        Combine& combine = *static_cast<Combine*>(argument);
        T result = *static_cast<T*>(operands[std::countr_zero(mask)]);
        for (uint32_t left = mask & (mask - 1); left; left &= left - 1)
            result = combine(result, *static_cast<T*>(operands[std::countr_zero(left)]));
        for (uint32_t left = mask; left; left &= left - 1) *static_cast<T*>(operands[std::countr_zero(left)]) = result;
    };
    warp_operation(op, site, mask, &value, act, &combine);
    return value;
}
}  // namespace emulator

template <class T>
T __shfl_sync(uint32_t mask, T value, int lane, int width = 32, EMULATOR_SITE) {
    const int first = int(emulator::current.thread->lane) & ~(width - 1);
    return emulator::shuffle("__shfl_sync", EMULATOR_HERE, mask, value, first | (lane & (width - 1)));
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int bits, int width = 32, EMULATOR_SITE) {
    const int target = int(emulator::current.thread->lane) ^ bits;
    return emulator::shuffle("__shfl_xor_sync", EMULATOR_HERE, mask, value, emulator::lane_in_group(target, width));
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, unsigned delta, int width = 32, EMULATOR_SITE) {
    const int target = int(emulator::current.thread->lane + delta);
    return emulator::shuffle("__shfl_down_sync", EMULATOR_HERE, mask, value, emulator::lane_in_group(target, width));
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, unsigned delta, int width = 32, EMULATOR_SITE) {
    const int target = int(emulator::current.thread->lane) - int(delta);
    return emulator::shuffle("__shfl_up_sync", EMULATOR_HERE, mask, value, emulator::lane_in_group(target, width));
}
inline int __any_sync(uint32_t mask, int p, EMULATOR_SITE) {
    return emulator::warp_reduce("__any_sync", EMULATOR_HERE, mask, int(p != 0), [](int a, int b) { return a | b; });
}
inline int __all_sync(uint32_t mask, int p, EMULATOR_SITE) {
    return emulator::warp_reduce("__all_sync", EMULATOR_HERE, mask, int(p != 0), [](int a, int b) { return a & b; });
}
inline uint32_t __ballot_sync(uint32_t mask, int p, EMULATOR_SITE) {
    return emulator::warp_reduce("__ballot_sync", EMULATOR_HERE, mask, p ? 1u << emulator::current.thread->lane : 0u,
                                 [](uint32_t a, uint32_t b) { return a | b; });
}
inline uint32_t __reduce_add_sync(uint32_t mask, uint32_t x, EMULATOR_SITE) {
    return emulator::warp_reduce("__reduce_add_sync", EMULATOR_HERE, mask, x,
                                 [](uint32_t a, uint32_t b) { return a + b; });
}

// ---- atomics: relaxed until the thread has called __threadfence -------------------------------------------------
namespace emulator {
template <class T, class Change>
T read_modify_write(T* pointer, Change change) {
    using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    static_assert(sizeof(T) == sizeof(Bits));
    Bits* bits = reinterpret_cast<Bits*>(pointer);
    Bits old = __atomic_load_n(bits, __ATOMIC_RELAXED), changed;
    do changed = std::bit_cast<Bits>(T(change(std::bit_cast<T>(old))));
    while (!__atomic_compare_exchange_n(bits, &old, changed, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
    return std::bit_cast<T>(old);
}
}  // namespace emulator
template <class T>
T atomicAdd(T* pointer, std::type_identity_t<T> value) {
    return emulator::read_modify_write(pointer, [=](T old) { return old + value; });
}
template <class T>
T atomicMax(T* pointer, std::type_identity_t<T> value) {
    return emulator::read_modify_write(pointer, [=](T old) { return max(old, value); });
}
inline uint32_t atomicInc(uint32_t* pointer, uint32_t limit) {
    return emulator::read_modify_write(pointer, [=](uint32_t old) { return old >= limit ? 0 : old + 1; });
}

// ---- arithmetic ------------------------------------------------------------------------------------------------
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1 / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline int __popc(uint32_t x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(uint32_t(x)); }
inline int __ffs(int x) { return x ? std::countr_zero(uint32_t(x)) + 1 : 0; }
template <class T>
T __ldg(const T* p) {
    return *p;
}
template <class T>
T __ldcs(const T* p) {
    return *p;
}
template <class T>
void __stcs(T* p, std::type_identity_t<T> value) {
    *p = value;
}
