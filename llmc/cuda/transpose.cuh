/*
out (C, R) = transpose of inp (R, C), not in place

Work      a block a tile of 64 x 64, through shared memory: rows of inp are read and rows of out written, whole. A row
of the tile is one bank longer than it need be, so that a column lies in as many banks as it has rows Bytes
2*R*C*sizeof(T) Accuracy  exact (test/transpose_cuda_test.cu) Requires  R up to 4 million (the grid); any C
*/
#pragma once
#include "llmc/cuda/device.cuh"  // launch, ceil_div

inline constexpr int kTransposeTile = 64, kTransposeRows = 4;

template <class T>
__global__ void __launch_bounds__(kTransposeTile* kTransposeRows)
    transpose_kernel(T* out, const T* inp, int64_t R, int64_t C) {
    SMEM_STATIC(T, tile, [kTransposeTile][kTransposeTile + 4 / sizeof(T)]);
    const int64_t row = int64_t(blockIdx.y) * kTransposeTile, col = int64_t(blockIdx.x) * kTransposeTile;
    for (int i = threadIdx.y; i < kTransposeTile; i += kTransposeRows)
        if (row + i < R && col + threadIdx.x < C) tile[i][threadIdx.x] = inp[(row + i) * C + col + threadIdx.x];
    __syncthreads();
    for (int i = threadIdx.y; i < kTransposeTile; i += kTransposeRows)
        if (col + i < C && row + threadIdx.x < R) out[(col + i) * R + row + threadIdx.x] = tile[threadIdx.x][i];
}

template <class T>
void transpose(Cuda& cuda, T* out, const T* inp, int64_t R, int64_t C) {
    launch(cuda, "transpose", transpose_kernel<T>,
           dim3(unsigned(ceil_div(C, int64_t(kTransposeTile))), unsigned(ceil_div(R, int64_t(kTransposeTile)))),
           dim3(kTransposeTile, kTransposeRows), 0, out, inp, R, C);
}
