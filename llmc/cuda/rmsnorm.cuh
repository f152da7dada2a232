/*
RMSNorm:   out = inp * rstd * weight,   rstd = 1 / sqrt(mean(inp^2) + eps),   fused with the residual stream's add

  inp, out, dinp, dout (N, C) T     weight (C) T, or null for all ones     rstd (N) f32: saved for backward
  dweight (C) f32, or null          dinp = or += , dweight +=                (llmc/ops/rmsnorm.h has the formulas)

Math      f32
Work      forward: one warp per row, kept in shared memory between the passes. backward: a block takes kRows rows at a
          time, a thread kPacks packs of columns. It loads all of them before the round's only barrier and sums their
          dweight in registers; then add_partials. Codes in FP8 instead of the output: delayed_codes.cuh
Bytes     forward 2, with the residual 4, backward 4 times N*C*sizeof(T), 3 where dinp is overwritten
Accuracy  half a unit of T for what is stored, and roundings of f32 (test/cuda/rmsnorm_cuda_test.cu)
Requires  C % Pack<T>::size == 0, pointers 16-byte aligned, C <= 1024 Pack<T>::size in backward
*/
#pragma once
#include <algorithm>
#include "llmc/base/check.h"            // require, ensure
#include "llmc/cuda/delayed_codes.cuh"  // CodesTile, codes_rows
#include "llmc/cuda/device.cuh"         // Pack, load16, store16, warp_sum, store_floats, launch
#include "llmc/cuda/reduce.cuh"         // add_partials
#include "llmc/ops/op_cost.h"           // kResidualRmsnormForward, ...

inline constexpr int kRmsRowsPerBlock = 4;  // forward
inline constexpr int kRmsMaxThreads = 512;  // backward: leaves each thread 128 registers
template <class T>
inline constexpr int kRmsThreadsPerSm =
    sizeof(T) == 2 ? 512 : 640;  // backward: limited by registers (doc/results/occupancy.txt)

// The weights of a pack of columns; ones if weight is null, and multiplying by one is exact.
template <class T>
DEVICE Pack<T> weights_of(const T* weight, int c) {
    if (weight) return load16(weight + c);
    Pack<T> ones;
    for (int k = 0; k < ones.size; k++) ones[k] = from_float<T>(1);
    return ones;
}

// Normalizes row n with a warp. load(i) returns the pack of elements from i on, and may store it elsewhere; it is
// called once per pack. `row` (C) is shared memory that keeps the packs; a lane reads only what it wrote itself.
// store(c, y) gets the row's elements from c on; their places in `row` may be overwritten then.
template <class T, class Load, class Store>
DEVICE void rmsnorm_row(float* rstd, T* row, const T* weight, int64_t n, int C, float eps, Load load, Store store) {
    constexpr int P = Pack<T>::size;
    const int first = threadIdx.x * P, step = kWarp * P;
    float squares = 0;
    for (int c = first; c < C; c += step) {
        const Pack<T> x = load(n * C + c);
        store16(row + c, x);
        for (int k = 0; k < P; k++) squares = fmaf(to_float(x[k]), to_float(x[k]), squares);
    }
    const float s = 1 / sqrtf(warp_sum(squares) / float(C) + eps);
    for (int c = first; c < C; c += step) {
        const Pack<T> x = load16(row + c), w = weights_of(weight, c);
        Pack<T> y;
        for (int k = 0; k < P; k++) y[k] = from_float<T>(to_float(x[k]) * s * to_float(w[k]));
        store(c, y);
    }
    if (threadIdx.x == 0) rstd[n] = s;
}
template <class T, class Load>
DEVICE void rmsnorm_row(T* out, float* rstd, T* row, const T* weight, int64_t n, int C, float eps, Load load) {
    rmsnorm_row(rstd, row, weight, n, C, eps, load, [=](int c, const Pack<T>& y) { store16(out + n * C + c, y); });
}

// The pack of inp1 from i on or, with kResidual, of residual = inp1 + inp2, which is also stored.
template <bool kResidual, class T>
DEVICE Pack<T> load_residual(T* residual, const T* inp1, const T* inp2, int64_t i) {
    Pack<T> x = load16_streaming(inp1 + i);
    if constexpr (kResidual) {
        const Pack<T> y = load16_streaming(inp2 + i);
        for (int k = 0; k < x.size; k++) x[k] = from_float<T>(to_float(x[k]) + to_float(y[k]));
        store16(residual + i, x);
    }
    return x;
}

template <class T, bool kResidual>
__global__ void __launch_bounds__(kWarp* kRmsRowsPerBlock)
    rmsnorm_forward_kernel(T* residual, T* out, float* rstd, const T* inp1, const T* inp2, const T* weight, int64_t N,
                           int C, float eps) {
    SMEM_DYNAMIC(T, rows);  // (kRmsRowsPerBlock, C)
    const int64_t n = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
    if (n >= N) return;  // whole warps return together
    rmsnorm_row(out, rstd, rows + threadIdx.y * C, weight, n, C, eps,
                [=](int64_t i) { return load_residual<kResidual>(residual, inp1, inp2, i); });
}

// Writes codes instead of the output; num_rows is codes_rows().
template <class T, bool kResidual>
__global__ void __launch_bounds__(kCodesThreads, 2)
    rmsnorm_codes_kernel(T* residual, DelayedCodes out, float* rstd, const T* inp1, const T* inp2, const T* weight,
                         int64_t N, int C, float eps, int num_rows) {
    SMEM_DYNAMIC(T, rows);  // (num_rows, C)
    CodesTile<T> tile(rows, out, N, C, num_rows);
    for (int r = int(threadIdx.y); r < num_rows && tile.first_row + r < N; r += kCodesWarps)
        rmsnorm_row(
            rstd, tile.row(r), weight, tile.first_row + r, C, eps,
            [=](int64_t i) { return load_residual<kResidual>(residual, inp1, inp2, i); },
            [&](int c, const Pack<T>& y) { tile.store(r, c, y); });
    tile.finish();
}

template <class T, bool kResidual>
void launch_rmsnorm_forward(Cuda& cuda, T* residual, const GemmInput<T>& out, float* rstd, const T* inp1, const T* inp2,
                            const T* weight, int64_t N, int64_t C, float eps) {
    require(C % Pack<T>::size == 0, "rmsnorm of %ld channels: they must be a multiple of %d, 16 bytes", C,
            Pack<T>::size);
    ensure(!out.amax && !out.column_sums);
    if (const int num_rows = out.codes.codes ? codes_rows<T>(cuda, C) : 0) {
        check_codes("rmsnorm", N, C);
        return launch(cuda, "rmsnorm_codes", rmsnorm_codes_kernel<T, kResidual>, unsigned(ceil_div(N, num_rows)),
                      dim3(kWarp, kCodesWarps), size_t(num_rows) * size_t(C) * sizeof(T), residual, out.codes, rstd,
                      inp1, inp2, weight, N, int(C), eps, num_rows);
    }
    launch(cuda, "rmsnorm_forward", rmsnorm_forward_kernel<T, kResidual>, unsigned(ceil_div(N, kRmsRowsPerBlock)),
           dim3(kWarp, kRmsRowsPerBlock), size_t(kRmsRowsPerBlock) * size_t(C) * sizeof(T), residual, out.values, rstd,
           inp1, inp2, weight, N, int(C), eps);
}

template <class T>
void rmsnorm_forward(Cuda& cuda, const GemmInput<T>& out, float* rstd, const T* inp,
                     std::type_identity_t<const T*> weight, int64_t N, int64_t C, float eps) {
    run_norm<T>(__func__, cuda, elements_cost<T>(kRmsnormForward, N * C), out, N, C,
                [&] { launch_rmsnorm_forward<T, false>(cuda, nullptr, out, rstd, inp, nullptr, weight, N, C, eps); });
}

template <class T>
void residual_rmsnorm_forward(Cuda& cuda, T* residual, const GemmInput<T>& out, float* rstd, const T* inp1,
                              const T* inp2, std::type_identity_t<const T*> weight, int64_t N, int64_t C, float eps) {
    run_norm<T>(__func__, cuda, elements_cost<T>(kResidualRmsnormForward, N * C), out, N, C,
                [&] { launch_rmsnorm_forward<T, true>(cuda, residual, out, rstd, inp1, inp2, weight, N, C, eps); });
}

// With x = inp * rstd and g = dout * weight:   dinp = or += rstd * (g - x * mean(g * x)),   dweight += sum of dout * x
// partials (gridDim.x, C), or null without dweight
template <class T, int kPacks, int kRows>
__global__ void __launch_bounds__(kRmsMaxThreads)
    rmsnorm_backward_kernel(T* dinp, float* partials, const T* dout, const T* inp, const T* weight, const float* rstd,
                            int64_t N, int C, bool add) {
    constexpr int P = Pack<T>::size;
    SMEM_STATIC(float, sums, [2][kWarp][kRows]);  // two buffers in turn: one barrier per round is enough
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, num_warps = blockDim.x / kWarp;
    const auto column = [&](int i) { return int(threadIdx.x + i * blockDim.x) * P; };
    float dw[kPacks][P] = {};
    const float one_over_C = 1 / float(C);
    const int64_t num_rounds = ceil_div(N, int64_t(kRows));
    int turn = 0;
    for (int64_t round = blockIdx.x; round < num_rounds; round += gridDim.x, turn ^= 1) {
        const int64_t first = round * kRows;
        Pack<T> x_pack[kRows][kPacks], d_pack[kRows][kPacks];
        float s[kRows], sum[kRows] = {};
#pragma unroll
        for (int r = 0; r < kRows; r++) {
            const int64_t n = first + r < N ? first + r : N - 1;  // the last row again, rather than a branch
            s[r] = rstd[n];
#pragma unroll
            for (int i = 0; i < kPacks; i++) {
                if (column(i) >= C) continue;
                x_pack[r][i] = load16(inp + n * C + column(i));
                d_pack[r][i] = load16(dout + n * C + column(i));
            }
        }
#pragma unroll
        for (int i = 0; i < kPacks; i++) {
            if (column(i) >= C) continue;
            const Pack<T> w = weights_of(weight, column(i));
#pragma unroll
            for (int r = 0; r < kRows; r++)
#pragma unroll
                for (int k = 0; k < P; k++) {
                    const float x = to_float(x_pack[r][i][k]) * s[r], d = to_float(d_pack[r][i][k]);
                    sum[r] = fmaf(d * to_float(w[k]), x, sum[r]);
                    if (first + r < N) dw[i][k] = fmaf(d, x, dw[i][k]);
                }
        }
        // Loaded while the warps and the block add up.
        Pack<T> dx_pack[kRows][kPacks] = {};
        if (add) {
#pragma unroll
            for (int r = 0; r < kRows; r++)
#pragma unroll
                for (int i = 0; i < kPacks; i++)
                    if (first + r < N && column(i) < C) dx_pack[r][i] = load16(dinp + (first + r) * C + column(i));
        }
#pragma unroll
        for (int r = 0; r < kRows; r++) {
            sum[r] = warp_sum(sum[r]);
            if (lane == 0) sums[turn][warp][r] = sum[r];
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < kRows; r++) {
            sum[r] = 0;
            for (int w = 0; w < num_warps; w++) sum[r] += sums[turn][w][r];
            sum[r] *= one_over_C;
        }
#pragma unroll
        for (int i = 0; i < kPacks; i++) {
            if (column(i) >= C) continue;
            const Pack<T> w = weights_of(weight, column(i));
#pragma unroll
            for (int r = 0; r < kRows; r++) {
                if (first + r >= N) continue;
                Pack<T>& dx = dx_pack[r][i];
#pragma unroll
                for (int k = 0; k < P; k++) {
                    const float x = to_float(x_pack[r][i][k]) * s[r];
                    const float g = to_float(d_pack[r][i][k]) * to_float(w[k]);
                    dx[k] = from_float<T>(fmaf(g - x * sum[r], s[r], to_float(dx[k])));
                }
                store16(dinp + (first + r) * C + column(i), dx);
            }
        }
    }
    if (!partials) return;
    float* to = partials + int64_t(blockIdx.x) * C;
    for (int i = 0; i < kPacks; i++)
        if (column(i) < C) store_floats(to + column(i), dw[i]);
}

template <class T>
void rmsnorm_backward(Cuda& cuda, T* dinp, float* dweight, const T* dout, const T* inp,
                      std::type_identity_t<const T*> weight, const float* rstd, int64_t N, int64_t C,
                      Write write = Write::add) {
    const OpScope op(cuda, __func__, rmsnorm_backward_cost<T>(N * C, write));
    constexpr int64_t P = Pack<T>::size, kMost = 2 * kRmsMaxThreads * P;
    require(C % P == 0 && C <= kMost, "rmsnorm of %ld channels: they must be a multiple of %ld and at most %ld", C, P,
            kMost);
    ensure(weight || !dweight);
    // Two packs per thread where one is not enough, and as many rows as the registers allow.
    const auto start = [&](auto packs, auto rows) {
        constexpr int kPacks = packs, kRows = rows;
        const int64_t threads = ceil_div(ceil_div(C / P, int64_t(kPacks)), kWarp) * kWarp;
        // As many blocks as are resident at once: more would wait, and would have partial sums of their own.
        const int64_t per_sm = kRmsThreadsPerSm<T> / threads;
        const int64_t blocks = std::min(ceil_div(N, int64_t(kRows)), per_sm * cuda.num_sms);
        float* partials = dweight ? cuda.workspace_of<float>(blocks * C) : nullptr;
        launch(cuda, "rmsnorm_backward", rmsnorm_backward_kernel<T, kPacks, kRows>, unsigned(blocks), unsigned(threads),
               0, dinp, partials, dout, inp, weight, rstd, N, int(C), write == Write::add);
        if (dweight) add_partials(cuda, dweight, partials, blocks, C, C);
    };
    using std::integral_constant;
    if (C <= kRmsMaxThreads * P) return start(integral_constant<int, 1>(), integral_constant<int, 4>());
    start(integral_constant<int, 2>(), integral_constant<int, 1>());
}
