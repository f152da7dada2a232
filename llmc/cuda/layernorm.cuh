/*
LayerNorm:   out = (inp - mean) * rstd * weight + bias,   one row of C at a time; fused with the residual stream's add

  inp, out, dinp, dout (N, C) T     weight, bias (C) T     mean, rstd (N) f32: saved for backward
  dweight, dbias, column sums of dinp (C) f32 +=     dinp = or +=     (llmc/ops/layernorm.h has the formulas)

Math      f32; the mean first, then the centered variance, as on the CPU
Work      forward: one warp per row, kept in shared memory between the passes. backward: a block takes kRows rows at a
          time, a thread kPacks packs of columns. It loads all of them before the round's only barrier and sums their
          dweight, dbias and dinp's sums in registers; one add_partials follows for the three. With amax, a warp of
          forward and a block of backward store their largest magnitude, and one more block reduces these. Codes in
          FP8 instead of the output: delayed_codes.cuh
Bytes     forward 2, with the residual 4, backward 4 times N*C*sizeof(T), 3 where dinp is overwritten
Accuracy  f32: within roundings of the CPU's; bf16: 1 eps of |out| + rms(out) (test/cuda/layernorm_cuda_test.cu)
Requires  C % Pack<T>::size == 0, pointers 16-byte aligned, C <= 1024 Pack<T>::size in backward
*/
#pragma once
#include "llmc/base/check.h"            // ensure, require
#include "llmc/cuda/delayed_codes.cuh"  // CodesTile, run_norm
#include "llmc/cuda/device.cuh"         // Pack, load16, store16, warp_sum, store_floats, launch
#include "llmc/cuda/reduce.cuh"         // add_partials
#include "llmc/ops/op_cost.h"           // layernorm_backward_cost, ...

inline constexpr int kNormRowsPerBlock = 4;  // forward
inline constexpr int kNormMaxThreads = 512;  // backward: leaves each thread 128 registers

// Normalizes row n with a warp. `row` (C) is shared memory that keeps it; a lane reads only what it wrote itself.
// store(c, y) gets the elements from c on; their places in `row` may be overwritten then.
template <bool kResidual, class T, class Store>
DEVICE void layernorm_row(T* residual, float* mean, float* rstd, const T* inp1, const T* inp2, const T* weight,
                          const T* bias, T* row, int64_t n, int C, float eps, Store store) {
    constexpr int P = Pack<T>::size;
    const int first = threadIdx.x * P, step = kWarp * P;
    inp1 += n * C;
    float sum = 0;
    for (int c = first; c < C; c += step) {
        Pack<T> x = load16_streaming(inp1 + c);
        if constexpr (kResidual) {
            const Pack<T> y = load16_streaming(inp2 + n * C + c);
            for (int k = 0; k < P; k++) x[k] = from_float<T>(to_float(x[k]) + to_float(y[k]));
            store16(residual + n * C + c, x);
        }
        store16(row + c, x);
        for (int k = 0; k < P; k++) sum += to_float(x[k]);
    }
    const float m = warp_sum(sum) / float(C);
    float squares = 0;
    for (int c = first; c < C; c += step) {
        const Pack<T> x = load16(row + c);
        for (int k = 0; k < P; k++) {
            const float centered = to_float(x[k]) - m;
            squares = fmaf(centered, centered, squares);
        }
    }
    const float s = 1 / sqrtf(warp_sum(squares) / float(C) + eps);
    for (int c = first; c < C; c += step) {
        const Pack<T> x = load16(row + c), w = load16(weight + c), b = load16(bias + c);
        Pack<T> y;
        for (int k = 0; k < P; k++)
            y[k] = from_float<T>(fmaf((to_float(x[k]) - m) * s, to_float(w[k]), to_float(b[k])));
        store(c, y);
    }
    if (threadIdx.x == 0) mean[n] = m, rstd[n] = s;
}

// largest (N) may be null. Without the number of blocks per SM, ptxas would spill a register in fp32 to fit one more.
template <class T, bool kResidual>
__global__ void __launch_bounds__(kWarp* kNormRowsPerBlock, sizeof(T) == 4 ? 8 : 16)
    layernorm_forward_kernel(T* residual, T* out, float* mean, float* rstd, const T* inp1, const T* inp2,
                             const T* weight, const T* bias, float* largest, int64_t N, int C, float eps) {
    SMEM_DYNAMIC(T, rows);  // (kNormRowsPerBlock, C)
    const int64_t n = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
    if (n >= N) return;  // whole warps return together
    uint32_t bits = 0;
    layernorm_row<kResidual>(residual, mean, rstd, inp1, inp2, weight, bias, rows + threadIdx.y * C, n, C, eps,
                             [&](int c, const Pack<T>& y) {
                                 bits = largest_bits(bits, y);
                                 store16(out + n * C + c, y);
                             });
    if (!largest) return;
    bits = warp_largest(bits);
    if (threadIdx.x == 0) largest[n] = __uint_as_float(bits);
}

// Writes codes instead of the output; num_rows is codes_rows().
template <class T, bool kResidual>
__global__ void __launch_bounds__(kCodesThreads, 2)
    layernorm_codes_kernel(T* residual, DelayedCodes out, float* mean, float* rstd, const T* inp1, const T* inp2,
                           const T* weight, const T* bias, int64_t N, int C, float eps, int num_rows) {
    SMEM_DYNAMIC(T, rows);  // (num_rows, C)
    CodesTile<T> tile(rows, out, N, C, num_rows);
    for (int r = int(threadIdx.y); r < num_rows && tile.first_row + r < N; r += kCodesWarps)
        layernorm_row<kResidual>(residual, mean, rstd, inp1, inp2, weight, bias, tile.row(r), tile.first_row + r, C,
                                 eps, [&](int c, const Pack<T>& y) { tile.store(r, c, y); });
    tile.finish();
}

template <class T, bool kResidual>
void launch_layernorm_forward(Cuda& cuda, T* residual, const GemmInput<T>& out, float* mean, float* rstd, const T* inp1,
                              const T* inp2, const T* weight, const T* bias, int64_t N, int64_t C, float eps) {
    require(C % Pack<T>::size == 0, "layernorm of %ld channels: they must be a multiple of %d, 16 bytes", C,
            Pack<T>::size);
    ensure(!out.column_sums && !(out.amax && out.codes.codes));
    if (const int num_rows = out.codes.codes ? codes_rows<T>(cuda, C) : 0) {
        check_codes("layernorm", N, C);
        return launch(cuda, "layernorm_codes", layernorm_codes_kernel<T, kResidual>, unsigned(ceil_div(N, num_rows)),
                      dim3(kWarp, kCodesWarps), size_t(num_rows) * size_t(C) * sizeof(T), residual, out.codes, mean,
                      rstd, inp1, inp2, weight, bias, N, int(C), eps, num_rows);
    }
    float* largest = out.amax ? cuda.workspace_of<float>(N) : nullptr;
    launch(cuda, "layernorm_forward", layernorm_forward_kernel<T, kResidual>, unsigned(ceil_div(N, kNormRowsPerBlock)),
           dim3(kWarp, kNormRowsPerBlock), size_t(kNormRowsPerBlock) * size_t(C) * sizeof(T), residual, out.values,
           mean, rstd, inp1, inp2, weight, bias, largest, N, int(C), eps);
    if (out.amax) store_largest(cuda, out.amax, largest, N);
}

template <class T>
void layernorm_forward(Cuda& cuda, const GemmInput<T>& out, float* mean, float* rstd, const T* inp, const T* weight,
                       const T* bias, int64_t N, int64_t C, float eps) {
    run_norm<T>(__func__, cuda, elements_cost<T>(kLayernormForward, N * C), out, N, C, [&] {
        launch_layernorm_forward<T, false>(cuda, nullptr, out, mean, rstd, inp, nullptr, weight, bias, N, C, eps);
    });
}

template <class T>
void residual_layernorm_forward(Cuda& cuda, T* residual, const GemmInput<T>& out, float* mean, float* rstd,
                                const T* inp1, const T* inp2, const T* weight, const T* bias, int64_t N, int64_t C,
                                float eps) {
    run_norm<T>(__func__, cuda, elements_cost<T>(kResidualLayernormForward, N * C), out, N, C, [&] {
        launch_layernorm_forward<T, true>(cuda, residual, out, mean, rstd, inp1, inp2, weight, bias, N, C, eps);
    });
}

// With x = (inp - mean) * rstd and g = dout * weight:
//   dinp = or += rstd * (g - mean(g) - x * mean(g * x)),   dweight += sum of dout * x,   dbias += sum of dout
// partials (gridDim.x, with_sums ? 3 : 2, C): dweight, dbias, sums of dinp as stored; largest (gridDim.x) of dinp, may
// be null
template <class T, int kPacks, int kRows>
__global__ void __launch_bounds__(kNormMaxThreads)
    layernorm_backward_kernel(T* dinp, float* partials, const T* dout, const T* inp, const T* weight, const float* mean,
                              const float* rstd, float* largest, int64_t N, int C, bool add, bool with_sums) {
    constexpr int P = Pack<T>::size;
    SMEM_STATIC(float, sums, [2][kWarp][2 * kRows]);  // two buffers in turn: one barrier per round is enough
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, num_warps = blockDim.x / kWarp;
    const auto column = [&](int i) { return int(threadIdx.x + i * blockDim.x) * P; };
    float dw[kPacks][P] = {}, db[kPacks][P] = {}, dx_sum[kPacks][P] = {};
    uint32_t bits = 0;
    const float one_over_C = 1 / float(C);
    const int64_t num_rounds = ceil_div(N, int64_t(kRows));
    int turn = 0;
    for (int64_t round = blockIdx.x; round < num_rounds; round += gridDim.x, turn ^= 1) {
        const int64_t first = round * kRows;
        Pack<T> x_pack[kRows][kPacks], d_pack[kRows][kPacks];
        float m[kRows], s[kRows], sum[2 * kRows] = {};
#pragma unroll
        for (int r = 0; r < kRows; r++) {
            const int64_t n = first + r < N ? first + r : N - 1;  // the last row again, rather than a branch
            m[r] = mean[n], s[r] = rstd[n];
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
            const Pack<T> w = load16(weight + column(i));
#pragma unroll
            for (int r = 0; r < kRows; r++)
#pragma unroll
                for (int k = 0; k < P; k++) {
                    const float x = (to_float(x_pack[r][i][k]) - m[r]) * s[r], d = to_float(d_pack[r][i][k]);
                    const float g = d * to_float(w[k]);
                    sum[2 * r] += g;
                    sum[2 * r + 1] = fmaf(g, x, sum[2 * r + 1]);
                    if (first + r < N) dw[i][k] = fmaf(d, x, dw[i][k]), db[i][k] += d;
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
        for (int j = 0; j < 2 * kRows; j++) {
            sum[j] = warp_sum(sum[j]);
            if (lane == 0) sums[turn][warp][j] = sum[j];
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < 2 * kRows; j++) {
            sum[j] = 0;
            for (int w = 0; w < num_warps; w++) sum[j] += sums[turn][w][j];
            sum[j] *= one_over_C;
        }
#pragma unroll
        for (int i = 0; i < kPacks; i++) {
            if (column(i) >= C) continue;
            const Pack<T> w = load16(weight + column(i));
#pragma unroll
            for (int r = 0; r < kRows; r++) {
                if (first + r >= N) continue;
                Pack<T>& dx = dx_pack[r][i];
#pragma unroll
                for (int k = 0; k < P; k++) {
                    const float x = (to_float(x_pack[r][i][k]) - m[r]) * s[r];
                    const float g = to_float(d_pack[r][i][k]) * to_float(w[k]);
                    dx[k] = from_float<T>(fmaf(g - sum[2 * r] - x * sum[2 * r + 1], s[r], to_float(dx[k])));
                    dx_sum[i][k] += to_float(dx[k]);
                }
                store16(dinp + (first + r) * C + column(i), dx);
                bits = largest_bits(bits, dx);
            }
        }
    }
    float* to = partials + int64_t(blockIdx.x) * (with_sums ? 3 : 2) * C;
    for (int i = 0; i < kPacks; i++) {
        if (column(i) >= C) continue;
        store_floats(to + column(i), dw[i]), store_floats(to + C + column(i), db[i]);
        if (with_sums) store_floats(to + 2 * C + column(i), dx_sum[i]);
    }
    if (!largest) return;
    SMEM_STATIC(uint32_t, of_warps, [kWarp]);
    bits = block_largest(bits, of_warps);
    if (threadIdx.x == 0) largest[blockIdx.x] = __uint_as_float(bits);
}

template <class T>
void layernorm_backward(Cuda& cuda, const GemmInput<T>& dinp, float* dweight, float* dbias, const T* dout, const T* inp,
                        const T* weight, const float* mean, const float* rstd, int64_t N, int64_t C,
                        Write write = Write::add) {
    const OpScope op(cuda, __func__, layernorm_backward_cost<T>(N * C, write));
    constexpr int64_t P = Pack<T>::size, kMost = 2 * kNormMaxThreads * P;
    require(C % P == 0 && C <= kMost, "layernorm of %ld channels: they must be a multiple of %ld and at most %ld", C, P,
            kMost);
    ensure(!dinp.codes.codes);
    // Two packs per thread where one is not enough, and as many rows as the registers allow.
    const auto start = [&](auto packs, auto rows) {
        constexpr int kPacks = packs, kRows = rows;
        const int64_t threads = ceil_div(ceil_div(C / P, int64_t(kPacks)), kWarp) * kWarp;
        // As many blocks as are resident at once: more would wait, and would have partial sums of their own.
        const int64_t per_sm = kNormMaxThreads / threads;
        const int64_t blocks = std::min(ceil_div(N, int64_t(kRows)), per_sm * cuda.num_sms);
        const int64_t stride = (dinp.column_sums ? 3 : 2) * C;
        float* partials = cuda.workspace_of<float>(blocks * (stride + 1));
        float* largest = dinp.amax ? partials + blocks * stride : nullptr;
        launch(cuda, "layernorm_backward", layernorm_backward_kernel<T, kPacks, kRows>, unsigned(blocks),
               unsigned(threads), 0, dinp.values, partials, dout, inp, weight, mean, rstd, largest, N, int(C),
               write == Write::add, dinp.column_sums != nullptr);
        add_partials(cuda, {dweight, dbias, dinp.column_sums}, partials, blocks, stride, C);
        if (dinp.amax) store_largest(cuda, dinp.amax, largest, blocks);
    };
    using std::integral_constant;
    if (C <= kNormMaxThreads * P) return start(integral_constant<int, 1>(), integral_constant<int, 4>());
    start(integral_constant<int, 2>(), integral_constant<int, 1>());
}
