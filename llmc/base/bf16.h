/*
bfloat16: the upper half of a float. One type for the CPU, CUDA kernels and files. It is for storage only; arithmetic is
done in float:

  float x = to_float(weight[i]);        exact
  weight[i] = to_bf16(x);               rounded to nearest, ties to even; NaN stays NaN

CUDA kernels convert with from_float<T>() of llmc/cuda/device.cuh, which is one instruction.
*/
#pragma once
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define ANVIL_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ANVIL_HOST_DEVICE inline
#endif

struct bf16 {
    uint16_t bits;
};

// Exact.
ANVIL_HOST_DEVICE float to_float(float x) { return x; }
ANVIL_HOST_DEVICE float to_float(bf16 x) {
    const uint32_t bits = uint32_t(x.bits) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Rounds to nearest, ties to even. NaN stays NaN; a magnitude beyond the largest bf16 becomes infinity.
ANVIL_HOST_DEVICE bf16 to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    // Branch-free, like the GPU's instruction. MemorySanitizer reports only branches that depend on uninitialized
    // memory, so converting such memory is not reported.
    const uint32_t nan = 0u - uint32_t((bits & 0x7FFFFFFF) > 0x7F800000), rounded = bits + 0x7FFF + (bits >> 16 & 1);
    return bf16{uint16_t((rounded >> 16 & ~nan) | ((bits >> 16 | 0x40) & nan))};
}
