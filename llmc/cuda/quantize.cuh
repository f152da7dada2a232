/*
Quantization to FP8 with one scale:   out = inp * MAX / max(max |inp|, 1e-12),   rounded (llmc/ops/quantize.h)

  inp (rows, cols) T, of which an activation or its gradient may be quantized (llmc/ops/quantize.h)
  out (rows, cols) e4m3 or e5m2 =     out_transposed (cols, rows) =, may be null
  amax, inverse_scale: one float in device memory each =     column_sums (cols) f32 +=, may be null: of inp

Math      the maximum is that of bits as integers: the same in any order, with NaN largest
Work      absmax: a grid that fills the GPU stores a maximum per block, one more block reduces these. quantize: one
          block per tile of 128 x 128, each thread 16 elements of a row, kept in shared memory as bytes for the
          transposed copy, of which it writes 16 rows of 4 columns. SwiGLU's gradient: a tile is 64 columns of gates and
          those of their ups, which are computed from the same inputs. Column sums: a tile's go to the workspace, then
          add_partials. Notes: one atomic maximum per tile. quantize_mx: the same tiles, which are also those of the
          scales; four times, all threads read 32 rows, whose columns' maxima pass through shared memory.
          transpose_codes: the same tiles. update_amax: one block, whose threads share the tensors
Banks     sixteen-byte units of the tile's rows lie at unit ^ (row / 16): a warp writes whole rows and reads 4 words of
          8 rows that are 16 apart, each time from 32 banks
Bytes     absmax: n*sizeof(T); quantize: rows*cols*(sizeof(T) + 1, or + 2 with the transposed copy), per element of a
          gradient sizeof(T) more; of SwiGLU sizeof(T) more, of its gradient sizeof(T) / 2; quantize_mx:
          rows*cols*(sizeof(T) + 2 + 1/16); transpose_codes: 2*rows*cols
Accuracy  the CPU's values, bit for bit (test/cuda/quantize_cuda_test.cu)
Requires  cols (half of cols for SwiGLU's gradient) and, with a transposed copy, rows multiples of 16; pointers 16-byte
          aligned; rows up to 8 million (the grid); absmax of SwiGLU up to 2^32 packs. One instruction converts two
          elements from sm_89 on; before, a dozen do. Not measured on a GPU yet
*/
#pragma once
#include <algorithm>
#include "llmc/base/fp8.h"             // e4m3, e5m2, fp8_scale
#include "llmc/cuda/gelu.cuh"          // gelu, gelu_gradient
#include "llmc/cuda/relu_squared.cuh"  // relu_squared, relu_squared_gradient
#include "llmc/cuda/device.cuh"        // Pack, load16, store16, fp8x2, launch
#include "llmc/cuda/reduce.cuh"        // add_partials, store_largest
#include "llmc/cuda/swiglu.cuh"        // swiglu, swiglu_gradient
#include "llmc/ops/quantize.h"         // Activation
#include "llmc/ops/op_cost.h"          // absmax_cost, quantize_cost, ...

inline constexpr int kAbsmaxThreads = 512, kAbsmaxBlocksPerSm = 4;
inline constexpr int kQuantizeTile = 128, kQuantizeThreads = 256;

// The activation of a pack, rounded as its own op rounds it; 0 for 0. For SwiGLU it is x: load_activated() computes it.
template <Activation activation, class T>
DEVICE Pack<T> activated(Pack<T> x) {
    if constexpr (activation == Activation::gelu)
        for (int k = 0; k < x.size; k++) x[k] = from_float<T>(gelu(to_float(x[k])));
    if constexpr (activation == Activation::relu_squared)
        for (int k = 0; k < x.size; k++) x[k] = from_float<T>(relu_squared(to_float(x[k])));
    return x;
}

// Loads the pack at inp and applies the activation. For SwiGLU inp has gates, whose ups are `cols` elements further.
template <Activation activation, class T>
DEVICE Pack<T> load_activated(const T* inp, int64_t cols) {
    Pack<T> x = load16_streaming(inp);
    if constexpr (activation == Activation::swiglu) x = swiglu(x, load16_streaming(inp + cols));
    return activated<activation>(x);
}

// dout times the activation's derivative at x, rounded as the activation's own op rounds it; 0 if both are 0.
template <Activation activation, class T>
DEVICE Pack<T> activation_gradient(Pack<T> dout, const Pack<T>& x) {
    for (int k = 0; k < x.size; k++) {
        const float d = to_float(dout[k]), value = to_float(x[k]);
        dout[k] =
            from_float<T>(activation == Activation::gelu ? gelu_gradient(d, value) : relu_squared_gradient(d, value));
    }
    return dout;
}

// out: a maximum per block. row_packs: packs of gates per row, for SwiGLU
template <class T, Activation activation>
__global__ void __launch_bounds__(kAbsmaxThreads)
    absmax_kernel(float* out, const T* inp, int64_t n, uint32_t row_packs) {
    SMEM_STATIC(uint32_t, shared, [kAbsmaxThreads / kWarp]);
    uint32_t bits = 0;
    const int64_t step = int64_t(gridDim.x) * kAbsmaxThreads * Pack<T>::size;
    for (int64_t i = (int64_t(blockIdx.x) * kAbsmaxThreads + threadIdx.x) * Pack<T>::size; i < n; i += step) {
        Pack<T> x;
        if constexpr (activation == Activation::swiglu) {
            const int64_t row = uint32_t(i / Pack<T>::size) / row_packs, cols = int64_t(row_packs) * Pack<T>::size;
            x = load_activated<activation>(inp + i + row * cols, cols);
        } else {
            x = activated<activation>(load16_below(inp, i, n));
        }
        bits = largest_bits(bits, x);
    }
    bits = block_largest(bits, shared);
    if (threadIdx.x == 0) out[blockIdx.x] = __uint_as_float(bits);
}

// Calls run(std::integral_constant) with the activation.
template <class Run>
void with_activation(Activation activation, Run run) {
    using enum Activation;
    if (activation == none) return run(std::integral_constant<Activation, none>());
    if (activation == gelu) return run(std::integral_constant<Activation, gelu>());
    if (activation == swiglu) return run(std::integral_constant<Activation, swiglu>());
    run(std::integral_constant<Activation, relu_squared>());
}

template <class T>
void absmax(Cuda& cuda, float* amax, const T* inp, int64_t n, Activation activation = Activation::none,
            int64_t cols = 0) {
    const OpScope op(cuda, __func__, absmax_cost<T>(n, activation, Cuda::kExpFlops));
    ensure(activation != Activation::swiglu ||
           (cols > 0 && cols % Pack<T>::size == 0 && n % cols == 0 && n / Pack<T>::size <= int64_t(UINT32_MAX)));
    const int64_t most = int64_t(cuda.num_sms) * kAbsmaxBlocksPerSm;
    const int64_t blocks = std::clamp<int64_t>(ceil_div(n, kAbsmaxThreads * Pack<T>::size), 1, most);
    float* largest = blocks == 1 ? amax : cuda.workspace_of<float>(most);
    with_activation(activation, [&](auto kind) {
        launch(cuda, "absmax", absmax_kernel<T, kind>, unsigned(blocks), kAbsmaxThreads, 0, largest, inp, n,
               uint32_t(cols / Pack<T>::size));
    });
    if (blocks > 1) store_largest(cuda, amax, largest, blocks);
}

// Stores the sums of a tile's columns. A thread has those of n columns over the rows that it read; every kUnits-th lane
// has the same columns.
template <int n>
DEVICE void store_tile_sums(float* partials, float (&sums)[n], int64_t columns_left) {
    constexpr int kUnits = kQuantizeTile / n, kWarps = kQuantizeThreads / kWarp;
    SMEM_STATIC(float, shared, [kWarps][kQuantizeTile]);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
    for (int k = 0; k < n; k++) {
#pragma unroll
        for (int offset = kUnits; offset < kWarp; offset *= 2) sums[k] += __shfl_xor_sync(kAllLanes, sums[k], offset);
        if (lane < kUnits) shared[warp][lane * n + k] = sums[k];
    }
    __syncthreads();
    const int c = threadIdx.x;
    if (c >= kQuantizeTile || c >= columns_left) return;
    float sum = 0;
    for (int w = 0; w < kWarps; w++) sum += shared[w][c];
    partials[c] = sum;
}

// Writes the transpose of a tile of codes, given by its rows. Four columns of sixteen rows per thread. Lanes share
// columns, so that a warp writes whole rows of the transposed copy. row, col: the tile's first; rows, part_cols: how
// many there are in all, in each of kParts parts of a row.
template <int kParts, class Fp8>
DEVICE void store_transposed(Fp8* out_transposed, const uint32_t (*tile)[kQuantizeTile / 4], int64_t row, int64_t col,
                             int64_t rows, int64_t part_cols) {
    constexpr int kUnit = 16, kUnits = kQuantizeTile / kUnit, kPartColumns = kQuantizeTile / kParts;
    const int r = int(threadIdx.x) % kUnits * kUnit, c = int(threadIdx.x) / kUnits * 4;
    const int part = c / kPartColumns, part_c = c % kPartColumns;
    if (row + r >= rows || col + part_c >= part_cols) return;
    Pack<uint32_t> columns[4];
#pragma unroll
    for (int k = 0; k < kUnit; k += 4) {
        uint32_t word[4];
#pragma unroll
        for (int i = 0; i < 4; i++) word[i] = tile[r + k + i][(c / kUnit ^ r / kUnit) * 4 + c / 4 % 4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            columns[j][k / 4] = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) columns[j][k / 4] |= (word[i] >> 8 * j & 0xFF) << 8 * i;
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        store16(reinterpret_cast<uint32_t*>(out_transposed + (part * part_cols + col + part_c + j) * rows + row + r),
                columns[j]);
}

// Variants of quantize_kernel: inp or its activation, with the `current` scale, the tensor's own, or with a `delayed`
// one and notes; or an activation's `gradient` with a delayed one and notes.
enum class Quantizing { current, delayed, gradient };

// partials (gridDim.y, cols) of column sums, if kSums; may be null
template <class Fp8, class T, bool kSums, Activation activation, Quantizing kind>
__global__ void __launch_bounds__(kQuantizeThreads)
    quantize_kernel(Fp8* out, Fp8* out_transposed, float* inverse_scale, float* partials, const T* inp, const T* hidden,
                    const float* amax, QuantizeNotes notes, int64_t rows, int64_t cols) {
    constexpr bool kIsNoting = kind != Quantizing::current;
    // SwiGLU's gradient has two parts, gates and ups: side by side in a tile, cols / 2 columns apart in memory.
    constexpr int kParts = kind == Quantizing::gradient && activation == Activation::swiglu ? 2 : 1;
    constexpr int kUnit = 16;                      // elements: 16 bytes of out
    constexpr int kUnits = kQuantizeTile / kUnit;  // of a row of the tile, and of a column
    constexpr int kPartUnits = kUnits / kParts, kPartColumns = kQuantizeTile / kParts;
    constexpr int kWords = kQuantizeTile / 4;  // of a row
    SMEM_STATIC(uint32_t, tile, [kQuantizeTile][kWords]);
    const float scale = fp8_scale<Fp8>(*amax);
    const uint32_t amax_bits = __float_as_uint(*amax);
    uint32_t largest = 0, saturated = 0;
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *inverse_scale = 1 / scale;
    const int64_t row = int64_t(blockIdx.y) * kQuantizeTile, col = int64_t(blockIdx.x) * kPartColumns;
    const int64_t part_cols = cols / kParts;
    float sums[kUnit] = {};
#pragma unroll
    for (int i = 0; i < kQuantizeTile * kPartUnits / kQuantizeThreads; i++) {
        const int at = i * kQuantizeThreads + int(threadIdx.x), r = at / kPartUnits, unit = at % kPartUnits;
        if (row + r >= rows || col + unit * kUnit >= part_cols) continue;
        const int64_t from = (row + r) * cols + col + unit * kUnit;
        Pack<uint32_t> words[kParts];
#pragma unroll
        for (int first = 0; first < kUnit; first += Pack<T>::size) {
            Pack<T> x[kParts];
            if constexpr (kParts == 2) {
                const T* const gates = hidden + from + first;
                const auto [dgates, dups] =
                    swiglu_gradient(load16_streaming(inp + (row + r) * part_cols + col + unit * kUnit + first),
                                    load16_streaming(gates), load16_streaming(gates + part_cols));
                x[0] = dgates, x[kParts - 1] = dups;
            } else if constexpr (kind == Quantizing::gradient) {
                x[0] = activation_gradient<activation>(load16_streaming(inp + from + first),
                                                       load16_streaming(hidden + from + first));
            } else {
                const int64_t ups_before = activation == Activation::swiglu ? (row + r) * cols : 0;
                x[0] = load_activated<activation>(inp + from + ups_before + first, cols);
            }
#pragma unroll
            for (int part = 0; part < kParts; part++) {
                if constexpr (kIsNoting)
                    for (int k = 0; k < Pack<T>::size; k++) {
                        const uint32_t magnitude = magnitude_bits(x[part][k]);
                        largest = max(largest, magnitude), saturated += magnitude > amax_bits;
                    }
                if constexpr (kSums)
                    for (int k = 0; k < Pack<T>::size; k++) sums[first + k] += to_float(x[part][k]);
#pragma unroll
                for (int k = 0; k < Pack<T>::size; k += 4) {
                    // With a delayed amax an infinity would become a finite code: adding 0 * value makes it NaN.
                    const auto scaled = [&](int i) {
                        const float value = to_float(x[part][k + i]);
                        return kIsNoting ? fmaf(value, scale, 0 * value) : value * scale;
                    };
                    const uint32_t low = fp8x2<Fp8>(scaled(0), scaled(1)), high = fp8x2<Fp8>(scaled(2), scaled(3));
                    words[part][(first + k) / 4] = low | high << 16;
                }
            }
        }
#pragma unroll
        for (int part = 0; part < kParts; part++) {
            store16(reinterpret_cast<uint32_t*>(out + from + part * part_cols), words[part]);
            if (out_transposed) store16(&tile[r][4 * ((unit + part * kPartUnits) ^ r / kUnit)], words[part]);
        }
    }
    if constexpr (kSums)
        if (partials) store_tile_sums(partials + int64_t(blockIdx.y) * cols + col, sums, cols - col);
    if constexpr (kIsNoting) {
        SMEM_STATIC(uint32_t, of_warps, [kQuantizeThreads / kWarp]);
        largest = block_largest(largest, of_warps);
        if (threadIdx.x == 0) atomic_largest(notes.amax, largest);
        if (saturated > 0 && notes.saturated) atomic_add(notes.saturated, saturated);
    }
    if (!out_transposed) return;
    __syncthreads();
    store_transposed<kParts>(out_transposed, tile, row, col, rows, part_cols);
}

template <class Fp8, class T>
void quantize(Cuda& cuda, Fp8* out, Fp8* out_transposed, float* inverse_scale, const T* inp, const float* amax,
              int64_t rows, int64_t cols, float* column_sums = nullptr, Activation activation = Activation::none,
              const T* hidden = nullptr, const QuantizeNotes& notes = {}) {
    const OpScope op(
        cuda, __func__,
        hidden ? quantize_gradient_cost<T>(rows * cols, out_transposed != nullptr, activation, Cuda::kExpFlops)
               : quantize_cost<T>(rows * cols, out_transposed != nullptr, activation, Cuda::kExpFlops));
    // A tile of SwiGLU's gradient has half of its columns among the gates and half among the ups.
    const int64_t parts = hidden && activation == Activation::swiglu ? 2 : 1, part_cols = cols / parts;
    require(cols % (parts * kFp8Multiple) == 0 && (rows % kFp8Multiple == 0 || !out_transposed),
            "quantize of (%ld, %ld): fp8 needs multiples of %ld", rows, part_cols, kFp8Multiple);
    const int64_t tiles = ceil_div(rows, kQuantizeTile);
    ensure(!column_sums || (hidden && parts == 1) || (activation == Activation::none && std::is_same_v<Fp8, e5m2>));
    ensure(!hidden || (notes.amax && activation != Activation::none));
    float* partials = column_sums ? cuda.workspace_of<float>(tiles * cols) : nullptr;
    const dim3 grid(unsigned(ceil_div(part_cols, kQuantizeTile / parts)), unsigned(tiles));
    const auto launch_for = [&](auto kind) {
        constexpr Quantizing how = kind;
        with_activation(activation, [&](auto activation) {
            constexpr Activation kOf = activation;
            constexpr bool kIsGradient = how == Quantizing::gradient, kIsSwiglu = kOf == Activation::swiglu;
            // One kernel serves gradients with and without column sums, except SwiGLU's, which never have them.
            constexpr bool kSums = kIsGradient && !kIsSwiglu;
            // Inputs and weights are e4m3, gradients e5m2.
            constexpr bool kIsE5m2 = std::is_same_v<Fp8, e5m2>;
            if constexpr (kIsGradient ? kIsE5m2 && kOf != Activation::none : !kIsE5m2 || kOf == Activation::none) {
                const auto plain = quantize_kernel<Fp8, T, kSums, kOf, how>;
                const auto summing = [&] {
                    if constexpr (kIsGradient || !kIsE5m2)
                        return plain;
                    else
                        return quantize_kernel<Fp8, T, true, Activation::none, how>;
                }();
                launch(cuda, "quantize", column_sums ? summing : plain, grid, kQuantizeThreads, 0, out, out_transposed,
                       inverse_scale, partials, inp, hidden, amax, notes, rows, cols);
            } else {
                ensure(!"a gradient in e4m3, or an activation in e5m2");
            }
        });
    };
    if (!notes.amax)
        launch_for(std::integral_constant<Quantizing, Quantizing::current>());
    else if (!hidden)
        launch_for(std::integral_constant<Quantizing, Quantizing::delayed>());
    else
        launch_for(std::integral_constant<Quantizing, Quantizing::gradient>());
    if (column_sums) add_partials(cuda, column_sums, partials, tiles, cols, cols);
}

// One tile of quantize_mx. A row's block is two lanes', a column's the 32 rows that all threads read at once.
template <class T, bool kSums, Activation activation>
__global__ void __launch_bounds__(kQuantizeThreads) quantize_mx_kernel(MxTensor out, float* partials, const T* inp) {
    constexpr int kUnit = 16, kUnits = kQuantizeTile / kUnit, kWarps = kQuantizeThreads / kWarp;
    constexpr int kRows = kQuantizeThreads / kUnits;  // at once
    static_assert(kRows == kMxBlock && kQuantizeTile == kMxTileRows && kQuantizeTile == kMxTileCols);
    SMEM_STATIC(uint32_t, tile, [kQuantizeTile][kQuantizeTile / 4]);
    SMEM_STATIC(uint32_t, largest_of, [kWarps][kQuantizeTile]);
    SMEM_STATIC(float, inverse_of, [kQuantizeTile]);
    SMEM_STATIC(uint32_t, scales, [2][kMxTileBytes / 4]);  // of rows, of columns
    const int thread = int(threadIdx.x), unit = thread % kUnits, lane = thread % kWarp, warp = thread / kWarp;
    const int64_t row = int64_t(blockIdx.y) * kQuantizeTile, col = int64_t(blockIdx.x) * kQuantizeTile;
    const bool has_cols = col + unit * kUnit < out.cols;
    uint8_t* const row_scales = reinterpret_cast<uint8_t*>(scales[0]);
    uint8_t* const col_scales = reinterpret_cast<uint8_t*>(scales[1]);
    float sums[kUnit] = {};
#pragma unroll 1
    for (int i = 0; i < kQuantizeTile / kRows; i++) {
        const int r = i * kRows + thread / kUnits;
        // Beyond the tensor are zeros, whose scale is zero, too. Its rows are a multiple of kRows.
        const bool is_inside = row + i * kRows < out.rows && has_cols;
        const int64_t from = (row + r) * out.cols + col + unit * kUnit;
        float values[kUnit] = {};
        uint32_t largest = 0;
        if (is_inside) {
            const int64_t ups_before = activation == Activation::swiglu ? (row + r) * out.cols : 0;
#pragma unroll
            for (int first = 0; first < kUnit; first += Pack<T>::size) {
                const Pack<T> x = load_activated<activation>(inp + from + ups_before + first, out.cols);
                largest = largest_bits(largest, x);
#pragma unroll
                for (int k = 0; k < Pack<T>::size; k++) {
                    values[first + k] = to_float(x[k]);
                    if constexpr (kSums) sums[first + k] += values[first + k];
                }
            }
        }
        const e8m0 scale = mx_scale(max(largest, __shfl_xor_sync(kAllLanes, largest, 1)));
        const auto codes = [&](auto inverse) {
            Pack<uint32_t> words;
#pragma unroll
            for (int k = 0; k < kUnit; k += 4)
                words[k / 4] = fp8x2<e4m3>(values[k] * inverse(k), values[k + 1] * inverse(k + 1)) |
                               fp8x2<e4m3>(values[k + 2] * inverse(k + 2), values[k + 3] * inverse(k + 3)) << 16;
            return words;
        };
        if (is_inside)
            store16(reinterpret_cast<uint32_t*>(out.data + from), codes([&](int) { return mx_inverse(scale); }));
        if (unit % 2 == 0) row_scales[thread / kUnits * 16 + i * 4 + unit / 2] = scale.bits;
#pragma unroll
        for (int k = 0; k < kUnit; k++) {
            uint32_t magnitude = magnitude_bits(values[k]);
#pragma unroll
            for (int offset = kUnits; offset < kWarp; offset *= 2)
                magnitude = max(magnitude, __shfl_xor_sync(kAllLanes, magnitude, offset));
            if (lane < kUnits) largest_of[warp][unit * kUnit + k] = magnitude;
        }
        __syncthreads();
        if (thread < kQuantizeTile) {
            uint32_t of_column = 0;
#pragma unroll
            for (int w = 0; w < kWarps; w++) of_column = max(of_column, largest_of[w][thread]);
            const e8m0 col_scale = mx_scale(of_column);
            inverse_of[thread] = mx_inverse(col_scale);
            col_scales[thread % 32 * 16 + thread / 32 * 4 + i] = col_scale.bits;
        }
        __syncthreads();
        store16(&tile[r][4 * (unit ^ r / kUnit)], codes([&](int k) { return inverse_of[unit * kUnit + k]; }));
    }
    if constexpr (kSums) store_tile_sums(partials + int64_t(blockIdx.y) * out.cols + col, sums, out.cols - col);
    __syncthreads();
    constexpr int kScalePacks = kMxTileBytes / 16;
    if (thread < 2 * kScalePacks) {
        const bool of_rows = thread < kScalePacks;
        const int64_t at =
            of_rows ? int64_t(blockIdx.y) * gridDim.x + blockIdx.x : int64_t(blockIdx.x) * gridDim.y + blockIdx.y;
        const int word = thread % kScalePacks * 4;
        Pack<uint32_t> four;
#pragma unroll
        for (int k = 0; k < 4; k++) four[k] = scales[of_rows ? 0 : 1][word + k];
        store16(
            reinterpret_cast<uint32_t*>(of_rows ? out.scales : out.transposed_scales) + at * (kMxTileBytes / 4) + word,
            four);
    }
    store_transposed<1>(out.transposed, tile, row, col, out.rows, out.cols);
}

template <class T>
void quantize_mx(Cuda& cuda, const MxTensor& out, const T* inp, float* column_sums = nullptr,
                 Activation activation = Activation::none) {
    const OpScope op(cuda, __func__, quantize_mx_cost<T>(out.rows * out.cols, activation, Cuda::kExpFlops));
    check_mx_tensor("quantize_mx", out.rows, out.cols);
    ensure(!column_sums || activation == Activation::none);
    const int64_t tiles = ceil_div(out.rows, kQuantizeTile);
    float* const partials = column_sums ? cuda.workspace_of<float>(tiles * out.cols) : nullptr;
    const dim3 grid(unsigned(ceil_div(out.cols, kQuantizeTile)), unsigned(tiles));
    with_activation(activation, [&](auto kind) {
        constexpr Activation kOf = kind;
        const auto kernel =
            column_sums ? quantize_mx_kernel<T, kOf == Activation::none, kOf> : quantize_mx_kernel<T, false, kOf>;
        launch(cuda, "quantize_mx", kernel, grid, kQuantizeThreads, 0, out, partials, inp);
    });
    if (column_sums) add_partials(cuda, column_sums, partials, tiles, out.cols, out.cols);
}

template <class Fp8>
__global__ void __launch_bounds__(kQuantizeThreads)
    transpose_codes_kernel(Fp8* out, const Fp8* inp, int64_t rows, int64_t cols) {
    constexpr int kUnit = 16, kUnits = kQuantizeTile / kUnit;
    SMEM_STATIC(uint32_t, tile, [kQuantizeTile][kQuantizeTile / 4]);
    const int64_t row = int64_t(blockIdx.y) * kQuantizeTile, col = int64_t(blockIdx.x) * kQuantizeTile;
#pragma unroll
    for (int i = 0; i < kQuantizeTile * kUnits / kQuantizeThreads; i++) {
        const int at = i * kQuantizeThreads + int(threadIdx.x), r = at / kUnits, unit = at % kUnits;
        if (row + r >= rows || col + unit * kUnit >= cols) continue;
        const Fp8* const from = inp + (row + r) * cols + col + unit * kUnit;
        store16(&tile[r][4 * (unit ^ r / kUnit)], load16_streaming(reinterpret_cast<const uint32_t*>(from)));
    }
    __syncthreads();
    store_transposed<1>(out, tile, row, col, rows, cols);
}

inline void transpose_codes(Cuda& cuda, e4m3* out, const e4m3* inp, int64_t rows, int64_t cols) {
    const OpScope op(cuda, __func__, elements_cost<e4m3>(2, 0, rows * cols));
    ensure(rows % kFp8Multiple == 0 && cols % kFp8Multiple == 0);
    const dim3 grid(unsigned(ceil_div(cols, kQuantizeTile)), unsigned(ceil_div(rows, kQuantizeTile)));
    launch(cuda, "transpose_codes", transpose_codes_kernel<e4m3>, grid, kQuantizeThreads, 0, out, inp, rows, cols);
}

inline constexpr int kUpdateAmaxThreads = 1024;

template <class T = float>
__global__ void __launch_bounds__(kUpdateAmaxThreads)
    update_amax_kernel(AmaxState state, const T* seen, int64_t ranks) {
    float* const entries = state.history() + int64_t(state.data[0]) * state.tensors;
    for (int64_t i = threadIdx.x; i < state.tensors; i += kUpdateAmaxThreads) {
        uint32_t largest = 0;
        for (int64_t r = 0; r < ranks; r++) largest = max(largest, magnitude_bits(seen[r * state.tensors + i]));
        entries[i] = largest < kInfinityBits ? __uint_as_float(largest) : 0;
        float amax = 0;
#pragma unroll 4
        for (int64_t k = 0; k < state.length; k++) amax = fmaxf(amax, state.history()[k * state.tensors + i]);
        state.amax()[i] = amax > 0 ? amax : kNoAmax;
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    state.data[0] = state.data[0] + 1 < float(state.length) ? state.data[0] + 1 : 0;
    state.data[1] = fminf(state.data[1] + 1, float(state.length));
}

inline void update_amax(Cuda& cuda, const AmaxState& state, const float* seen, int64_t ranks) {
    const OpScope op(cuda, __func__, update_amax_cost(state.tensors, state.length, ranks));
    launch(cuda, "update_amax", update_amax_kernel<float>, 1, kUpdateAmaxThreads, 0, state, seen, ranks);
}
