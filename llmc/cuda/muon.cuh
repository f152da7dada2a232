/*
Muon's element-wise steps for one matrix (R, K), around the GEMMs that make X orthogonal.

  weight, X (R, K) T     master: the weight (R, K) in f32, which it is rounded from; null if T is float, or if the
                  weight is its own master, rounded as llmc/ops/moments.h says
  grad (R, K) f32     row_squares, lifts (R) f32     squares, scales, V (max(R, K)) f32     keep, radius (1) f32
  momentum (R, K) M, f32 or bf16, which is rounded as llmc/ops/moments.h says
  StepScalars in device memory  (llmc/ops/muon.h has the formulas and the order of the steps)

Math      f32, momentum in the CPU's order and roundings; sums of squares of X as rounded to T
Work      momentum, update, squares of rows: one block per row. squares of columns: blocks of kMuonRows rows, then
          add_partials. normalize: each block adds up all R squares itself, then takes rows. scales: one block.
          lifts: one block per row, then one that adds the rows up
Bytes     per element of the matrix, with s = sizeof(T): momentum 12 + s, normalize 2 s, squares s, lifts 2 s or with
          a master 4 + s, update 3 s or 8 + 2 s
Accuracy  half a unit of T for X, and roundings of f32 (test/cuda/muon_cuda_test.cu);
          the same bits each time
Requires  X with rows of muon_row(K), pointers 16-byte aligned
*/
#pragma once
#include <algorithm>
#include "llmc/base/check.h"        // require, ensure
#include "llmc/cuda/device.cuh"     // Pack, load16, store16, block_sum, load_floats, store_floats, launch
#include "llmc/cuda/moments.cuh"    // MomentBits, store_moment
#include "llmc/cuda/reduce.cuh"     // add_partials
#include "llmc/ops/muon.h"          // MuonStep
#include "llmc/ops/op_cost.h"       // elements_cost, muon_momentum_cost, kMuonNormalize, ...
#include "llmc/ops/step_scalars.h"  // StepScalars

// The row stride of X, whose rows are padded with zeros to whole packs (nanochat's gates have 12 columns). Weights,
// gradients and momenta have no padding.
template <class T>
int64_t muon_row(Cuda&, int64_t K) {
    return ceil_div(K, int64_t(Pack<T>::size)) * Pack<T>::size;
}

// Loads P elements from column k of a row of K floats on; zeros past its end.
template <int P>
DEVICE void load_in_row(float (&to)[P], const float* row, int k, int K) {
    if (K % P == 0) return load_floats(to, row + k);
    for (int i = 0; i < P; i++) to[i] = k + i < K ? row[k + i] : 0;
}
template <int P>
DEVICE void store_in_row(float* row, int k, int K, const float (&from)[P]) {
    if (K % P == 0) return store_floats(row + k, from);
    for (int i = 0; i < P && k + i < K; i++) row[k + i] = from[i];
}

// The same for moments in bf16, in whole packs if K allows it. (With weights in f32, P is half a pack of bf16.)
template <int P>
DEVICE void load_in_row(float (&to)[P], const bf16* row, int k, int K) {
    if constexpr (P == Pack<bf16>::size)
        if (K % P == 0) return load_floats(to, row + k);
    for (int i = 0; i < P; i++) to[i] = k + i < K ? to_float(row[k + i]) : 0;
}
template <class M, int P>
DEVICE void store_in_row(M* row, int k, int K, const float (&from)[P], const MomentBits<M, P>& bits) {
    if constexpr (P % Pack<M>::size == 0)
        if (K % P == 0) return store_moments(row + k, from, bits, Moment::first);
    for (int i = 0; i < P && k + i < K; i++) store_moment(row + k + i, from[i], bits.of(i, Moment::first));
}

inline constexpr int kMuonThreads = 256;
inline constexpr int kMuonRows = 64;  // per block of muon_column_squares_kernel

template <class T, class M>
__global__ void __launch_bounds__(kMuonThreads)
    muon_momentum_kernel(T* X, float* row_squares, M* momentum, const float* grad, int K, int row, float rest,
                         const StepScalars* s, MomentRounding rounding) {
    constexpr int P = Pack<T>::size;
    SMEM_STATIC(float, shared, [kWarp]);
    if (!s->applied) return;
    const float grad_scale = float(s->grad_scale);
    X += int64_t(blockIdx.x) * row, momentum += int64_t(blockIdx.x) * K, grad += int64_t(blockIdx.x) * K;
    const uint64_t key = moments_key_of(rounding.key, s->updates);
    const uint64_t first = rounding.first + uint64_t(blockIdx.x) * uint64_t(K);
    float squares = 0;
    for (int k = threadIdx.x * P; k < K; k += blockDim.x * P) {
        float g[P], m[P];
        load_in_row(g, grad, k, K), load_in_row(m, momentum, k, K);
        Pack<T> x;
        for (int i = 0; i < P; i++) {
            g[i] = __fmul_rn(g[i], grad_scale);  // not fused with what follows, as on the CPU
            m[i] = fmaf(rest, g[i] - m[i], m[i]);
            x[i] = from_float<T>(fmaf(rest, g[i] - m[i], m[i]));
            squares = fmaf(to_float(x[i]), to_float(x[i]), squares);
        }
        store_in_row(momentum, k, K, m, MomentBits<M, P>(key, first + uint64_t(k))), store16(X + k, x);
    }
    squares = block_sum(squares, shared);
    if (threadIdx.x == 0) row_squares[blockIdx.x] = squares;
}

template <class T>
__global__ void __launch_bounds__(kMuonThreads)
    muon_normalize_kernel(T* X, const float* row_squares, int R, int K, bool equal_rows, float margin) {
    SMEM_STATIC(float, shared, [kWarp]);
    float squares = 0, equal_squares = 0;
    for (int r = threadIdx.x; r < R; r += blockDim.x) squares += row_squares[r];
    const float row_norm = sqrtf(block_sum(squares, shared) / float(R));  // of every row after equalization
    const auto row_factor = [=](int r) { return equal_rows ? row_norm / fmaxf(sqrtf(row_squares[r]), 1e-6f) : 1; };
    for (int r = threadIdx.x; r < R; r += blockDim.x)
        equal_squares = fmaf(row_factor(r) * row_factor(r), row_squares[r], equal_squares);
    const float factor = 1 / (margin * sqrtf(block_sum(equal_squares, shared)) + 1e-6f);
    for (int r = blockIdx.x; r < R; r += gridDim.x) {
        const float scale = row_factor(r) * factor;
        for (int k = threadIdx.x * Pack<T>::size; k < K; k += blockDim.x * Pack<T>::size) {
            Pack<T> x = load16(X + int64_t(r) * K + k);
            for (int i = 0; i < x.size; i++) x[i] = from_float<T>(to_float(x[i]) * scale);
            store16(X + int64_t(r) * K + k, x);
        }
    }
}

template <class T>
__global__ void __launch_bounds__(kMuonThreads) muon_row_squares_kernel(float* squares, const T* X, int K) {
    SMEM_STATIC(float, shared, [kWarp]);
    float sum = 0;
    for (int k = threadIdx.x * Pack<T>::size; k < K; k += blockDim.x * Pack<T>::size) {
        const Pack<T> x = load16(X + int64_t(blockIdx.x) * K + k);
        for (int i = 0; i < x.size; i++) sum = fmaf(to_float(x[i]), to_float(x[i]), sum);
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

// partials (gridDim.y, K)
template <class T>
__global__ void __launch_bounds__(kMuonThreads) muon_column_squares_kernel(float* partials, const T* X, int R, int K) {
    constexpr int P = Pack<T>::size;
    const int k = int(blockIdx.x * blockDim.x + threadIdx.x) * P;
    if (k >= K) return;
    const int begin = int(blockIdx.y) * kMuonRows, end = min(R, begin + kMuonRows);
    float sum[P] = {};
#pragma unroll 4
    for (int r = begin; r < end; r++) {
        const Pack<T> x = load16(X + int64_t(r) * K + k);
        for (int i = 0; i < P; i++) sum[i] = fmaf(to_float(x[i]), to_float(x[i]), sum[i]);
    }
    store_floats(partials + int64_t(blockIdx.y) * K + k, sum);
}

// One block; T is float. n, reduced: the larger and the smaller of R and K.
template <class T = float>
__global__ void __launch_bounds__(1024)
    muon_scales_kernel(T* scales, float* V, const float* squares, int n, int reduced, float one_minus_beta2,
                       bool fixed_norm, const StepScalars* s) {
    SMEM_STATIC(float, shared, [kWarp]);
    if (!s->applied) return;
    float sum = 0, before = 0, after = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += squares[i];
    const float norm = sqrtf(block_sum(sum, shared));
    const float g_scale = fixed_norm ? sqrtf(float(reduced)) / fmaxf(norm, 1e-6f) : 1;
    if (!V) {
        for (int i = threadIdx.x; i < n; i += blockDim.x) scales[i] = g_scale;
        return;
    }
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const float v = g_scale * g_scale * squares[i] / float(reduced);
        V[i] = fmaf(one_minus_beta2, v - V[i], V[i]);
        const float factor = 1 / sqrtf(fmaxf(V[i], 1e-10f));
        before += v;
        after = fmaf(v * factor, factor, after);
        scales[i] = g_scale * factor;
    }
    before = sqrtf(block_sum(before, shared) * float(reduced));
    after = sqrtf(block_sum(after, shared) * float(reduced));
    for (int i = threadIdx.x; i < n; i += blockDim.x) scales[i] *= before / fmaxf(after, 1e-10f);
}

// sums (3, gridDim.x): of each row |w|^2, w g and |g|^2. W: the type of the weights that are updated, as below.
template <class T, class W>
__global__ void __launch_bounds__(kMuonThreads)
    muon_row_products_kernel(float* sums, const W* weight, const T* X, const float* scales, bool scales_of_rows, int K,
                             int row, const StepScalars* s) {
    constexpr int P = Pack<T>::size;
    SMEM_STATIC(float, shared, [kWarp]);
    if (!s->applied) return;
    X += int64_t(blockIdx.x) * row, weight += int64_t(blockIdx.x) * K;
    float scale[P], sum[3] = {};
    for (int i = 0; scales_of_rows && i < P; i++) scale[i] = scales[blockIdx.x];
    for (int k = threadIdx.x * P; k < K; k += blockDim.x * P) {
        if (!scales_of_rows) load_in_row(scale, scales, k, K);
        const Pack<T> x = load16(X + k);
        float w[P];
        load_in_row(w, weight, k, K);
        for (int i = 0; i < P; i++) {
            const float g = to_float(x[i]) * scale[i];
            sum[0] = fmaf(w[i], w[i], sum[0]), sum[1] = fmaf(w[i], g, sum[1]), sum[2] = fmaf(g, g, sum[2]);
        }
    }
    for (int i = 0; i < 3; i++) {
        sum[i] = block_sum(sum[i], shared);
        if (threadIdx.x == 0) sums[i * int(gridDim.x) + int(blockIdx.x)] = sum[i];
    }
}

// One block; T is float. shape: of MuonStep::shape_factor.
template <class T = float>
__global__ void __launch_bounds__(1024)
    muon_lifts_kernel(T* lifts, T* keep, T* radius, const T* sums, int R, MuonNorms norms, float rate, float shape,
                      float floor, float least_radius, const StepScalars* s) {
    SMEM_STATIC(float, shared, [kWarp]);
    if (!s->applied) return;
    const auto lift_of = [=](float w, float g) { return w / fmaxf(shape * g, 1e-10f); };
    float now = norms == MuonNorms::hyperball ? *radius : 0, ww = 0, wg = 0, gg = 0;
    for (int r = threadIdx.x; r < R; r += blockDim.x) ww += sums[r], wg += sums[R + r], gg += sums[2 * R + r];
    ww = block_sum(ww, shared), wg = block_sum(wg, shared), gg = block_sum(gg, shared);
    float kept = 1, lift = fmaxf(1, lift_of(floor * sqrtf(ww), sqrtf(gg)));
    if (norms == MuonNorms::hyperball) {
        if (now == 0) now = sqrtf(ww) >= least_radius ? sqrtf(ww) : -least_radius;
        lift = lift_of(fabsf(now), sqrtf(gg));
        const float length = rate * lift, next = sqrtf(fmaxf(0, fmaf(length, fmaf(length, gg, -2 * wg), ww)));
        if (now > 0 || next >= -now) now = fabsf(now), kept = now / fmaxf(next, 1e-10f);
        if (threadIdx.x == 0) *radius = now;
    }
    if (threadIdx.x == 0) *keep = kept;
    for (int r = threadIdx.x; r < R; r += blockDim.x)
        lifts[r] =
            norms == MuonNorms::row_floor ? fmaxf(1, lift_of(floor * sqrtf(sums[r]), sqrtf(sums[2 * R + r]))) : lift;
}

// W: the type of the weights that are updated: the master's, or T if there is none.
template <class T, class W>
__global__ void __launch_bounds__(kMuonThreads)
    muon_update_kernel(T* weight, float* master, const T* X, const float* scales, const float* lifts, const float* keep,
                       bool scales_of_rows, int K, int row, float rate, float weight_decay, bool cautious,
                       const StepScalars* s, MomentRounding rounding) {
    constexpr int P = Pack<T>::size;
    if (!s->applied) return;
    const int64_t first = int64_t(blockIdx.x) * K;
    const uint64_t key = moments_key_of(rounding.key, s->updates), element = rounding.first + uint64_t(first);
    X += int64_t(blockIdx.x) * row;
    const float lift = lifts ? lifts[blockIdx.x] : 1, kept = lifts ? *keep : 1;
    float scale[P];
    for (int i = 0; scales_of_rows && i < P; i++) scale[i] = scales[blockIdx.x];
    for (int k = threadIdx.x * P; k < K; k += blockDim.x * P) {
        if (!scales_of_rows) load_in_row(scale, scales, k, K);
        const Pack<T> x = load16_streaming(X + k);
        float w[P];
        if constexpr (std::is_same_v<T, W>)
            load_in_row(w, weight + first, k, K);
        else
            load_in_row(w, master + first, k, K);
        Pack<T> stored;
        for (int i = 0; i < P; i++) {
            const float g = to_float(x[i]) * scale[i] * lift, decayed = !cautious || g * w[i] >= 0 ? w[i] : 0;
            w[i] = fmaf(-rate, fmaf(weight_decay, decayed, g), w[i]) * kept;
            stored[i] = from_float<T>(w[i]);
        }
        if constexpr (std::is_same_v<T, W>) {
            store_in_row(weight + first, k, K, w, MomentBits<W, P>(key, element + uint64_t(k)));
        } else {
            store_in_row(master + first, k, K, w);
            if (K % P == 0)
                store16(weight + first + k, stored);
            else
                for (int i = 0; i < P && k + i < K; i++) weight[first + k + i] = stored[i];
        }
    }
}

// As many threads as a row has packs, up to a block of 256.
template <class T>
unsigned muon_threads(int64_t row) {
    return unsigned(std::min<int64_t>(kMuonThreads, ceil_div(row / Pack<T>::size, kWarp) * kWarp));
}

template <class T, class M>
void launch_muon_momentum(Cuda& cuda, T* X, float* row_squares, M* momentum, const float* grad, int64_t R, int64_t K,
                          const MuonStep& step, const StepScalars* s, const MomentRounding& rounding) {
    const int64_t row = muon_row<T>(cuda, K);
    launch(cuda, "muon_momentum", muon_momentum_kernel<T, M>, unsigned(R), muon_threads<T>(row), 0, X, row_squares,
           momentum, grad, int(K), int(row), float(1 - step.momentum), s, rounding);
}
template <class T>
void muon_momentum(Cuda& cuda, T* X, float* row_squares, float* momentum, const float* grad, int64_t R, int64_t K,
                   const MuonStep& step, const StepScalars* s) {
    const OpScope op(cuda, __func__, muon_momentum_cost<T>(R * K));
    launch_muon_momentum(cuda, X, row_squares, momentum, grad, R, K, step, s, {});
}
template <class T>
void muon_momentum_bf16(Cuda& cuda, T* X, float* row_squares, bf16* momentum, const float* grad, int64_t R, int64_t K,
                        const MuonStep& step, const StepScalars* s, const MomentRounding& rounding) {
    const OpScope op(cuda, __func__, muon_momentum_cost<T, bf16>(R * K));
    launch_muon_momentum(cuda, X, row_squares, momentum, grad, R, K, step, s, rounding);
}

template <class T>
void muon_normalize(Cuda& cuda, T* X, const float* row_squares, int64_t R, int64_t K, const MuonStep& step) {
    const OpScope op(cuda, __func__, elements_cost<T>(kMuonNormalize, R * K));
    const int64_t row = muon_row<T>(cuda, K);
    launch(cuda, "muon_normalize", muon_normalize_kernel<T>, unsigned(std::min<int64_t>(R, 4 * cuda.num_sms)),
           muon_threads<T>(row), 0, X, row_squares, int(R), int(row), step.equal_rows, float(step.margin));
}

template <class T>
void muon_squares(Cuda& cuda, float* squares, const T* X, int64_t R, int64_t K) {
    const OpScope op(cuda, __func__, elements_cost<T>(kMuonSquares, R * K));
    const int64_t row = muon_row<T>(cuda, K);
    const unsigned threads = muon_threads<T>(row);
    if (R >= K)
        return launch(cuda, "muon_squares", muon_row_squares_kernel<T>, unsigned(R), threads, 0, squares, X, int(row));
    const int64_t chunks = ceil_div(R, kMuonRows);
    float* partials = cuda.workspace_of<float>(chunks * row);
    const dim3 grid(unsigned(ceil_div(row / Pack<T>::size, threads)), unsigned(chunks));
    launch(cuda, "muon_squares", muon_column_squares_kernel<T>, grid, threads, 0, partials, X, int(R), int(row));
    fill_zero(cuda, squares, K);
    add_partials(cuda, squares, partials, chunks, row, K);
}

inline void muon_scales(Cuda& cuda, float* scales, float* V, const float* squares, int64_t R, int64_t K,
                        const MuonStep& step, const StepScalars* s) {
    const OpScope op(cuda, __func__, elements_cost<float>(4, 8, std::max(R, K)));
    launch(cuda, "muon_scales", muon_scales_kernel<float>, 1, 1024, 0, scales, V, squares, int(std::max(R, K)),
           int(std::min(R, K)), float(1 - step.beta2), step.fixed_norm, s);
}

template <class T>
void muon_lifts(Cuda& cuda, float* lifts, float* keep, float* radius, const T* weight, const float* master, const T* X,
                const float* scales, int64_t R, int64_t K, const MuonStep& step, const StepScalars* s) {
    const OpScope op(cuda, __func__, muon_lifts_cost<T>(R * K, master));
    const int64_t row = muon_row<T>(cuda, K);
    float* const sums = cuda.workspace_of<float>(3 * R);
    const unsigned threads = muon_threads<T>(row);
    if (master)
        launch(cuda, "muon_lifts", muon_row_products_kernel<T, float>, unsigned(R), threads, 0, sums, master, X, scales,
               R >= K, int(K), int(row), s);
    else
        launch(cuda, "muon_lifts", muon_row_products_kernel<T, T>, unsigned(R), threads, 0, sums, weight, X, scales,
               R >= K, int(K), int(row), s);
    launch(cuda, "muon_lifts", muon_lifts_kernel<float>, 1, 1024, 0, lifts, keep, radius, sums, int(R), step.norms,
           float(step.rate(R, K)), float(MuonStep::shape_factor(R, K)), float(step.floor), float(step.least_radius(R)),
           s);
}

template <class T>
void muon_update(Cuda& cuda, T* weight, float* master, const T* X, const float* scales, const float* lifts,
                 const float* keep, int64_t R, int64_t K, const MuonStep& step, const StepScalars* s,
                 const MomentRounding& rounding = {}) {
    const OpScope op(cuda, __func__, muon_update_cost<T>(R * K, master));
    constexpr bool kHasMaster = !std::is_same_v<T, float>;
    ensure(bool(master) == kHasMaster || (!master && rounding.key));
    const int64_t row = muon_row<T>(cuda, K);
    launch(cuda, "muon_update", master ? muon_update_kernel<T, float> : muon_update_kernel<T, T>, unsigned(R),
           muon_threads<T>(row), 0, weight, master, X, scales, lifts, keep, R >= K, int(K), int(row),
           float(step.rate(R, K)), float(step.weight_decay), step.cautious, s,
           other_rounding(rounding, Stream::rounded_weights));
}
