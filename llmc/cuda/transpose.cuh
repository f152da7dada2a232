/*
out (C, R) = transpose of inp (R, C), not in place; T f32 or bf16

Work      one block per tile of 64 x 64, through shared memory: packs of inp's rows are read and packs of out's rows
          written; single elements where either's rows are not a multiple of 16 bytes
Banks     rows of the tile are padded by 4 bytes. With P elements per pack, a warp loads 8 packs of 4 rows and reads
          32 / P packs of P columns: each time the k-th elements of its lanes are in different banks
Bytes     2*R*C*sizeof(T)
Accuracy  exact (test/cuda/transpose_cuda_test.cu)
Requires  pointers 16-byte aligned, R up to 4 million (the grid); any C
*/
#pragma once
#include "llmc/cuda/device.cuh"  // Pack, load16, store16, launch
#include "llmc/ops/op_cost.h"    // elements_cost

inline constexpr int kTransposeTile = 64, kTransposeThreads = 256;

template <class T, int P>
__global__ void __launch_bounds__(kTransposeThreads) transpose_kernel(T* out, const T* inp, int64_t R, int64_t C) {
    constexpr int kAlong = P == 1 ? kWarp : 8;  // packs of a row that a warp loads
    constexpr int kPacks = kTransposeTile * kTransposeTile / P;
    SMEM_STATIC(T, tile, [kTransposeTile][kTransposeTile + 4 / sizeof(T)]);
    const int64_t row = int64_t(blockIdx.y) * kTransposeTile, col = int64_t(blockIdx.x) * kTransposeTile;
#pragma unroll
    for (int i = threadIdx.x; i < kPacks; i += kTransposeThreads) {
        const int lane = i % kWarp, unit = i / kWarp, units = kTransposeTile / P / kAlong;
        const int r = unit / units * (kWarp / kAlong) + lane / kAlong, c = (unit % units * kAlong + lane % kAlong) * P;
        if (row + r >= R || col + c >= C) continue;
        const T* from = inp + (row + r) * C + col + c;
        if constexpr (P == 1) {
            tile[r][c] = *from;
        } else {
            const Pack<T> x = load16_streaming(from);
            for (int k = 0; k < P; k++) tile[r][c + k] = x[k];
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = threadIdx.x; i < kPacks; i += kTransposeThreads) {
        const int lane = i % kWarp, unit = i / kWarp;  // two units are P whole columns
        const int c = unit / 2 * P + lane % P, r = (unit % 2 * (kWarp / P) + lane / P) * P;
        if (row + r >= R || col + c >= C) continue;
        T* to = out + (col + c) * R + row + r;
        if constexpr (P == 1) {
            *to = tile[r][c];
        } else {
            Pack<T> x;
            for (int k = 0; k < P; k++) x[k] = tile[r + k][c];
            store16(to, x);
        }
    }
}

template <class T>
void transpose(Cuda& cuda, T* out, const T* inp, int64_t R, int64_t C) {
    constexpr int P = Pack<T>::size;
    const auto kernel = R % P == 0 && C % P == 0 ? transpose_kernel<T, P> : transpose_kernel<T, 1>;
    launch(cuda, {"transpose", elements_cost<T>(2, 0, R * C)}, kernel,
           dim3(unsigned(ceil_div(C, int64_t(kTransposeTile))), unsigned(ceil_div(R, int64_t(kTransposeTile)))),
           kTransposeThreads, 0, out, inp, R, C);
}
