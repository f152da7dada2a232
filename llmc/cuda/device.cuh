/*
What every kernel is written with, and the only file with PTX but for hopper.cuh. Two compilers read the kernels: nvcc,
for which the wrappers below are instructions, and g++, for which dev/emulator/include/device_wrappers.h implements the
same operations in C++ (and llmc/plan/include/device_wrappers.h records each launch and runs none).
test/cuda/conformance_cuda_test.cu checks each wrapper against its definition, on both.

  template <class T>
  __global__ void __launch_bounds__(256) scale_kernel(T* out, const T* inp, float factor, int64_t n) {
      const int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * Pack<T>::size;
      if (i >= n) return;
      Pack<T> x = load16(inp + i);
      for (int k = 0; k < x.size; k++) x[k] = from_float<T>(to_float(x[k]) * factor);
      store16(out + i, x);
  }
  launch(cuda, "scale", scale_kernel<T>, ceil_div(n, 256 * Pack<T>::size), 256, 0, out, inp, factor, n);

Kernels are templates, have no `asm`, no bare `__shared__` (use SMEM_STATIC, SMEM_DYNAMIC), no `<<<>>>` (use launch),
and use neither CUB nor cooperative groups. Whole warps reach every barrier, shuffle and matrix instruction.
*/
#pragma once
#include <cuda_runtime.h>
#include <cstdint>
#include <type_traits>
#include "llmc/base/bf16.h"         // bf16, to_float
#include "llmc/base/fp8.h"          // e4m3, e5m2, to_fp8
#include "llmc/cuda/cuda_device.h"  // Cuda, cuda_check

#define DEVICE __device__ __forceinline__

inline constexpr int kWarp = 32;
inline constexpr uint32_t kAllLanes = 0xFFFFFFFF;
// A block that takes more must request it. Static arrays count, too: at most kStaticSharedBytes (make cuda-check).
inline constexpr size_t kDefaultSharedBytes = 48 << 10, kStaticSharedBytes = 26 << 10;

template <class I>
__host__ DEVICE constexpr I ceil_div(I a, std::type_identity_t<I> b) {
    return (a + b - 1) / b;
}

// Sixteen bytes: what one thread loads or stores at a time.
template <class T>
struct alignas(16) Pack {
    static constexpr int size = 16 / sizeof(T);
    T values[size];
    DEVICE T& operator[](int i) { return values[i]; }
    DEVICE const T& operator[](int i) const { return values[i]; }
};

#ifdef __CUDACC__

// A shared array, or the block's dynamic shared memory (1024-byte aligned).
#define SMEM_STATIC(T, name, extents) __shared__ T name extents
#define SMEM_DYNAMIC(T, name)                                          \
    extern __shared__ __align__(1024) unsigned char dynamic_shared_[]; \
    T* const name = reinterpret_cast<T*>(dynamic_shared_)

template <class T>
DEVICE Pack<T> pack_of(int4 bits) {
    Pack<T> pack;
    memcpy(&pack, &bits, sizeof pack);
    return pack;
}
template <class T>
DEVICE int4 bits_of(const Pack<T>& pack) {
    int4 bits;
    memcpy(&bits, &pack, sizeof bits);
    return bits;
}
// `streaming`: used once, so it may be evicted from the caches first.
template <class T>
DEVICE Pack<T> load16(const T* from) {
    return pack_of<T>(*reinterpret_cast<const int4*>(from));
}
template <class T>
DEVICE Pack<T> load16_streaming(const T* from) {
    return pack_of<T>(__ldcs(reinterpret_cast<const int4*>(from)));
}
// From the L2 cache: what other blocks of the same kernel have stored.
template <class T>
DEVICE Pack<T> load16_uncached(const T* from) {
    return pack_of<T>(__ldcg(reinterpret_cast<const int4*>(from)));
}
template <class T>
DEVICE void store16(T* to, const Pack<T>& pack) {
    *reinterpret_cast<int4*>(to) = bits_of(pack);
}
template <class T>
DEVICE void store16_streaming(T* to, const Pack<T>& pack) {
    __stcs(reinterpret_cast<int4*>(to), bits_of(pack));
}

// Counters by which threads tell others, of other blocks too, how far they are. Who has seen a value, or waited for it,
// sees all that the thread had done before it published that value.
DEVICE void publish(int* counter, int value) {
    asm volatile("st.release.gpu.s32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}
DEVICE int published(const int* counter) {
    int value;
    asm volatile("ld.acquire.gpu.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    return value;
}
// Until the counter is `value`, which must be its value until this thread, or one that waits for it, goes on.
DEVICE void wait_until(const int* counter, int value) {
    while (published(counter) != value) {
    }
}

// Two floats rounded to bf16, `low` in the lower half: what matrix instructions take.
DEVICE uint32_t bf16x2(float low, float high) {
    uint32_t bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
template <class T>
DEVICE T from_float(float x) {
    if constexpr (std::is_same_v<T, float>) return x;
    if constexpr (std::is_same_v<T, bf16>) return bf16{uint16_t(bf16x2(x, 0.f))};
}

// Two floats rounded to FP8 and clamped to its range, `low` in the lower byte. One instruction from sm_89 on.
template <class Fp8>
DEVICE uint16_t fp8x2(float low, float high) {
#if __CUDA_ARCH__ >= 890
    uint16_t bits;
    if constexpr (std::is_same_v<Fp8, e4m3>)
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
    else
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
    return bits;
#else
    return uint16_t(to_fp8<Fp8>(low).bits | to_fp8<Fp8>(high).bits << 8);
#endif
}

// 2^x to 2 units in the last place; results below 2^-126 are 0
DEVICE float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// d += a b on tensor cores, by a whole warp: a (16, 16) row-major, b (16, 8) column-major, both bf16, d (16, 8) float.
// Which lane holds what: PTX ISA, "Matrix fragments for mma.m16n8k16".
DEVICE void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEVICE uint32_t shared_address(const void* pointer) { return uint32_t(__cvta_generic_to_shared(pointer)); }
// Loads four 8 x 8 matrices of 16-bit elements from shared memory. Lane l passes the address of row l % 8 of matrix
// l / 8 and receives two elements of row l / 4 of each matrix, from column 2 (l % 4) on; transposed: of its transpose.
DEVICE void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
DEVICE void ldmatrix_x4_transposed(uint32_t (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Copies sixteen bytes from global to shared memory, asynchronously; zeros if not `valid` (`from` is not read then, but
// must be a pointer). commit() closes a group; wait<n>() waits for all but this thread's last n groups. What other
// threads copied needs a barrier after it.
DEVICE void cp_async16(void* to_shared, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to_shared)), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}
DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int n>
DEVICE void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

template <class... P>
void launch(Cuda& cuda, const KernelLabel& label, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
            std::type_identity_t<P>... args) {
    const KernelScope scope(cuda, label);
    if (shared_bytes + kStaticSharedBytes > kDefaultSharedBytes)
        cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes)),
                   "%s: %zu bytes of shared memory a block", label.name, shared_bytes);
    kernel<<<grid, block, shared_bytes, cuda.stream>>>(args...);
    cuda_check(cudaGetLastError(), "%s: launching %u x %u x %u blocks of %u threads, %zu bytes of shared memory",
               label.name, grid.x, grid.y, grid.z, block.x * block.y * block.z, shared_bytes);
}

#else
#include <device_wrappers.h>
#endif

// Sixteen bytes of an array of n elements from element i on: those from n on are zeros.
template <class T>
DEVICE Pack<T> load16_below(const T* x, int64_t i, int64_t n) {
    if (i + Pack<T>::size <= n) return load16(x + i);
    Pack<T> pack;
    for (int k = 0; k < pack.size; k++) pack[k] = i + k < n ? x[i + k] : T{};
    return pack;
}

// As many floats as a Pack<T> has elements, for kernels that read f32 beside T: two 16-byte accesses for bf16.
//   float g[Pack<T>::size];
//   load_floats(g, grad + i);      16-byte aligned, as everywhere
template <int P>
DEVICE void load_floats(float (&to)[P], const float* from) {
    for (int k = 0; k < P; k += Pack<float>::size) {
        const Pack<float> pack = load16(from + k);
        for (int i = 0; i < pack.size; i++) to[k + i] = pack[i];
    }
}

template <int P>
DEVICE void store_floats(float* to, const float (&from)[P]) {
    for (int k = 0; k < P; k += Pack<float>::size) {
        Pack<float> pack;
        for (int i = 0; i < pack.size; i++) pack[i] = from[k + i];
        store16(to + k, pack);
    }
}

// For integers only: their sum is the same in any order.
DEVICE void atomic_add(uint64_t* to, uint64_t value) {
    atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
}

// The maximum of magnitudes as bits, which is the same in any order, too.
DEVICE void atomic_largest(float* to, uint32_t bits) { atomicMax(reinterpret_cast<uint32_t*>(to), bits); }

// Sums and maxima over a warp, the sum also over each group of adjacent lanes; every lane gets the result. The order is
// fixed: the same bits each time.
template <int lanes = kWarp, class T>
DEVICE T warp_sum(T x) {
#pragma unroll
    for (int offset = lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
    return x;
}
DEVICE float warp_max(float x) {
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, offset));
    return x;
}

// The same over a block of up to 1024 threads whose size is a multiple of 32. `shared` holds 32 floats, and may be
// reused at once.
template <class Combine>
DEVICE float block_reduce(float x, float neutral, float* shared, Combine combine) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, num_warps = blockDim.x / kWarp;
    x = combine(x);
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    x = combine(lane < num_warps ? shared[lane] : neutral);
    __syncthreads();
    return x;
}
DEVICE float block_sum(float x, float* shared) {
    return block_reduce(x, 0, shared, [](float y) { return warp_sum(y); });
}
DEVICE float block_max(float x, float* shared) {
    return block_reduce(x, -INFINITY, shared, [](float y) { return warp_max(y); });
}
