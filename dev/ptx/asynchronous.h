// Asynchronous copies and matrix products, as instructions.cpp calls them: see asynchronous.cpp.
#pragma once
#include "dev/ptx/machine.h"

namespace ptx {

// What a kernel gets in place of a CUtensorMap: dev/emulator/hopper.h declares it for the launchers.
struct TensorMap {
    const char* base;
    int64_t dims[4], strides[4];  // in elements; in bytes
    int32_t box[4];
};

void mbarrier_init(Warp& warp, uint32_t at, uint32_t arrivals);
void mbarrier_fence_init(Warp& warp);
void mbarrier_arrive(Warp& warp, uint32_t at, uint32_t bytes, const Clocks& seen);
bool mbarrier_test(Warp& warp, uint32_t at, uint32_t parity);
void tma_load(Warp& warp, uint32_t to, const TensorMap& map, uint32_t mbarrier, const int32_t (&corner)[4],
              uint32_t lane);
void bulk_load(Warp& warp, uint32_t to, uint64_t from, uint32_t bytes, uint32_t mbarrier, uint32_t lane);
void fence_async(Warp& warp, uint32_t lanes);
void cp_async(Warp& warp, uint32_t to, uint64_t from, uint32_t read_bytes, uint32_t lane);
void wgmma(Warp& warp, Product&& product);

}  // namespace ptx
