/*
Quantization to FP8 with one scale:   out = inp * MAX / max(max |inp|, 1e-12),   rounded (llmc/cpu/quantize.h)

  inp (rows, cols) T, of which an activation or its gradient may be quantized (llmc/ops/quantize.h)
  out (rows, cols) e4m3 or e5m2 =     out_transposed (cols, rows) =, may be null
  amax, inverse_scale: one float in device memory each =     column_sums (cols) f32 +=, may be null: of inp

Math      the maximum over bits, as integers: the same in any order, NaN above all numbers
Work      absmax: a grid that fills the GPU leaves a maximum for each block, one more block takes theirs. quantize: one
          block per tile of 128 x 128, a thread 16 elements of a row, kept in shared memory as bytes for the transposed
          copy, of which it writes 16 rows of 4 columns. Column sums: a tile's, in the workspace; then add_partials.
          Notes: an atomic maximum for each tile. update_amax: one block, whose threads share the tensors
Banks     sixteen-byte units of the tile's rows lie at unit ^ (row / 16): a warp writes whole rows and reads 4 words of
          8 rows that are 16 apart, each time from 32 banks
Bytes     absmax: n*sizeof(T); quantize: rows*cols*(sizeof(T) + 1, or + 2 with the transposed copy), of a gradient
          sizeof(T) more
Accuracy  the CPU's values, bit for bit (test/cuda/quantize_cuda_test.cu)
Requires  cols and with a transposed copy rows multiples of 16, pointers 16-byte aligned, rows up to 8 million (the
          grid). One instruction converts two numbers from sm_89 on; before, a dozen do. Not measured on a GPU yet
*/
#pragma once
#include <algorithm>
#include "llmc/base/fp8.h"             // e4m3, e5m2, fp8_scale
#include "llmc/cuda/gelu.cuh"          // gelu, gelu_gradient
#include "llmc/cuda/relu_squared.cuh"  // relu_squared, relu_squared_gradient
#include "llmc/cuda/device.cuh"        // Pack, load16, store16, fp8x2, launch
#include "llmc/cuda/reduce.cuh"        // add_partials, store_largest
#include "llmc/ops/quantize.h"         // Activation
#include "llmc/ops/op_cost.h"          // absmax_cost, quantize_cost, ...

inline constexpr int kAbsmaxThreads = 512, kAbsmaxBlocksPerSm = 4;
inline constexpr int kQuantizeTile = 128, kQuantizeThreads = 256;

// The activations of a pack, rounded as their own op rounds them. Those of 0 are 0.
template <Activation activation, class T>
DEVICE Pack<T> activated(Pack<T> x) {
    if constexpr (activation == Activation::gelu)
        for (int k = 0; k < x.size; k++) x[k] = from_float<T>(gelu(to_float(x[k])));
    if constexpr (activation == Activation::relu_squared)
        for (int k = 0; k < x.size; k++) x[k] = from_float<T>(relu_squared(to_float(x[k])));
    return x;
}

// dout with the activation's slope at x, rounded as the activation's own op does it. Of 0 and 0: 0.
template <Activation activation, class T>
DEVICE Pack<T> activation_gradient(Pack<T> dout, const Pack<T>& x) {
    for (int k = 0; k < x.size; k++) {
        const float d = to_float(dout[k]), value = to_float(x[k]);
        dout[k] =
            from_float<T>(activation == Activation::gelu ? gelu_gradient(d, value) : relu_squared_gradient(d, value));
    }
    return dout;
}

// out: a maximum for each block
template <class T, Activation activation>
__global__ void __launch_bounds__(kAbsmaxThreads) absmax_kernel(float* out, const T* inp, int64_t n) {
    SMEM_STATIC(uint32_t, shared, [kAbsmaxThreads / kWarp]);
    uint32_t bits = 0;
    const int64_t step = int64_t(gridDim.x) * kAbsmaxThreads * Pack<T>::size;
    for (int64_t i = (int64_t(blockIdx.x) * kAbsmaxThreads + threadIdx.x) * Pack<T>::size; i < n; i += step) {
        const Pack<T> x = activated<activation>(load16_below(inp, i, n));
        bits = largest_bits(bits, x);
    }
    bits = block_largest(bits, shared);
    if (threadIdx.x == 0) out[blockIdx.x] = __uint_as_float(bits);
}

// run(std::integral_constant) of the activation
template <class Run>
void with_activation(Activation activation, Run run) {
    using enum Activation;
    if (activation == none) return run(std::integral_constant<Activation, none>());
    if (activation == gelu) return run(std::integral_constant<Activation, gelu>());
    run(std::integral_constant<Activation, relu_squared>());
}

template <class T>
void absmax(Cuda& cuda, float* amax, const T* inp, int64_t n, Activation activation = Activation::none) {
    const OpScope op(cuda, __func__, absmax_cost<T>(n, activation, Cuda::kExpFlops));
    const int64_t most = int64_t(cuda.num_sms) * kAbsmaxBlocksPerSm;
    const int64_t blocks = std::clamp<int64_t>(ceil_div(n, kAbsmaxThreads * Pack<T>::size), 1, most);
    float* largest = blocks == 1 ? amax : cuda.workspace_of<float>(most);
    with_activation(activation, [&](auto kind) {
        launch(cuda, "absmax", absmax_kernel<T, kind>, unsigned(blocks), kAbsmaxThreads, 0, largest, inp, n);
    });
    if (blocks > 1) store_largest(cuda, amax, largest, blocks);
}

// The sums of a tile's columns. A thread has those of 16 columns over the rows that it read, and lanes 8 apart share
// columns.
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

// What quantize_kernel is compiled for: `current` scales, which are the tensor's own, or `delayed` ones with notes, of
// inp or its activation, or of the activation's `gradient` with one.
enum class Quantizing { current, delayed, gradient };

// partials (gridDim.y, cols) of column sums, if kSums; may be null
template <class Fp8, class T, bool kSums, Activation activation, Quantizing kind>
__global__ void __launch_bounds__(kQuantizeThreads)
    quantize_kernel(Fp8* out, Fp8* out_transposed, float* inverse_scale, float* partials, const T* inp, const T* hidden,
                    const float* amax, QuantizeNotes notes, int64_t rows, int64_t cols) {
    constexpr bool kIsNoting = kind != Quantizing::current;
    constexpr int kUnit = 16;                      // elements: 16 bytes of out
    constexpr int kUnits = kQuantizeTile / kUnit;  // of a row of the tile, and of a column
    constexpr int kWords = kQuantizeTile / 4;      // of a row
    SMEM_STATIC(uint32_t, tile, [kQuantizeTile][kWords]);
    const float scale = fp8_scale<Fp8>(*amax);
    const uint32_t amax_bits = __float_as_uint(*amax);
    uint32_t largest = 0, saturated = 0;
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *inverse_scale = 1 / scale;
    const int64_t row = int64_t(blockIdx.y) * kQuantizeTile, col = int64_t(blockIdx.x) * kQuantizeTile;
    float sums[kUnit] = {};
#pragma unroll
    for (int i = 0; i < kQuantizeTile * kUnits / kQuantizeThreads; i++) {
        const int at = i * kQuantizeThreads + int(threadIdx.x), r = at / kUnits, unit = at % kUnits;
        if (row + r >= rows || col + unit * kUnit >= cols) continue;
        const int64_t from = (row + r) * cols + col + unit * kUnit;
        Pack<uint32_t> words;
#pragma unroll
        for (int first = 0; first < kUnit; first += Pack<T>::size) {
            Pack<T> x = load16_streaming(inp + from + first);
            if constexpr (kind == Quantizing::gradient)
                x = activation_gradient<activation>(x, load16_streaming(hidden + from + first));
            else
                x = activated<activation>(x);
            if constexpr (kIsNoting)
                for (int k = 0; k < x.size; k++) {
                    const uint32_t magnitude = magnitude_bits(x[k]);
                    largest = max(largest, magnitude), saturated += magnitude > amax_bits;
                }
            if constexpr (kSums)
                for (int k = 0; k < x.size; k++) sums[first + k] += to_float(x[k]);
#pragma unroll
            for (int k = 0; k < x.size; k += 4) {
                // With an amax that is not its own an infinity would become a number: 0 times it makes it NaN.
                const auto scaled = [&](int i) {
                    const float value = to_float(x[k + i]);
                    return kIsNoting ? fmaf(value, scale, 0 * value) : value * scale;
                };
                const uint32_t low = fp8x2<Fp8>(scaled(0), scaled(1)), high = fp8x2<Fp8>(scaled(2), scaled(3));
                words[(first + k) / 4] = low | high << 16;
            }
        }
        store16(reinterpret_cast<uint32_t*>(out + from), words);
        if (out_transposed) store16(&tile[r][4 * (unit ^ r / kUnit)], words);
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
    // Four columns of sixteen rows: lanes share columns, so that a warp writes whole rows of the transposed copy.
    const int r = int(threadIdx.x) % kUnits * kUnit, c = int(threadIdx.x) / kUnits * 4;
    if (row + r >= rows || col + c >= cols) return;
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
        store16(reinterpret_cast<uint32_t*>(out_transposed + (col + c + j) * rows + row + r), columns[j]);
}

template <class Fp8, class T>
void quantize(Cuda& cuda, Fp8* out, Fp8* out_transposed, float* inverse_scale, const T* inp, const float* amax,
              int64_t rows, int64_t cols, float* column_sums = nullptr, Activation activation = Activation::none,
              const T* hidden = nullptr, const QuantizeNotes& notes = {}) {
    const OpScope op(
        cuda, __func__,
        hidden ? quantize_gradient_cost<T>(rows * cols, out_transposed != nullptr, activation, Cuda::kExpFlops)
               : quantize_cost<T>(rows * cols, out_transposed != nullptr, activation, Cuda::kExpFlops));
    require(cols % kFp8Multiple == 0 && (rows % kFp8Multiple == 0 || !out_transposed),
            "quantize of (%ld, %ld): fp8 needs multiples of %ld", rows, cols, kFp8Multiple);
    const int64_t tiles = ceil_div(rows, kQuantizeTile);
    ensure(!column_sums || hidden || activation == Activation::none);
    ensure(!hidden || (notes.amax && activation != Activation::none));
    float* partials = column_sums ? cuda.workspace_of<float>(tiles * cols) : nullptr;
    const dim3 grid(unsigned(ceil_div(cols, kQuantizeTile)), unsigned(tiles));
    const auto launch_for = [&](auto kind) {
        constexpr Quantizing how = kind;
        with_activation(activation, [&](auto activation) {
            constexpr bool kIsGradient = how == Quantizing::gradient;
            if constexpr (!kIsGradient || activation != Activation::none) {
                const auto plain = quantize_kernel<Fp8, T, kIsGradient, activation, how>;
                constexpr Activation summed = kIsGradient ? Activation(activation) : Activation::none;
                const auto summing = quantize_kernel<Fp8, T, true, summed, how>;
                launch(cuda, "quantize", column_sums ? summing : plain, grid, kQuantizeThreads, 0, out, out_transposed,
                       inverse_scale, partials, inp, hidden, amax, notes, rows, cols);
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
