/*
Instructions of Hopper alone, for kernels that are written for it: asynchronous copies of tiles (TMA), barriers in
shared memory that count bytes (mbarrier), and GEMMs of 64 rows by a warpgroup, four warps, with operands in shared
memory (wgmma). All of them run while threads do other things:

  mbarrier_arrive_expect(&full, bytes);             one thread: this phase does not end before so many bytes have come
  tma_load(tile, map, &full, c0, c1, c2, c3);
  mbarrier_wait(&full, parity);                     readers: until the phase of this parity, 0 at first, has ended
  wgmma_fence();
  for (int k = 0; k < 4; k++) wgmma<128>(d, a + 2 * k, b + 2 * k, k > 0);       k16 by k16
  wgmma_commit();
  wgmma_wait<0>();                                  until here neither d nor the operands may be touched

Code for sm_90a has these instructions and runs on compute capability 9.0 alone; elsewhere the wrappers are traps, and
built_for_hopper() says which one this program has. dev/emulator/include/hopper_wrappers.h implements them in C++, and
test/cuda/hopper_cuda_test.cu checks each against its definition. Layouts and limits are from the PTX ISA 9.0, chapters
mbarrier, cp.async.bulk.tensor, wgmma and setmaxnreg.
*/
#pragma once
#include <cstdint>
#include "llmc/base/check.h"  // ensure
#include "llmc/cuda/device.cuh"

inline constexpr int kWarpgroup = 4 * kWarp;
inline constexpr int kTmaColumns = 64;  // of bf16: 128 bytes, the width of the swizzle

// A tensor of bf16 in four dimensions, the innermost first, and the box of it that one load copies. Strides in
// elements; that of dimension 0 is 1. A box is 64 elements wide.
struct TensorLayout {
    int64_t dims[4];
    int64_t strides[3];
    int box[4];
};

#ifdef __CUDACC__
#include <cuda.h>
using TensorMap = CUtensorMap;

inline bool built_for_hopper() {
#ifdef ANVIL_HOPPER  // set where a kernel is compiled for sm_90a
    return true;
#else
    return false;
#endif
}

inline TensorMap encode_tensor_map(const bf16* base, const TensorLayout& layout) {
    // Looks up the driver's function at run time, so that the program does not link to the driver's library.
    static void* const encode = [] {
        void* function = nullptr;
        cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
        cuda_check(
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
            "looking for cuTensorMapEncodeTiled");
#else
        cuda_check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found),
                   "looking for cuTensorMapEncodeTiled");
#endif
        ensure(found == cudaDriverEntryPointSuccess);
        return function;
    }();
    TensorMap map;
    cuuint64_t dims[4], strides[3];
    cuuint32_t box[4];
    const cuuint32_t steps[4] = {1, 1, 1, 1};
    for (int i = 0; i < 4; i++) dims[i] = cuuint64_t(layout.dims[i]), box[i] = cuuint32_t(layout.box[i]);
    for (int i = 0; i < 3; i++) strides[i] = cuuint64_t(layout.strides[i]) * sizeof(bf16);
    const CUresult status = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode)(
        &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<bf16*>(base), dims, strides, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    ensure(status == CUDA_SUCCESS);
    return map;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HOPPER_ASM(...) asm volatile(__VA_ARGS__)
#else
#define HOPPER_ASM(...) __trap()
#endif

// ---- mbarrier ------------------------------------------------------------------------------------------------------
// A phase ends when `arrivals` threads have arrived and all expected bytes have come; the next one begins at once.
struct alignas(8) Mbarrier {
    uint64_t opaque;
};
DEVICE void mbarrier_init(Mbarrier* barrier, int arrivals) {
    HOPPER_ASM("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Makes barriers visible to TMA, too: called by the thread that initialized them, before the block's __syncthreads().
DEVICE void mbarrier_fence_init() { HOPPER_ASM("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void mbarrier_arrive(Mbarrier* barrier) {
    HOPPER_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Expects `bytes` more in this phase, then arrives.
DEVICE void mbarrier_arrive_expect(Mbarrier* barrier, int bytes) {
    HOPPER_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
// Waits until the phase of this parity has ended. On a new barrier the phase of parity 1 counts as ended.
DEVICE void mbarrier_wait(Mbarrier* barrier, int parity) {
    uint32_t is_over = 0;
    do
        HOPPER_ASM(
            "{\n"
            ".reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n"
            "}"
            : "=r"(is_over)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
    while (!is_over);
}

// ---- named barriers ------------------------------------------------------------------------------------------------
// Barrier `number` is 1 to 15 (0 is __syncthreads), for `threads` threads in whole warps, some of which only arrive.
DEVICE void barrier_sync(int number, int threads) {
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
DEVICE void barrier_arrive(int number, int threads) {
    asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// ---- TMA -----------------------------------------------------------------------------------------------------------
// Called by one thread: copies the box at these coordinates to shared memory, 1024-byte aligned, as contiguous rows of
// 128 bytes. What lies outside of the tensor becomes zeros and counts among the bytes. The 16-byte chunk c of row r is
// stored at c ^ (r % 8).
DEVICE void tma_load(void* to, const TensorMap& map, Mbarrier* barrier, int c0, int c1, int c2, int c3) {
    HOPPER_ASM(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
        "[%2];" ::"r"(shared_address(to)),
        "l"(&map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
        : "memory");
}
// The same for bytes in a row, without a map: multiples of 16, as are the addresses.
DEVICE void bulk_load(void* to, const void* from, int bytes, Mbarrier* barrier) {
    HOPPER_ASM("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
// Makes this thread's stores to shared memory visible to TMA and wgmma; if other threads issue these, a barrier must
// follow.
DEVICE void fence_async() { HOPPER_ASM("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- registers -----------------------------------------------------------------------------------------------------
// Called by whole warpgroups: each thread has n registers from here on, a multiple of 8 from 24 to 256. give frees
// some; take waits until there are enough. The kernel must have __launch_bounds__.
template <int n>
DEVICE void give_registers() {
    static_assert(n >= 24 && n <= 256 && n % 8 == 0);
    HOPPER_ASM("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}
template <int n>
DEVICE void take_registers() {
    static_assert(n >= 24 && n <= 256 && n % 8 == 0);
    HOPPER_ASM("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}

// ---- wgmma ---------------------------------------------------------------------------------------------------------
// The descriptor of a tile as TMA stores it, from `start` on: rows of 64 elements of k, or, transposed, k rows of 64
// columns (of M or N), with the next 64 columns `next_columns` bytes away; of M there are no more than 64. 16 elements
// of k further is 32 bytes in the first form (+ 2), 2048 in the second (+ 128).
DEVICE uint64_t wgmma_tile(const void* start, int next_columns = 16) {
    return uint64_t((shared_address(start) & 0x3FFFF) >> 4) | uint64_t(next_columns >> 4) << 16 |
           uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}
// Needed before the first wgmma, and after anything else has touched its registers, d or a.
DEVICE void wgmma_fence() { HOPPER_ASM("wgmma.fence.sync.aligned;" ::: "memory"); }
// Closes a group. wait<n>() waits until all groups but the last n are finished.
DEVICE void wgmma_commit() { HOPPER_ASM("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int n>
DEVICE void wgmma_wait() {
    HOPPER_ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}
// Keeps the compiler, which does not know that wgmma is asynchronous, from moving uses of these registers across this
// point. Needed before a fence and after a wait.
template <int n>
DEVICE void wgmma_pin(float (&d)[n]) {
#pragma unroll
    for (int i = 0; i < n; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int n>
DEVICE void wgmma_pin(uint32_t (&a)[n][4]) {
#pragma unroll
    for (int i = 0; i < 4 * n; i++) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

// x. The compiler computes nothing from it earlier than here: what it computes before a loop takes registers from all
// that is in the loop.
DEVICE int computed_here(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

#define WGMMA_D32                                                                                                     \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_D64                                                                                                      \
    WGMMA_D32                                                                                                          \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
    "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_F8(i)                                                                                             \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define WGMMA_F32(i) WGMMA_F8(i), WGMMA_F8(i + 8), WGMMA_F8(i + 16), WGMMA_F8(i + 24)

// d (64, N) = a (64, 16) b (16, N), added to d if `add`; bf16, sums in float. Warp w of the group, lane l, with
// g = l / 4 and c = 2 (l % 4): d[i] is in row 16 w + g + 8 (i / 2 % 2), column 8 (i / 4) + c + i % 2. a: 64 rows
// of k, or, transposed, k rows of 64. b: N rows of k, or, transposed, k rows of N.
template <int N, bool transposed_b = false, bool transposed_a = false>
DEVICE void wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, bool add) {
    static_assert(N == 64 || N == 128);
    if constexpr (N == 64)
        HOPPER_ASM(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " WGMMA_D32 "}, %32, %33, p, 1, 1, %35, %36;\n}"
            : WGMMA_F32(0)
            : "l"(a), "l"(b), "r"(int(add)), "n"(int(transposed_a)), "n"(int(transposed_b)));
    else
        HOPPER_ASM(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " WGMMA_D64 "}, %64, %65, p, 1, 1, %67, %68;\n}"
            : WGMMA_F32(0), WGMMA_F32(32)
            : "l"(a), "l"(b), "r"(int(add)), "n"(int(transposed_a)), "n"(int(transposed_b)));
}
// The same with a in registers, warp by warp as in mma_m16n8k16: two adjacent blocks of 8 columns of a d, rounded. They
// must not change before the wait.
template <int N, bool transposed_b = false>
DEVICE void wgmma(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool add) {
    static_assert(N == 64 || N == 128);
    if constexpr (N == 64)
        HOPPER_ASM(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " WGMMA_D32
            "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
            : WGMMA_F32(0)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)), "n"(int(transposed_b)));
    else
        HOPPER_ASM(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " WGMMA_D64
            "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"
            : WGMMA_F32(0), WGMMA_F32(32)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)), "n"(int(transposed_b)));
}

#undef WGMMA_D32
#undef WGMMA_D64
#undef WGMMA_F8
#undef WGMMA_F32
#undef HOPPER_ASM

#else
#include <hopper_wrappers.h>
#endif

inline bool takes_hopper_kernels(const Cuda& cuda) { return cuda.compute_capability == 90 && built_for_hopper(); }

inline TensorMap tensor_map(const bf16* base, const TensorLayout& layout) {
    ensure(reinterpret_cast<uintptr_t>(base) % 16 == 0 && layout.box[0] == kTmaColumns);
    for (const int64_t stride : layout.strides) ensure(stride * int64_t(sizeof(bf16)) % 16 == 0);
    for (int i = 0; i < 4; i++) ensure(layout.dims[i] > 0 && layout.box[i] > 0 && layout.box[i] <= 256);
    return encode_tensor_map(base, layout);
}
