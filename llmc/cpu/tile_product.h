/*
Products of bf16 in tiles, where the processor has them (amx.h): an order of sums of their own is the price of many
times the rate. Each element of C begins with what it is added to, else with zero, and is added 32 terms at a time,
neighbours in k in two chains, even and odd. Neither threads nor how many rows there are have any say in that.

  tile_product()   what multiplies panels (panels.h) in this process; null: registers do (gemm.h)
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include "llmc/base/bf16.h"   // bf16
#include "llmc/cpu/amx.h"     // AmxTiles, has_amx
#include "llmc/cpu/panels.h"  // pack_panel, packed_size, Strided
#include "llmc/ops/matmul.h"  // Write

// What a thread multiplies at once: A's rows of two tiles times a panel, which is two tiles wide, or one where
// registers are shorter.
inline constexpr int64_t kStripRows = 2 * kTmmRows;
inline constexpr bool kPanelsFitTiles = kTileCols == kTmmCols || kTileCols == 2 * kTmmCols;

// to (rows rounded up to whole tiles, kTileBlockK)  <-  a (rows, K), its rows contiguous now, zeros beyond K and `rows`
inline void straighten_rows(bf16* to, Strided<bf16> a, int64_t rows, int64_t K) {
    const int64_t whole_rows = (rows + kTmmRows - 1) / kTmmRows * kTmmRows;
    const int64_t whole_K = (K + kTmmDepth - 1) / kTmmDepth * kTmmDepth, size = int64_t(sizeof(bf16));
    if (rows < whole_rows || K < whole_K)
        for (int64_t i = 0; i < whole_rows; i++) std::memset(to + i * kTileBlockK, 0, size_t(whole_K * size));
    if (a.col == 1) {
        for (int64_t i = 0; i < rows; i++) std::memcpy(to + i * kTileBlockK, a.data + i * a.row, size_t(K * size));
        return;
    }
    const bool dense = a.row == 2;  // pairs beside those of the next row
    const int64_t blocked_rows = dense ? rows / 8 * 8 : 0, blocked_K = K / 16 * 16;
    for (int64_t i = 0; i < blocked_rows; i += 8)
        for (int64_t k = 0; k < blocked_K; k += 16)
            transpose_8x8(to + i * kTileBlockK + k, kTileBlockK * size, a.data + i * a.row + k * a.col,
                          2 * a.col * size);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = i < blocked_rows ? blocked_K : 0; k < K; k += 2)
            std::memcpy(to + i * kTileBlockK + k, a.data + i * a.row + k * a.col, size_t(2 * size));
}

// The same of an A whose columns are contiguous, and in memory not yet pairs.
inline void pack_tile_rows(bf16* to, Strided<bf16> a, int64_t rows, int64_t K) {
    if (a.col == 1) return straighten_rows(to, a, rows, K);
    float pairs[kTileBlockK / 2 * kStripRows];
    pack_panel<kStripRows>(pairs, a.transposed(), K, rows);
    straighten_rows(to, Strided{reinterpret_cast<const bf16*>(pairs), 2, kStripRows}, kStripRows, K);
}

// c (16 high, kTileCols) (=, +=) a (16 high, steps of kTmmDepth) b, and one more step with the rows `tail` of b if
// there are any. Four loads feed four products, whose sums stay in registers: the loads take half as long as the
// products.
template <class Tiles, int high>
void multiply_tmm(float* c, int64_t c_row, const bf16* a, int64_t a_row, const float* b, int64_t steps,
                  const float* tail, Write write) {
    constexpr bool tall = high == 2, wide = kTileCols > kTmmCols;
    const auto each_sum = [=](auto visit) {
        visit(Tmm<0>{}, c);
        if constexpr (wide) visit(Tmm<1>{}, c + kTmmCols);
        if constexpr (tall) visit(Tmm<2>{}, c + kTmmRows * c_row);
        if constexpr (wide && tall) visit(Tmm<3>{}, c + kTmmRows * c_row + kTmmCols);
    };
    const auto step = [a_row](const bf16* a_k, const float* b_k) {
        constexpr int64_t kPanelRow = kTileCols * int64_t(sizeof(float));
        const int64_t row_bytes = a_row * int64_t(sizeof(bf16));
        Tiles::load(Tmm<4>{}, a_k, row_bytes);
        Tiles::load(Tmm<6>{}, b_k, kPanelRow);
        Tiles::multiply(Tmm<0>{}, Tmm<4>{}, Tmm<6>{});
        if constexpr (wide) {
            Tiles::load(Tmm<7>{}, b_k + kTmmCols, kPanelRow);
            Tiles::multiply(Tmm<1>{}, Tmm<4>{}, Tmm<7>{});
        }
        if constexpr (tall) {
            Tiles::load(Tmm<5>{}, a_k + kTmmRows * a_row, row_bytes);
            Tiles::multiply(Tmm<2>{}, Tmm<5>{}, Tmm<6>{});
            if constexpr (wide) Tiles::multiply(Tmm<3>{}, Tmm<5>{}, Tmm<7>{});
        }
    };
    const int64_t c_bytes = c_row * int64_t(sizeof(float));
    if (write == Write::add)
        each_sum([=](auto sum, float* at) { Tiles::load(sum, at, c_bytes); });
    else
        each_sum([](auto sum, float*) { Tiles::zero(sum); });
    for (int64_t s = 0; s < steps; s++, a += kTmmDepth, b += kTmmDepth / 2 * kTileCols) step(a, b);
    if (tail) step(a, tail);
    each_sum([=](auto sum, float* at) { Tiles::store(sum, at, c_bytes); });
}

// multiply_panels in tiles. Whatever is not whole is multiplied in a copy, so that nothing outside is read.
template <class Tiles>
void multiply_panels_in_tiles(float* c, int64_t c_row, int64_t M, int64_t N, int64_t K, Strided<bf16> a,
                              const float* panels, Write write) {
    static_assert(kPanelsFitTiles && sizeof(Tiles) > 0);  // only where it is used
    alignas(64) bf16 straight[kStripRows * kTileBlockK];
    alignas(64) float edge[kStripRows * kTileCols], tail[kTmmDepth / 2 * kTileCols];
    const int64_t panel = packed_size<bf16>(K, 1), steps = K / kTmmDepth, rest = packed_size<bf16>(K % kTmmDepth, 1);
    Tiles::prepare();
    for (int64_t i = 0; i < M; i += kStripRows) {
        const int64_t rows = std::min(kStripRows, M - i);
        Strided<bf16> strip = a.at(i, 0);
        if (a.col != 1 || rest > 0 || rows % kTmmRows != 0) {
            straighten_rows(straight, strip, rows, K);
            strip = {straight, kTileBlockK, 1};
        }
        const float* b = panels;
        for (int64_t j = 0; j < N; j += kTileCols, b += panel) {
            const int64_t cols = std::min<int64_t>(kTileCols, N - j);
            if (rest > 0) {
                std::memset(tail, 0, sizeof tail);
                std::memcpy(tail, b + panel - rest, size_t(rest) * sizeof(float));
            }
            const bool whole = cols == kTileCols && rows % kTmmRows == 0;
            float *at = c + i * c_row + j, *to = whole ? at : edge;
            const int64_t to_row = whole ? c_row : kTileCols;
            if (!whole && write == Write::add) {
                std::memset(edge, 0, sizeof edge);
                for (int64_t r = 0; r < rows; r++)
                    std::memcpy(edge + r * kTileCols, at + r * c_row, size_t(cols) * sizeof(float));
            }
            const auto multiply = rows > kTmmRows ? multiply_tmm<Tiles, 2> : multiply_tmm<Tiles, 1>;
            multiply(to, to_row, strip.data, strip.row, b, steps, rest > 0 ? tail : nullptr, write);
            for (int64_t r = 0; !whole && r < rows; r++)
                std::memcpy(at + r * c_row, edge + r * kTileCols, size_t(cols) * sizeof(float));
        }
    }
}

// What multiplies panels of bf16 in this process, if not multiply_panels itself. Whoever sets it (a test, or a user's
// wish at the start) does so while nothing multiplies.
using TileProduct = void (*)(float*, int64_t, int64_t, int64_t, int64_t, Strided<bf16>, const float*, Write);
inline TileProduct& tile_product() {
#if defined(__AVX512BF16__)  // as every processor with tiles has
    static TileProduct product = has_amx() ? multiply_panels_in_tiles<AmxTiles> : nullptr;
#else
    static TileProduct product = nullptr;
#endif
    return product;
}
template <class T>
TileProduct tile_product_of() {
    if constexpr (std::is_same_v<T, bf16>)
        return tile_product();
    else
        return nullptr;
}
