/*
The micro-kernel of gemm() in AMX tiles (amx.h), for bf16 on processors that have them: many times the rate of
registers, with an order of sums of its own. Each element of C starts from the previous value or from zero and grows by
32 terms at a time, summed in two chains, even and odd k. The number of threads or rows does not affect the result.

  tile_kernel()   the functions that multiply in tiles; null: gemm_micro_kernel.h and gemm_stream.h do it
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include "llmc/base/bf16.h"      // bf16
#include "llmc/cpu/amx.h"        // AmxTiles, has_amx
#include "llmc/cpu/gemm_pack.h"  // load_step, packed_size, Strided, transpose_lanes
#include "llmc/cpu/kernels.h"    // TileKernel
#include "llmc/cpu/simd.h"       // for_lanes, load, store
#include "llmc/ops/matmul.h"     // Write

// A micro-panel is two tiles wide, or one where registers are shorter.
inline constexpr bool kPanelsFitTiles = kNR == kTmmCols || kNR == 2 * kTmmCols;

// to (rows rounded up to whole tiles, kTileBlockK)  <-  a (rows, K), with contiguous rows, zeros beyond K and `rows`
inline void pack_a_rows(bf16* to, const Strided<bf16>& a, int64_t rows, int64_t K) {
    const int64_t whole_rows = (rows + kTmmRows - 1) / kTmmRows * kTmmRows;
    const int64_t whole_K = (K + kTmmDepth - 1) / kTmmDepth * kTmmDepth, size = int64_t(sizeof(bf16));
    if (rows < whole_rows || K < whole_K)
        for (int64_t i = 0; i < whole_rows; i++) std::memset(to + i * kTileBlockK, 0, size_t(whole_K * size));
    if (a.col == 1) {
        for (int64_t i = 0; i < rows; i++) std::memcpy(to + i * kTileBlockK, a.data + i * a.row, size_t(K * size));
        return;
    }
    const bool dense = a.row == 2;  // a pair is followed by the pair of the next row
    const int64_t blocked_rows = dense ? rows / 8 * 8 : 0, blocked_K = K / 16 * 16;
    for (int64_t i = 0; i < blocked_rows; i += 8)
        for (int64_t k = 0; k < blocked_K; k += 16)
            transpose_8x8(to + i * kTileBlockK + k, kTileBlockK * size, a.data + i * a.row + k * a.col,
                          2 * a.col * size);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = i < blocked_rows ? blocked_K : 0; k < K; k += 2)
            std::memcpy(to + i * kTileBlockK + k, a.data + i * a.row + k * a.col, size_t(2 * size));
}

// to (rows rounded up to whole tiles, kTmmDepth), kTileBlockK apart  <-  a (rows, K), with contiguous columns, zeros
// beyond K and `rows`. Transposes pairs of rows of memory.
inline void pack_a_columns(bf16* to, const Strided<bf16>& a, int64_t rows, int64_t K) {
    for (int64_t row = 0; row < (rows + kTmmRows - 1) / kTmmRows * kTmmRows; row += kRegisterLanes)
        for (int64_t step = 0; step < kTmmDepth / 2; step += kRegisterLanes) {
            const int n = int(std::clamp<int64_t>(rows - row, 0, kRegisterLanes));
            FloatRegister r[kRegisterLanes];
#pragma GCC unroll 16
            for (int s = 0; s < kRegisterLanes; s++) r[s] = load_step<bf16>(a.at(row, 0), step + s, n, K);
            transpose_lanes(r);
#pragma GCC unroll 16
            for (int s = 0; s < kRegisterLanes; s++)
                std::memcpy(to + (row + s) * kTileBlockK + 2 * step, &r[s], sizeof r[s]);
        }
}

// The micro-kernel:   c (16 high, kNR) (=, +=) a (16 high, steps of kTmmDepth) b. `tail`, if not null, has the last
// rows of b for one more step. Sums stay in tiles. Four loads feed four multiplications, which take twice as long. The
// tile of c below comes next: asks_below prefetches it, four rows at a time, which pays if c comes from memory.
template <class Tiles, int high>
void tile_micro_kernel(float* c, int64_t c_row, const bf16* a, int64_t a_row, const float* b, int64_t steps,
                       const float* tail, Write write, bool asks_below) {
    constexpr bool tall = high == 2, wide = kNR > kTmmCols;
    const auto each_sum = [=](auto visit) {
        visit(Tmm<0>{}, c);
        if constexpr (wide) visit(Tmm<1>{}, c + kTmmCols);
        if constexpr (tall) visit(Tmm<2>{}, c + kTmmRows * c_row);
        if constexpr (wide && tall) visit(Tmm<3>{}, c + kTmmRows * c_row + kTmmCols);
    };
    const auto step = [a_row](const bf16* a_k, const float* b_k) {
        constexpr int64_t kPanelRow = kNR * int64_t(sizeof(float));
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
    const float *below = c + high * kTmmRows * c_row, *const end = below + (asks_below ? high * kTmmRows * c_row : 0);
    for (int64_t s = 0; s < steps; s++, a += kTmmDepth, b += kTmmDepth / 2 * kNR) {
#pragma GCC unroll 4
        for (int r = 0; r < 4 && below != end; r++, below += c_row)
            for (int64_t j = 0; j < kNR; j += kTmmCols) __builtin_prefetch(below + j, 1);
        step(a, b);
    }
    if (tail) step(a, tail);
    each_sum([=](auto sum, float* at) { Tiles::store(sum, at, c_bytes); });
}

// multiply_panels() in tiles. Edges of A and C go through copies, so that nothing outside of them is accessed.
template <class Tiles>
void multiply_panels_in_tiles(float* c, int64_t c_row, int64_t M, int64_t N, int64_t K, const Strided<bf16>& a,
                              const float* panels, Write write, bool asks_below) {
    static_assert(kPanelsFitTiles && sizeof(Tiles) > 0);  // checked only if instantiated
    alignas(64) bf16 a_rows[kTileMR * kTileBlockK];
    alignas(64) float edge[kTileMR * kNR], tail[kTmmDepth / 2 * kNR];
    const int64_t panel = packed_size<bf16>(K, 1), steps = K / kTmmDepth, rest = packed_size<bf16>(K % kTmmDepth, 1);
    Tiles::prepare();
    for (int64_t i = 0; i < M; i += kTileMR) {
        const int64_t rows = std::min(kTileMR, M - i);
        Strided<bf16> a_i = a.at(i, 0);
        if (a.col != 1 || rest > 0 || rows % kTmmRows != 0) {
            pack_a_rows(a_rows, a_i, rows, K);
            a_i = {a_rows, kTileBlockK, 1};
        }
        const float* b = panels;
        for (int64_t j = 0; j < N; j += kNR, b += panel) {
            const int64_t cols = std::min<int64_t>(kNR, N - j);
            if (rest > 0) {
                std::memset(tail, 0, sizeof tail);
                std::memcpy(tail, b + panel - rest, size_t(rest) * sizeof(float));
            }
            const bool whole = cols == kNR && rows % kTmmRows == 0;
            float *at = c + i * c_row + j, *to = whole ? at : edge;
            const int64_t to_row = whole ? c_row : kNR;
            if (!whole && write == Write::add) {
                std::memset(edge, 0, sizeof edge);
                for (int64_t r = 0; r < rows; r++)
                    std::memcpy(edge + r * kNR, at + r * c_row, size_t(cols) * sizeof(float));
            }
            const auto multiply = rows > kTmmRows ? tile_micro_kernel<Tiles, 2> : tile_micro_kernel<Tiles, 1>;
            multiply(to, to_row, a_i.data, a_i.row, b, steps, rest > 0 ? tail : nullptr, write, asks_below && whole);
            for (int64_t r = 0; !whole && r < rows; r++)
                std::memcpy(at + r * c_row, edge + r * kNR, size_t(cols) * sizeof(float));
        }
    }
}

// c (rows, cols)  =  sums (rows, cols) + bias, rounded once to bf16
inline void round_sums(bf16* c, int64_t c_row, const float* sums, int64_t sums_row, int64_t rows, int64_t cols,
                       const bf16* bias) {
    for_lanes(cols, [&](int64_t j, auto width) {
        const F32x16 offset = bias ? load(bias + j, width) : zeros();
        for (int64_t i = 0; i < rows; i++)
            store(c + i * c_row + j, load(sums + i * sums_row + j, width) + offset, width);
    });
}

// What is asked for while a block of columns is multiplied: the next one, a line per column and step of 64 bytes. It is
// asked for in the order of memory, which reads fastest. Of columns longer than a page, four lines of each in turn are
// faster: the order in which the block itself is read, and hardware prefetchers follow.
template <bool are_long>
struct ColumnsAhead {
    static constexpr int64_t kLine = 64, kRun = 4;  // a run of lines, of long columns
    const char* lines;                              // of this step
    int64_t columns, bytes, steps = 0;
    ANVIL_INLINE void ask(int64_t n) const {
        prefetch_here<2>(are_long ? lines + n / kRun * bytes + n % kRun * kLine : lines + n * kLine);
    }
    ANVIL_INLINE void end_step() {
        if constexpr (!are_long)
            lines += columns * kLine;
        else
            lines += columns / kRun * bytes + (++steps % kRun == 0 ? kRun * kLine - columns * bytes : 0);
    }
};

// Where a block of columns is among those that a thread reads one after the other (gemm_stream.h).
struct StreamPlace {
    bool is_first, is_last;
    // Of its columns [first, first + columns).
    StreamPlace of_part(int64_t first, int64_t columns) const {
        return {is_first && first == 0, is_last && first + columns == kStreamedColumns};
    }
    // While the block at b is read. The first has not been asked for. After the last, asking for more would take memory
    // from other threads.
    template <bool are_long, class T>
    ColumnsAhead<are_long> ahead(const Strided<T>& b, int64_t columns) const {
        const int64_t bytes = b.col * int64_t(sizeof(T));
        const auto* begin = reinterpret_cast<const char*>(b.data);
        for (int64_t i = 0; is_first && i < columns * bytes; i += 64) __builtin_prefetch(begin + i, 0, 2);
        return {is_last ? begin : begin + columns * bytes, columns, bytes};
    }
};
// body(std::bool_constant<whether columns of b are longer than a page>)
template <class T, class Body>
void with_column_length(const Strided<T>& b, Body&& body) {
    const int64_t bytes = b.col * int64_t(sizeof(T)), page = 4096;
    bytes > page ? body(std::true_type{}) : body(std::false_type{});
}

// A few rows of A as the tiles of stream_columns_in_tiles():   to (K / 2, M) pairs  <-  a (M, K). A tile has kTmmCols
// columns, of which those from M on are of the memory that follows, up to kTmmCols floats beyond the last, and unused.
inline void pack_streamed_rows(float* to, const Strided<bf16>& a, int64_t M, int64_t K) {
    for (int64_t k = 0; k < K; k += 2)
        for (int64_t i = 0; i < M; i++, to++) std::memcpy(to, a.data + i * a.row + k, sizeof(float));
}

// stream_block() in tiles:   c (M, kTmmCols)  =  a (M, K) b (K, kTmmCols) + bias,   M <= kTmmCols, K a multiple of
// kTmmDepth. Columns of B are rows of the left factor, whose tiles are read in place: c is transposed.
template <class Tiles>
void stream_columns_in_tiles(bf16* c, int64_t c_row, int64_t M, int64_t K, const float* a, const Strided<bf16>& b,
                             const bf16* bias, StreamPlace place) {
    Tiles::prepare();
    Tiles::zero(Tmm<0>{});
    with_column_length(b, [&](auto are_long) {
        ColumnsAhead ahead = place.ahead<are_long>(b, kTmmCols);
        for (int64_t k = 0; k < K; k += kTmmDepth, ahead.end_step()) {
            for (int64_t j = 0; j < kTmmCols; j++) {
                ahead.ask(j);
                prefetch_here<1>(b.data + j * b.col + k);  // the tile's load would ask for all its lines in a burst
            }
            Tiles::load(Tmm<4>{}, a + k / 2 * M, M * int64_t(sizeof(float)));
            Tiles::load(Tmm<5>{}, b.data + k, b.col * int64_t(sizeof(bf16)));
            Tiles::multiply(Tmm<0>{}, Tmm<5>{}, Tmm<4>{});
        }
    });
    alignas(64) float columns[kTmmCols * kTmmCols], rows[kTmmCols * kTmmCols];
    Tiles::store(Tmm<0>{}, columns, kTmmCols * int64_t(sizeof(float)));
    for (int64_t j = 0; j < kTmmCols; j += 8)
        for (int64_t i = 0; i < M; i += 8)
            transpose_8x8(rows + i * kTmmCols + j, kTmmCols * int64_t(sizeof(float)), columns + j * kTmmCols + i,
                          kTmmCols * int64_t(sizeof(float)));
    round_sums(c, c_row, rows, kTmmCols, M, kTmmCols, bias);
}

struct TileFunctions {
    decltype(&multiply_panels_in_tiles<void>) multiply_panels;
    decltype(&stream_columns_in_tiles<void>) stream_columns;
};
template <class Tiles>
inline constexpr TileFunctions kTileFunctions = {multiply_panels_in_tiles<Tiles>, stream_columns_in_tiles<Tiles>};

// Assign to it only while nothing multiplies: at the start of the process, or in a test.
inline TileKernel& tile_kernel() {
#if defined(__AVX512BF16__)  // as every processor with tiles has
    static TileKernel kernel = has_amx() ? &kTileFunctions<AmxTiles> : nullptr;
#else
    static TileKernel kernel = nullptr;
#endif
    return kernel;
}
template <class T>
TileKernel tile_kernel_of() {
    if constexpr (std::is_same_v<T, bf16>)
        return tile_kernel();
    else
        return nullptr;
}
