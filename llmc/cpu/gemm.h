/*
The inner loops of every matrix product:   C (M,N) = or += A (M,K) B (K,N) [+ bias (N)]

B is packed into panels of kTileCols columns, zeros filling the last one; a tile of kTileRows x kTileCols of C then
stays in registers while k runs (Goto and van de Geijn, 2008, doi:10.1145/1356052.1356053). A is read in place by
broadcasts through two strides, so it may be transposed.

Each element of C is one chain of fused multiply-adds over a block of kBlockK terms, and the blocks are added in order.
Neither the tile's shape, which follows the machine's registers, nor the number of threads has any say in that: same
bits everywhere.

A and B are float or bf16, sums always float. Operands in bf16 are taken two at a time, neighbours in k, of which the
second is added first: what AVX-512's vdpbf16ps does in one instruction, at twice the rate of fp32 where it is worth
having, and others in two (test/gemm_test.cpp: the same bits, but for numbers below 1.2e-38, which that one takes for
zero). So whoever packs bf16 packs pairs, and a row of an A that is read in place has its pairs side by side.

Where the processor has tiles for bf16, they multiply, with an order of sums of their own: tile_product.h.

  pack_panels(...)       one block of B into panels (panels.h)
  multiply_panels(...)   one thread: C (=, +=) A times packed panels; what attention is made of
  gemm(...)              all threads, any size; what matmul is made of
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include "llmc/base/bf16.h"   // bf16
#include "llmc/base/check.h"  // ensure
#include "llmc/cpu/device.h"  // Cpu, parallel_tasks
#include "llmc/cpu/panels.h"  // pack_panel, Strided
#include "llmc/cpu/simd.h"
#include "llmc/cpu/tile_product.h"  // tile_product
#include "llmc/ops/matmul.h"        // Write

// What every lane is multiplied by: one element, or a pair of them.
template <class T>
ANVIL_INLINE FloatRegister spread(const T* a) {
    uint32_t bits;
    std::memcpy(&bits, a, sizeof bits);
    return broadcast_bits(bits);
}

template <class T>
ANVIL_INLINE FloatRegister multiply_add(FloatRegister a, FloatRegister b, FloatRegister sum) {
    if constexpr (std::is_same_v<T, float>) {
        return fused(a, b, sum);
    } else {
#if defined(__AVX512BF16__)
        return _mm512_dpbf16_ps(sum, __m512bh(a), __m512bh(b));
#else
        const auto second = [](FloatRegister pairs) { return FloatRegister(UintRegister(pairs) & 0xFFFF0000u); };
        const auto first = [](FloatRegister pairs) { return FloatRegister(UintRegister(pairs) << 16); };
        return fused(first(a), first(b), fused(second(a), second(b), sum));
#endif
    }
}

// What a product is added to before it is stored: data null, nothing.
struct Addend {
    const float* data = nullptr;
    int64_t row = 0;

    Addend at(int64_t i, int64_t j) const { return {data ? data + i * row + j : nullptr, row}; }
};

ANVIL_INLINE FloatRegister load_register(const float* p) {
    FloatRegister x;
    std::memcpy(&x, p, sizeof x);
    return x;
}
ANVIL_INLINE FloatRegister load_register(const bf16* p) {
    HalfRegister halves;
    std::memcpy(&halves, p, sizeof halves);
    return widened(halves);
}
ANVIL_INLINE void store_register(float* p, FloatRegister x) { std::memcpy(p, &x, sizeof x); }
ANVIL_INLINE void store_register(bf16* p, FloatRegister x) {
    const HalfRegister halves = narrowed(x);
    std::memcpy(p, &halves, sizeof halves);
}

// One tile: c (rows, cols)  =  a (rows, K) panel (K, kTileCols) [+ before] [+ bias]. `rows` is a constant so that the
// sums stay in registers.
template <int rows, class Out, class T>
void multiply_tile(Out* c, int64_t c_row, int64_t cols, Strided<T> a, const float* panel, int64_t K, Addend before,
                   const Out* bias) {
    // What is written, and for float what it is added to, comes from memory while k runs.
    constexpr int64_t kLine = 64 / int64_t(sizeof(Out));
    for (int i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j += kLine) __builtin_prefetch(c + i * c_row + j, 1);
    if (before.data && static_cast<const void*>(before.data) != c)
        for (int i = 0; i < rows; i++)
            for (int64_t j = 0; j < cols; j += 16) __builtin_prefetch(before.data + i * before.row + j);
    FloatRegister sum[rows][kTileRegisters] = {};
    // Three rows to a pointer: what the processor adds to an address by itself, else they would not fit in its
    // registers.
    constexpr int groups = (rows + 2) / 3;
    const T* a_k[groups];
#pragma GCC unroll 4
    for (int g = 0; g < groups; g++) a_k[g] = a.data + 3 * g * a.row;
    const int64_t step = kPair<T> * a.col;
    for (int64_t k = 0; k < K; k += kPair<T>, panel += kTileCols) {
        FloatRegister b[kTileRegisters];
#pragma GCC unroll 4
        for (int r = 0; r < kTileRegisters; r++) b[r] = load_register(panel + r * kRegisterLanes);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            const FloatRegister a_ik = spread(a_k[i / 3] + i % 3 * a.row);
#pragma GCC unroll 4
            for (int r = 0; r < kTileRegisters; r++) sum[i][r] = multiply_add<T>(a_ik, b[r], sum[i][r]);
        }
#pragma GCC unroll 4
        for (int g = 0; g < groups; g++) a_k[g] += step;
    }
    // A tile at the right edge is finished in copies of full width.
    Out edge[rows][kTileCols], edge_bias[kTileCols] = {};
    float edge_before[rows][kTileCols];
    const bool whole = cols == kTileCols;
    if (!whole) {
        if (bias) bias = static_cast<const Out*>(std::memcpy(edge_bias, bias, size_t(cols) * sizeof(Out)));
        if (before.data) {
            for (int i = 0; i < rows; i++)
                std::memcpy(edge_before[i], before.data + i * before.row, size_t(cols) * sizeof(float));
            before = {edge_before[0], kTileCols};
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kTileRegisters; r++) {
        const int at = r * kRegisterLanes;
        // Zeros are added, too, where there is no bias in bf16: they make a -0 a 0.
        const FloatRegister offset = bias ? load_register(bias + at) : FloatRegister{};
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            if constexpr (std::is_same_v<Out, float>)
                if (bias) sum[i][r] += offset;
            if (before.data) sum[i][r] += load_register(before.data + i * before.row + at);
            if constexpr (!std::is_same_v<Out, float>) sum[i][r] += offset;
            store_register((whole ? c + i * c_row : edge[i]) + at, sum[i][r]);
        }
    }
    if (!whole)
        for (int i = 0; i < rows; i++) std::memcpy(c + i * c_row, edge[i], size_t(cols) * sizeof(Out));
}

template <int rows, class Out, class T>
ANVIL_INLINE void multiply_rows(int64_t M, Out* c, int64_t c_row, int64_t cols, Strided<T> a, const float* panel,
                                int64_t K, Addend before, const Out* bias) {
    if constexpr (rows > 0) {
        if (M == rows)
            multiply_tile<rows>(c, c_row, cols, a, panel, K, before, bias);
        else
            multiply_rows<rows - 1>(M, c, c_row, cols, a, panel, K, before, bias);
    }
}

// c (M, N)  =  a (M, K) times packed panels [+ before] [+ bias], by the calling thread, rounded once; K <= kBlockK<T>
template <class Out, class T>
void multiply_panels_in_registers(Out* c, int64_t c_row, int64_t M, int64_t N, int64_t K, Strided<T> a,
                                  const float* panels, Addend before, const Out* bias) {
    const int64_t panel = packed_size<T>(K, 1);
    for (int64_t j = 0; j < N; j += kTileCols, panels += panel)
        for (int64_t i = 0; i < M; i += kTileRows)
            multiply_rows<kTileRows>(std::min<int64_t>(kTileRows, M - i), c + i * c_row + j, c_row,
                                     std::min<int64_t>(kTileCols, N - j), a.at(i, 0), panels, K, before.at(i, j),
                                     bias ? bias + j : nullptr);
}

// c (M, N) (=, +=) a (M, K) times packed panels, by the calling thread; K <= kBlockK<T>, in tiles kTileBlockK
template <class T>
void multiply_panels(float* c, int64_t c_row, int64_t M, int64_t N, int64_t K, Strided<T> a, const float* panels,
                     Write write, TileProduct in_tiles = tile_product_of<T>()) {
    if constexpr (std::is_same_v<T, bf16>)
        if (in_tiles) return in_tiles(c, c_row, M, N, K, a, panels, write);
    const Addend before = write == Write::add ? Addend{c, c_row} : Addend{};
    multiply_panels_in_registers<float>(c, c_row, M, N, K, a, panels, before, nullptr);
}

// Rows of one panel's width:   c (rows, cols)  =  sums (rows, cols) + bias, each rounded once
inline void round_tile(bf16* c, int64_t c_row, const float* sums, int64_t sums_row, int64_t rows, int64_t cols,
                       const bf16* bias) {
    for_lanes(cols, [&](int64_t j, auto width) {
        const F32x16 offset = bias ? load(bias + j, width) : zeros();
        for (int64_t i = 0; i < rows; i++)
            store(c + i * c_row + j, load(sums + i * sums_row + j, width) + offset, width);
    });
}

// c (M, N), rows c_row apart  (=, +=)  a (M, K) b (K, N) + bias (N, may be null). Of sums in float; a c of bf16 is
// written when they are complete, and never added to.
template <class Out, class T>
void gemm(Cpu& cpu, Out* c, int64_t c_row, int64_t M, int64_t N, int64_t K, Strided<T> a, Strided<T> b,
          const std::type_identity_t<T>* bias, Write write) {
    const TileProduct tiles = tile_product_of<T>();
    // So much of K is packed at once: most_deep x some columns of B, 4 MiB for all threads. And rows of A that stay in
    // a core's L2 while panels pass by, and their sums of a panel's width with them. Tiles are done with 192 rows of a
    // panel before the next one has come from L3, at some 30 GB/s a core: more rows, in half of the 2 MiB of L2 that
    // those processors have. A deep K leaves room for few rows; one that is cut often takes the sums along as often. In
    // the middle lies what moves least.
    constexpr int64_t kPackedBytes = 4 << 20, kMostRowsInTiles = 512, kMostRowsInRegisters = 16 * kTileRows;
    const int64_t block = tiles ? kTileBlockK : kBlockK<T>;
    const int64_t most_deep = tiles ? 2048 : 4096, chunk_bytes = (tiles ? 1024 : 512) << 10;
    const int64_t most_chunk_rows = tiles ? kMostRowsInTiles : kMostRowsInRegisters;
    constexpr int64_t kSums = std::max(kMostRowsInTiles, kMostRowsInRegisters) * kTileCols;
    const int64_t strip_rows = tiles ? kStripRows : kTileRows, strip_depth = tiles ? kTmmDepth : kPair<T>;
    constexpr bool rounds = !std::is_same_v<Out, float>;
    constexpr int64_t bytes = sizeof(T);
    ensure(write == Write::set || (!rounds && !bias));
    ensure(rounds || sizeof(T) == sizeof(float) || !bias);
    // A transposed A is copied into strips, contiguous in k or, for registers, in rows; so is one whose rows do not end
    // with a whole step.
    const bool pack_a = a.col != 1 || K % strip_depth != 0;
    const auto packed_depth = [=](int64_t depth) {
        return (depth + strip_depth - 1) / strip_depth * strip_depth / kPair<T>;
    };
    // A block of K of some rows and a panel, whose first column is j. From the block that begins sums to the one that
    // ends them they wait in `sums`: rows of C may lie so far apart that they share few places in the L1 cache. Tiles
    // leave them there, which is C itself for float; others round_tile rounds.
    const auto multiply_block = [=](float* sums, int64_t sums_row, Out* to, int64_t rows, [[maybe_unused]] int64_t j,
                                    int64_t cols, int64_t depth, Strided<T> a_block, const float* panel, bool begins,
                                    bool ends, [[maybe_unused]] bool adds) {
        Addend before = begins ? Addend{} : Addend{sums, sums_row};
        const Out* offset = nullptr;
        if constexpr (!rounds)
            if (begins && adds) before = {to, c_row};
        if constexpr (std::is_same_v<T, Out>)
            if (bias && (rounds ? ends : begins && !adds)) offset = bias + j;
        if constexpr (std::is_same_v<T, bf16>)
            if (tiles)
                return tiles(sums, sums_row, rows, cols, depth, a_block, panel, before.data ? Write::add : Write::set);
        if (ends)
            multiply_panels_in_registers(to, c_row, rows, cols, depth, a_block, panel, before, offset);
        else if constexpr (rounds)
            multiply_panels_in_registers<float>(sums, sums_row, rows, cols, depth, a_block, panel, before, nullptr);
        else
            multiply_panels_in_registers(sums, sums_row, rows, cols, depth, a_block, panel, before, offset);
    };

    // Of few rows the product is soon made, and packing is much of the work. A thread uses a panel as soon as it has
    // packed a block of it, which is then still in L1, while A comes from L2 or L3 each time.
    constexpr int64_t kFewRows = 64 * kTileRows, kFewBytes = 4 << 20;
    const bool few = !tiles && M <= kFewRows && M * K * bytes <= kFewBytes && num_panels(N) >= 8 * cpu.num_threads;
    if ((few || M <= kTileRows) && a.col == 1 && (tiles || !pack_a)) {
        parallel_tasks(cpu, num_panels(N), [=, &cpu](int64_t item) {
            const int64_t j = item * kTileCols, cols = std::min<int64_t>(kTileCols, N - j);
            float* panel = cpu.own(packed_size<T>(block, 1) + M * kTileCols);
            float* sums = panel + packed_size<T>(block, 1);
            int64_t sums_row = kTileCols;
            if constexpr (!rounds)
                if (tiles) sums = c + j, sums_row = c_row;
            for (int64_t k0 = 0; k0 < K; k0 += block) {
                const int64_t depth = std::min(block, K - k0);
                pack_panel<kTileCols>(panel, b.at(k0, j), depth, cols);
                multiply_block(sums, sums_row, c + j, M, j, cols, depth, a.at(0, k0), panel, k0 == 0, k0 + depth == K,
                               write == Write::add);
            }
            if constexpr (rounds)
                if (tiles) round_tile(c + j, c_row, sums, sums_row, M, cols, bias ? bias + j : nullptr);
        });
        return;
    }
    const int64_t deepest = std::min(K, most_deep), strips = (M + strip_rows - 1) / strip_rows;
    const int64_t most_cols =
        std::max<int64_t>(kPackedBytes / (deepest * bytes) / kTileCols, cpu.num_threads) * kTileCols;
    const int64_t packed_cols = std::min(N, most_cols);
    // Chunks of equal size, to a strip, so that each thread gets as much as the next.
    const int64_t most_rows =
        std::clamp<int64_t>(chunk_bytes / (deepest * bytes) / strip_rows * strip_rows, strip_rows, most_chunk_rows);
    const int64_t chunks = (M + most_rows - 1) / most_rows;
    const int64_t chunk_rows = (strips + chunks - 1) / chunks * strip_rows;
    const int64_t rows_at_once = tiles ? strip_rows : kStripsAtOnce * kTileRows;
    const int64_t packed_strips = (M + rows_at_once - 1) / rows_at_once;
    const int64_t b_size = num_panels(packed_cols) * kTileCols * packed_depth(deepest);
    const int64_t a_rows = strips * strip_rows;
    // Tiles have A in blocks of K: rows that lie farther apart would share few places in the L1 cache.
    const int64_t a_depth = tiles ? (deepest + block - 1) / block * packed_depth(block) : packed_depth(deepest);
    const int64_t a_size = pack_a ? a_rows * a_depth : 0;
    const bool kept = rounds && K > most_deep;  // sums wait for the next part of K
    float* packed_b = cpu.shared(b_size + a_size + (kept ? M * packed_cols : 0));
    float *packed_a = packed_b + b_size, *kept_sums = packed_a + a_size;
    // Where row i of A begins that is packed (rows, block) for tiles: value k0, a multiple of it
    const auto tile_row = [=](int64_t i, int64_t k0) {
        return reinterpret_cast<T*>(packed_a) + k0 * a_rows + i * block;
    };

    for (int64_t j0 = 0; j0 < N; j0 += packed_cols) {
        const int64_t all_cols = std::min(packed_cols, N - j0), panels = num_panels(all_cols);
        for (int64_t deep0 = 0; deep0 < K; deep0 += most_deep) {
            const int64_t deep = std::min(most_deep, K - deep0), packed = packed_depth(deep);
            const bool first = deep0 == 0, last = deep0 + deep == K;
            parallel_tasks(cpu, panels + (pack_a ? packed_strips : 0), [=](int64_t item) {
                const int64_t i = (item - panels) * rows_at_once, rows = std::min(rows_at_once, M - i);
                if (item < panels) {
                    const int64_t j = item * kTileCols;
                    float* to = packed_b + j * packed;
                    pack_panel<kTileCols>(to, b.at(deep0, j0 + j), deep, std::min<int64_t>(kTileCols, all_cols - j));
                    std::fill(to + packed_size<T>(deep, 1), to + kTileCols * packed, 0.f);
                } else if (!tiles) {
                    pack_strips(packed_a + i * packed, a.at(i, deep0), rows, deep);
                } else if constexpr (std::is_same_v<T, bf16>) {
                    for (int64_t k0 = 0; k0 < deep; k0 += block)
                        pack_tile_rows(tile_row(i, k0), a.at(i, deep0 + k0), rows, std::min(block, deep - k0));
                }
            });
            parallel_tasks(cpu, chunks * panels, [=](int64_t item) {
                const int64_t j = item % panels * kTileCols, cols = std::min<int64_t>(kTileCols, all_cols - j);
                const int64_t begin = item / panels * chunk_rows, end = std::min(M, begin + chunk_rows);
                alignas(64) float chunk_sums[kSums];
                float* sums = chunk_sums;  // of row `begin` and the first column
                int64_t sums_row = kTileCols;
                Out* to = c + begin * c_row + j0 + j;
                if constexpr (!rounds) {
                    if (tiles) sums = to, sums_row = c_row;
                } else if (kept) {
                    sums = kept_sums + begin * packed_cols + j, sums_row = packed_cols;
                }
                for (int64_t k0 = 0; k0 < deep; k0 += block) {
                    const int64_t depth = std::min(block, packed * kPair<T> - k0);
                    const bool begins = k0 == 0 && (first || !rounds), adds = write == Write::add || !first;
                    const bool ends = k0 + block >= packed * kPair<T> && (last || !rounds);
                    const int64_t at_once = tiles ? kStripRows : kTileRows;
                    for (int64_t i = begin; i < end; i += at_once) {
                        const T* strip = reinterpret_cast<const T*>(packed_a + i * packed) + k0 * kTileRows;
                        const Strided<T> rows = !pack_a ? a.at(i, deep0 + k0)
                                                : tiles ? Strided<T>{tile_row(i, k0), block, 1}
                                                        : Strided<T>{strip, kPair<T>, kTileRows};
                        multiply_block(sums + (i - begin) * sums_row, sums_row, to + (i - begin) * c_row,
                                       std::min(at_once, end - i), j0 + j, cols, depth, rows,
                                       packed_b + j * packed + k0 / kPair<T> * kTileCols, begins, ends, adds);
                    }
                }
                if constexpr (rounds)
                    if (last && tiles)
                        round_tile(to, c_row, sums, sums_row, end - begin, cols, bias ? bias + j0 + j : nullptr);
            });
        }
    }
}
