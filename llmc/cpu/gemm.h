/*
Matrix multiplication on the CPU, by all threads:   C (M,N) = or += A (M,K) B (K,N) [+ bias (N)]

Loops and names are those of BLIS: gemm_plan.h has the loop nest, the block sizes and the citation, gemm_pack.h the
layout of packed operands, gemm_micro_kernel.h the register kernel and the bit-exact definition of the result. Threads
share loops 2 and 3. With few rows, each thread packs whole micro-panels of B for itself; with very few, it reads
columns of B in place (gemm_stream.h).
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include "llmc/base/bf16.h"              // bf16
#include "llmc/base/check.h"             // ensure
#include "llmc/cpu/device.h"             // Cpu, parallel_tasks
#include "llmc/cpu/gemm_micro_kernel.h"  // multiply_panels_in_registers
#include "llmc/cpu/gemm_pack.h"          // pack_micro_panel, pack_a, copy_rows, Strided
#include "llmc/cpu/gemm_plan.h"          // GemmPlan, gemm_plan
#include "llmc/cpu/gemm_stream.h"        // stream_block
#include "llmc/cpu/gemm_tiles.h"         // pack_a_rows, pack_a_columns, round_sums, tile_kernel_of
#include "llmc/ops/matmul.h"             // Write
#include "llmc/cpu/simd.h"

// One gemm(): its operands, its plan, and where they are packed, as P.
template <class Out, class P, class T>
struct Gemm {
    static constexpr bool kRounds = !std::is_same_v<Out, float>;

    // A block of C: rows from i on, columns from j on.
    struct Tile {
        int64_t i, j, rows, cols;
    };
    // A block of K: up to KB terms from k on, what the sums of a tile start from, and whether they are stored to C.
    struct KBlock {
        int64_t k, terms;
        enum Start { from_zero, from_c, from_sums } start;
        bool ends_in_c, adds_bias;
    };
    // The sums of a tile between two blocks of K. They are not kept in C, whose rows may be so far apart that they map
    // to few sets of the L1 cache, and which may be bf16.
    struct Sums {
        float* data;
        int64_t row;
    };

    GemmPlan plan;
    TileKernel tiles;  // null: multiply in registers
    Out* c;
    int64_t c_row;
    Strided<T> a, b;
    const T* bias;
    Write write;
    float *packed_b = nullptr, *packed_a = nullptr, *kept_sums = nullptr;

    const T* bias_at(int64_t j) const { return bias ? bias + j : nullptr; }
    int64_t depth(int64_t pc) const { return std::min(plan.KC, plan.K - pc); }  // of what is packed, in terms

    // The block that begins `k` terms after pc.
    KBlock k_block(int64_t pc, int64_t k) const {
        const int64_t begin = pc + k, kc = depth(pc);
        const int64_t terms = std::min(plan.kernel.KB, plan.packs_a ? plan.padded_k(kc) - k : kc - k);
        const bool is_first = begin == 0, is_last = begin + plan.kernel.KB >= plan.K;
        const bool starts_at_zero = is_first && write == Write::set;
        if constexpr (kRounds)
            return {begin, terms, is_first ? KBlock::from_zero : KBlock::from_sums, is_last, is_last && bias};
        else
            return {begin, terms,
                    k > 0            ? KBlock::from_sums
                    : starts_at_zero ? KBlock::from_zero
                                     : KBlock::from_c,
                    k + plan.kernel.KB >= kc, is_first && bias};
    }

    // One block of K:   tile of C, or its sums  =  block.start + a_k (rows, terms) times a micro-panel of B
    void multiply(const Tile& tile, const KBlock& block, const Strided<P>& a_k, const float* b_panel, Sums sums,
                  const Ahead& ahead = {}) const {
        Out* to = c + tile.i * c_row + tile.j;
        if constexpr (std::is_same_v<P, bf16>)
            if (tiles)
                return tiles->multiply_panels(sums.data, sums.row, tile.rows, tile.cols, block.terms, a_k, b_panel,
                                              block.start == KBlock::from_zero ? Write::set : Write::add,
                                              plan.c_is_far);
        Addend before = block.start == KBlock::from_sums ? Addend{sums.data, sums.row} : Addend{};
        if constexpr (!kRounds)
            if (block.start == KBlock::from_c) before = {to, c_row};
        const Out* offset = nullptr;
        if constexpr (std::is_same_v<T, Out>)
            if (block.adds_bias) offset = bias + tile.j;
        if (block.ends_in_c)
            multiply_panels_in_registers(to, c_row, tile.rows, tile.cols, block.terms, a_k, b_panel, before, offset,
                                         ahead);
        else if constexpr (kRounds)
            multiply_panels_in_registers<float>(sums.data, sums.row, tile.rows, tile.cols, block.terms, a_k, b_panel,
                                                before, nullptr, ahead);
        else
            multiply_panels_in_registers(sums.data, sums.row, tile.rows, tile.cols, block.terms, a_k, b_panel, before,
                                         offset, ahead);
    }

    // AMX tiles accumulate in C itself if it is float, else in `sums`, which round_sums_of_tiles() rounds into C while
    // they are in L1. prefetch_rounded() asks for those rows of C before.
    Sums sums_of_tiles(const Tile& tile, Sums sums) const {
        if constexpr (!kRounds)
            if (tiles) return {c + tile.i * c_row + tile.j, c_row};
        return sums;
    }
    void prefetch_rounded(const Tile& tile) const {
        if (!kRounds || !tiles) return;
        for (int64_t r = 0; r < tile.rows; r++) __builtin_prefetch(c + (tile.i + r) * c_row + tile.j, 1, 2);
    }
    void round_sums_of_tiles(const Tile& tile, Sums sums) const {
        if constexpr (kRounds)
            if (tiles)
                round_sums(c + tile.i * c_row + tile.j, c_row, sums.data, sums.row, tile.rows, tile.cols,
                           bias_at(tile.j));
    }

    // B is packed in parts of so many columns and terms: long rows of memory, or whole micro-panels. Short rows are
    // still in L2 for the next micro-panel.
    bool packs_rows_of_b() const {
        constexpr int64_t kShortRow = 512;  // bytes
        return b.col == 1 && plan.N * int64_t(sizeof(T)) > kShortRow;
    }
    int64_t cols_of_b_part() const { return packs_rows_of_b() ? 768 : kNR; }
    int64_t terms_of_b_part() const { return packs_rows_of_b() ? 16 * kPair<P> : plan.KC; }
    int64_t b_parts_across(int64_t jc) const {
        return (std::min(plan.NC, plan.N - jc) + cols_of_b_part() - 1) / cols_of_b_part();
    }
    int64_t parts_of_b(int64_t jc, int64_t pc) const {
        return b_parts_across(jc) * ((depth(pc) + terms_of_b_part() - 1) / terms_of_b_part());
    }
    // Packs a part of B (KC, NC), which begins at row pc and column jc.
    void pack_b_part(int64_t part, int64_t jc, int64_t pc) const {
        const int64_t first = part % b_parts_across(jc) * cols_of_b_part(),
                      k = part / b_parts_across(jc) * terms_of_b_part();
        const int64_t N = std::min(plan.NC, plan.N - jc), kc = depth(pc), terms = std::min(terms_of_b_part(), kc - k);
        for (int64_t jr = first; jr < std::min(N, first + cols_of_b_part()); jr += kNR) {
            float *panel = b_panel_at(jr), *to = panel + packed_steps<P, T>(k) * kNR;
            pack_micro_panel<kNR, P>(to, b.at(pc + k, jc + jr), terms, std::min<int64_t>(kNR, N - jr));
            if (k + terms == kc) std::fill(to + packed_size<P, T>(terms, 1), panel + kNR * plan.packed_depth(kc), 0.f);
        }
    }
    float* b_panel_at(int64_t jr) const { return packed_b + jr / kNR * plan.b_panel(); }

    // A is packed in parts, of a transposed A long runs of memory; a thread mostly packs the rows that it multiplies.
    int64_t rows_of_part() const { return tiles ? (a.col == 1 ? 1 : 8) * kTileMR : (a.col == 1 ? 8 : 64) * kMR; }
    int64_t terms_of_part() const { return a.col == 1 ? plan.KC : tiles ? 2 * kTmmDepth : 32 * kPair<P>; }
    int64_t parts_deep(int64_t pc) const { return (depth(pc) + terms_of_part() - 1) / terms_of_part(); }
    int64_t parts_of_a(int64_t pc) const {
        return plan.packs_a ? (plan.M + rows_of_part() - 1) / rows_of_part() * parts_deep(pc) : 0;
    }
    // Packs a part of A (M, KC), which begins at column pc.
    void pack_a_part(int64_t part, int64_t pc) const {
        const int64_t i = part / parts_deep(pc) * rows_of_part(), k = part % parts_deep(pc) * terms_of_part();
        const int64_t rows = std::min(rows_of_part(), plan.M - i), terms = std::min(terms_of_part(), depth(pc) - k);
        const Strided<T> from = a.at(i, pc + k);
        if (plan.copies_rows) {
            copy_rows<P>(packed_a + i * plan.copied_row(), plan.copied_row(), from, rows, terms);
        } else if (!tiles) {
            pack_a<P>(packed_a + i / kMR * plan.a_panel() + packed_steps<P, T>(k) * kMR, plan.a_panel(), from, rows,
                      terms);
        } else if constexpr (std::is_same_v<P, bf16>) {
            const auto pack = a.col == 1 ? pack_a_rows : pack_a_columns;
            const int64_t at_once = a.col == 1 ? kTileBlockK : kTmmDepth;
            for (int64_t t = 0; t < terms; t += at_once)
                pack(packed_tile_rows(i, k + t), from.at(0, t), rows, std::min(at_once, terms - t));
        }
    }
    // Packed A for tiles is (KC / KB, M, KB).
    P* packed_tile_rows(int64_t i, int64_t k) const {
        const int64_t padded_rows = (plan.M + plan.kernel.MR - 1) / plan.kernel.MR * plan.kernel.MR;
        const int64_t in_block = k % plan.kernel.KB;
        return reinterpret_cast<P*>(packed_a) + (k - in_block) * padded_rows + i * plan.kernel.KB + in_block;
    }

    // A from row i and term pc + k on, packed or in place.
    Strided<P> a_panel(int64_t i, int64_t pc, int64_t k) const {
        if constexpr (!kWidens<P, T>)
            if (!plan.packs_a) return a.at(i, pc + k);
        if (plan.copies_rows) {
            const int64_t row = plan.copied_row() * kPair<P>;
            return {reinterpret_cast<const P*>(packed_a) + i * row + k, row, 1};
        }
        if (tiles) return {packed_tile_rows(i, k), plan.kernel.KB, 1};
        const float* panel = packed_a + i / kMR * plan.a_panel();
        return {reinterpret_cast<const P*>(panel) + k * kMR, kPair<P>, kMR};
    }

    // Of the block of B after this one, of this micro-panel or the next, the part to ask for while
    // tile `tile` of `tiles` is multiplied.
    static Ahead next_block(const float* b_block, int64_t terms, int64_t tile, int64_t tiles) {
        constexpr int64_t kLine = 64;
        const int64_t bytes = packed_size<P>(terms, 1) * int64_t(sizeof(float));
        const int64_t lines = (bytes / kLine + tiles - 1) / tiles, prefetches = terms / (kStepsPerPrefetch * kPair<P>);
        if (prefetches == 0) return {};
        const char* begin = reinterpret_cast<const char*>(b_block) + bytes + tile * lines * kLine;
        return {begin, begin + lines * kLine, (lines + prefetches - 1) / prefetches};
    }

    // Loop 1, for each block of K: rows [ic, ic + MC) and columns [jc + jr, jc + jr + NR) of C, terms [pc, pc + KC)
    void macro_kernel(int64_t ic, int64_t jc, int64_t jr, int64_t pc) const {
        const int64_t kc = depth(pc);
        const Tile all{ic, jc + jr, std::min(plan.MC, plan.M - ic),
                       std::min<int64_t>(kNR, std::min(plan.NC, plan.N - jc) - jr)};
        alignas(64) float sums_in_cache[kMaxMC * kNR];
        const Sums sums = sums_of_tiles(
            all, plan.keeps_sums ? Sums{kept_sums + ic * plan.NC + jr, plan.NC} : Sums{sums_in_cache, kNR});
        const float* b_panel = b_panel_at(jr);
        for (int64_t k = 0; k < kc; k += plan.kernel.KB) {
            const KBlock block = k_block(pc, k);
            const float* b_block = b_panel + k / kPair<P> * kNR;
            const int64_t MR = plan.kernel.MR, blocks = (all.rows + MR - 1) / MR;
            for (int64_t ir = 0; ir < all.rows; ir += MR) {
                const Tile tile{ic + ir, all.j, std::min(MR, all.rows - ir), all.cols};
                const Sums sums_of_tile{sums.data + ir * sums.row, sums.row};
                if (block.ends_in_c) prefetch_rounded(tile);
                multiply(tile, block, a_panel(ic + ir, pc, k), b_block, sums_of_tile,
                         next_block(b_block, block.terms, ir / MR, blocks));
                if (block.ends_in_c) round_sums_of_tiles(tile, sums_of_tile);
            }
        }
    }

    // C (M, kStreamedColumns) from column j on, with B in place. At the right edge the columns begin before j, so that
    // all exist. For tiles A is packed.
    void multiply_in_place(int64_t j, Strided<P> a, StreamPlace place) const {
        const int64_t first = std::min(j, plan.N - kStreamedColumns), new_cols = first + kStreamedColumns - j;
        const int64_t most = tiles ? kTmmCols : kStreamedRows;
        for (int64_t i = 0; i < plan.M; i += most) {
            const int64_t rows = std::min(most, plan.M - i);
            Out* to = c + i * c_row + j;
            Out edge[std::max<int64_t>(kStreamedRows, kTmmCols) * kStreamedColumns];
            const bool whole = new_cols == kStreamedColumns;
            Out* const block = whole ? to : edge;
            const int64_t block_row = whole ? c_row : kStreamedColumns;
            const StreamPlace of_rows{place.is_first && i == 0, place.is_last};
            if (!tiles)
                stream_block(block, block_row, rows, plan.K, a.at(i, 0), b.at(0, first), bias_at(first), of_rows);
            else if constexpr (std::is_same_v<P, bf16>)
                for (int64_t col = 0; col < kStreamedColumns; col += kTmmCols)
                    tiles->stream_columns(block + col, block_row, rows, plan.K, packed_a + i * plan.K / 2,
                                          b.at(0, first + col), bias_at(first + col), of_rows.of_part(col, kTmmCols));
            for (int64_t r = 0; !whole && r < rows; r++)
                std::copy_n(edge + r * kStreamedColumns + j - first, new_cols, to + r * c_row);
        }
    }

    // C (M, NR) from column j on, with memory of the thread's own for a micro-panel (KB, NR) and for sums (M, NR).
    void multiply_few_rows(int64_t j, float* b_panel, float* sums_of_thread) const {
        const Tile all{0, j, plan.M, std::min<int64_t>(kNR, plan.N - j)};
        const Sums sums = sums_of_tiles(all, {sums_of_thread, kNR});
        for (int64_t k = 0; k < plan.K; k += plan.kernel.KB) {
            const KBlock block = k_block(0, k);
            pack_micro_panel<kNR, P>(b_panel, b.at(k, j), std::min(block.terms, plan.K - k), all.cols);
            multiply(all, block, a_panel(0, 0, k), b_panel, sums);
        }
        round_sums_of_tiles(all, sums);
    }
};

// What multiplies operands of T that are packed as P.
template <class P, class T>
GemmKernel gemm_kernel() {
    return tile_kernel_of<P>() ? amx_kernel() : kWidens<P, T> ? widening_kernel() : register_kernel<P>();
}

// gemm() with operands that are multiplied as P
template <class P, class Out, class T>
void gemm_as(Cpu& cpu, Out* c, int64_t c_row, int64_t M, int64_t N, int64_t K, Strided<T> a, Strided<T> b,
             const std::type_identity_t<T>* bias, Write write) {
    using Call = Gemm<Out, P, T>;
    ensure(write == Write::set || (!Call::kRounds && !bias));
    ensure((std::is_same_v<T, Out>) || !bias);
    const TileKernel tiles = tile_kernel_of<P>();
    const GemmPlan plan = gemm_plan({.M = M,
                                     .N = N,
                                     .K = K,
                                     .threads = cpu.num_threads,
                                     .a_transposed = a.col != 1,
                                     .rows_collide = rows_collide(a),
                                     .rounds_c = Call::kRounds,
                                     .streams_b = std::is_same_v<T, Out> && b.row == 1 && write == Write::set,
                                     .l2_bytes = l2_cache_bytes()},
                                    gemm_kernel<P, T>());
    Call call{plan, tiles, c, c_row, a, b, bias, write};
    if constexpr (std::is_same_v<T, Out>)
        if (plan.streams_b) {
            Strided<P> a_terms;
            if constexpr (!kWidens<P, T>) {
                a_terms = a;
                if constexpr (std::is_same_v<P, bf16>)
                    if (tiles) {
                        call.packed_a = cpu.shared_scratch(M * K / 2 + kTmmCols);
                        for (int64_t i = 0; i < M; i += kTmmCols)
                            pack_streamed_rows(call.packed_a + i * K / 2, a.at(i, 0), std::min(kTmmCols, M - i), K);
                    }
            } else {
                float* wide = cpu.shared_scratch(M * K);
                copy_rows<P>(wide, K, a, M, K);
                a_terms = {wide, K, 1};
            }
            const int64_t blocks = (N + kStreamedColumns - 1) / kStreamedColumns;
            parallel_tasks(cpu, blocks, [=, &cpu](int64_t task) {
                call.multiply_in_place(task * kStreamedColumns, a_terms,
                                       {begins_run(cpu, blocks, task), ends_run(cpu, blocks, task)});
            });
            return;
        }

    call.packed_b = cpu.shared_scratch(plan.packed_b_size() + plan.packed_a_size() + plan.kept_sums_size());
    call.packed_a = call.packed_b + plan.packed_b_size();
    call.kept_sums = call.packed_a + plan.packed_a_size();
    const int64_t blocks_of_rows = (M + plan.MC - 1) / plan.MC;
    if (plan.few_rows) {
        parallel_tasks(cpu, call.parts_of_a(0), [=](int64_t task) { call.pack_a_part(task, 0); });
        parallel_tasks(cpu, num_panels(N), [=, &cpu](int64_t panel) {
            float* scratch = cpu.thread_scratch(plan.thread_panel_size() + plan.thread_sums_size());
            call.multiply_few_rows(panel * kNR, scratch, scratch + plan.thread_panel_size());
        });
        return;
    }
    for (int64_t jc = 0; jc < N; jc += plan.NC) {  // loop 5
        const int64_t panels = num_panels(std::min(plan.NC, N - jc));
        for (int64_t pc = 0; pc < K; pc += plan.KC) {  // loop 4
            const int64_t parts_of_b = call.parts_of_b(jc, pc);
            parallel_tasks(cpu, parts_of_b + call.parts_of_a(pc), [=](int64_t task) {
                if (task < parts_of_b)
                    call.pack_b_part(task, jc, pc);
                else
                    call.pack_a_part(task - parts_of_b, pc);
            });
            parallel_tasks(cpu, blocks_of_rows * panels, [=](int64_t task) {  // loops 3 and 2
                call.macro_kernel(task / panels * plan.MC, jc, task % panels * kNR, pc);
            });
        }
    }
}

// c (M, N), rows c_row apart  (=, +=)  a (M, K) b (K, N) + bias (N, may be null). Sums are float. A bf16 c is rounded
// once, from complete sums, and can only be overwritten. A bias requires a, b and c of one type, and Write::set.
template <class Out, class T>
void gemm(Cpu& cpu, Out* c, int64_t c_row, int64_t M, int64_t N, int64_t K, Strided<T> a, Strided<T> b,
          const std::type_identity_t<T>* bias, Write write) {
    with_packed_type<T>([&](auto zero) { gemm_as<decltype(zero)>(cpu, c, c_row, M, N, K, a, b, bias, write); });
}
