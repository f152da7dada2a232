// Checks of what a GPU and its kernels can take, made before memory is allocated for it.
#pragma once
#include <cstdint>
#include "llmc/base/check.h"        // require
#include "llmc/cuda/cuda_device.h"  // Cuda
#include "llmc/ops/attention.h"     // kMaxHeadSize

// Throws an Error if no kernel takes heads of this size: they are read 16 bytes at a time.
template <class T>
void check_head_size(int64_t HS) {
    constexpr int P = 16 / int(sizeof(T));
    require(HS > 0 && HS % P == 0 && HS <= kMaxHeadSize,
            "heads of %ld channels: on a GPU attention in %s takes multiples of %d up to %ld: choose --channels and "
            "--num-heads so that channels / heads is one%s",
            HS, P == 4 ? "fp32" : "bf16", P, kMaxHeadSize,
            HS > kMaxHeadSize       ? ""  // the CPU does not take them, either
            : P == 8 && HS % 4 == 0 ? ", or give --dtype fp32 or --device cpu"
                                    : ", or give --device cpu");
}

inline void check_rotary_head_size(int64_t HS) {
    require(HS % 8 == 0 && HS <= kMaxHeadSize,
            "positions = rotary: heads of %ld channels: on a GPU they are multiples of 8 up to %ld: choose --channels "
            "and --num-heads so",
            HS, kMaxHeadSize);
}

inline constexpr int kOldestFp8 = 89;  // Ada

inline void check_fp8_device(const Cuda& cuda, const char* op) {
    require(cuda.compute_capability >= kOldestFp8,
            "%s: %s has no products in fp8, which begin with Ada (sm_89), and this is sm_%d: train in bf16", op,
            cuda.name.c_str(), cuda.compute_capability);
}

inline constexpr int kOldestMx = 100;  // Blackwell

inline void check_mx_device(const Cuda& cuda, const char* op) {
    require(cuda.compute_capability >= kOldestMx,
            "%s: %s has no products in MX, which begin with Blackwell (sm_100), and this is sm_%d: choose another "
            "--fp8-scaling",
            op, cuda.name.c_str(), cuda.compute_capability);
}
