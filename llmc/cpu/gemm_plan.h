/*
The blocking of a GEMM on a CPU, as a value: sizes and names are those of the loops of BLIS (Van Zee and van de Geijn,
"BLIS: A Framework for Rapidly Instantiating BLAS Functionality", 2015, doi:10.1145/2764454).

  C (M,N) (+)= A (M,K) B (K,N)
    for jc in 0, NC, ... N            loop 5
      for pc in 0, KC, ... K          loop 4    pack B (KC, NC) into micro-panels of NR columns; it stays in L3
        for ic in 0, MC, ... M        loop 3    A (MC, KC) stays in L2
          for jr in 0, NR, ... NC     loop 2    one micro-panel of B, KB rows of it at a time, stays in L1
            for ir in 0, MR, ... MC   loop 1    the micro-kernel: C (MR, NR) in registers while k runs

Two things differ from BLIS. KC is divided into blocks of KB terms, which are part of the definition of the result: the
micro-kernel sums one block, and the blocks are added in order (gemm_micro_kernel.h). And A is read in place unless it
is widened or transposed, its rows are multiples of 4 KB apart, or K is no multiple of the kernel's step; then all of A
(M, KC) is packed together with B, before loop 3, because all threads share it.

  const GemmPlan plan = gemm_plan({.M = 4096, .N = 3072, .K = 768, .threads = 2}, register_kernel<float>());
  puts(plan.text().c_str());

prints, with AVX2:

  4096 x 3072 x 768, 4-byte elements: MC 96, KC 768, NC 1360, MR 6, NR 16, KB 256, registers, packs B
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include "llmc/base/bf16.h"          // bf16
#include "llmc/base/check.h"         // ensure, format
#include "llmc/cpu/amx.h"            // kTmmRows, kTmmDepth
#include "llmc/cpu/simd.h"           // kRegisterLanes
#include "llmc/platform/platform.h"  // l2_bytes_of_core

// The tile of C that stays in registers while k runs: MR rows of NR columns.
#if defined(__AVX512F__)
inline constexpr int kMR = 12, kNRRegisters = 2;  // 24 of 32 registers hold sums
#elif defined(__ARM_NEON)
inline constexpr int kMR = 6, kNRRegisters = 4;  // 24 of 32
#else
inline constexpr int kMR = 6, kNRRegisters = 2;  // 12 of AVX2's 16
#endif
inline constexpr int kNR = kNRRegisters * kRegisterLanes;
// MR with AMX: two of its tiles. NR is one or two of its tiles.
inline constexpr int64_t kTileMR = 2 * kTmmRows;

// Elements of T in four bytes: bf16 operands are multiplied in pairs of neighbors in k.
template <class T>
inline constexpr int64_t kPair = int64_t(sizeof(float) / sizeof(T));

// KB. For AMX it does not affect the result and is chosen for the L1 cache.
template <class T>
inline constexpr int64_t kBlockK = 256 * kPair<T>;
inline constexpr int64_t kTileBlockK = 256;

inline constexpr int64_t kMaxMC = 512;
// Rows of A for which B is read in place (gemm_stream.h), at a time and in all: with more, packing is faster.
inline constexpr int kStreamedRows = 8;
// Columns of B that a thread reads at a time.
inline constexpr int kStreamedColumns = std::max(kLanes, 2 * kRegisterLanes);
#if defined(__AVX512F__)
inline constexpr int64_t kMostStreamedRows = 24;
#else
inline constexpr int64_t kMostStreamedRows = 8;
#endif

// What multiplies a tile of C: fused multiply-adds in registers, or AMX tiles.
struct GemmKernel {
    int64_t MR, NR, KB;
    int64_t k_step;         // packed operands are padded in k to a multiple of it
    int64_t element_bytes;  // of packed A and B
    bool tiles;
    int64_t streamed_rows;  // the most rows for which B may be read in place
    bool widens = false;    // bf16 is packed as floats, A too
};
template <class T>
constexpr GemmKernel register_kernel() {
    return {kMR, kNR, kBlockK<T>, kPair<T>, sizeof(T), false, kMostStreamedRows};
}
constexpr GemmKernel widening_kernel() {
    return {kMR, kNR, kBlockK<bf16>, kPair<bf16>, sizeof(float), false, kMostStreamedRows, true};
}
constexpr GemmKernel amx_kernel() {
    return {kTileMR, kNR, kTileBlockK, kTmmDepth, sizeof(bf16), true, kMostStreamedRows};
}

// The L2 cache of a core; 1 MiB if the system does not know it. Tests assign to it.
inline int64_t& l2_cache_bytes() {
    static int64_t bytes = [] {
        const long size = l2_bytes_of_core();
        return size > 0 ? int64_t(size) : int64_t(1) << 20;
    }();
    return bytes;
}

struct GemmProblem {
    int64_t M, N, K;
    int64_t threads = 1;
    bool a_transposed = false;  // the columns of A are contiguous, not its rows
    bool rows_collide = false;  // rows_collide() of A
    bool rounds_c = false;      // C is bf16: its sums are rounded once they are complete
    bool streams_b = false;     // B's columns are contiguous, and C is overwritten and of the operands' type
    int64_t l2_bytes = 1 << 20;
};

struct GemmPlan {
    int64_t M, N, K;
    int64_t MC, KC, NC;
    GemmKernel kernel;
    bool packs_a = false;
    bool copies_rows = false;  // A is packed as rows that lie farther apart
    bool streams_b = false;    // very few rows: B is read in place, once
    bool few_rows = false;     // each thread packs micro-panels of B for itself, a block of KB rows at a time
    bool c_is_far = false;     // C is float and comes from memory rather than from L2
    bool keeps_sums = false;   // C is bf16, so sums stay in float from one KC to the next

    static int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
    int64_t padded_k(int64_t terms) const { return round_up(terms, kernel.k_step); }
    // Floats that `terms` of K take when packed, per row of A or column of B.
    int64_t packed_depth(int64_t terms) const {
        return padded_k(terms) * kernel.element_bytes / int64_t(sizeof(float));
    }
    // Sizes in floats, first of the memory that all threads share, then per thread.
    int64_t packed_b_size() const { return few_rows ? 0 : round_up(NC, kernel.NR) / kernel.NR * b_panel(); }
    int64_t packed_a_size() const {
        if (!packs_a) return 0;
        const int64_t panels = round_up(M, kernel.MR) / kernel.MR;
        // For tiles A is packed in blocks of KB: rows that are farther apart would map to few sets of the L1 cache.
        if (kernel.tiles) return panels * kernel.MR * round_up(KC, kernel.KB) / kernel.KB * packed_depth(kernel.KB);
        return panels * (copies_rows ? kernel.MR * copied_row() : a_panel());
    }
    // From one copied row or micro-panel to the next. Many are packed at the same time, and without the line between
    // them they would share a set of the L1 cache where they are a multiple of 4 KB long.
    static constexpr int64_t kGap = 16;
    int64_t copied_row() const { return packed_depth(KC) + kGap; }
    int64_t a_panel() const { return kernel.MR * packed_depth(KC) + kGap; }
    int64_t b_panel() const { return kernel.NR * packed_depth(KC) + kGap; }
    int64_t kept_sums_size() const { return keeps_sums ? M * NC : 0; }
    int64_t thread_panel_size() const { return few_rows ? kernel.NR * packed_depth(kernel.KB) : 0; }
    int64_t thread_sums_size() const { return few_rows ? M * kernel.NR : 0; }

    std::string text() const {
        return format("%ld x %ld x %ld, %ld-byte elements: MC %ld, KC %ld, NC %ld, MR %ld, NR %ld, KB %ld, %s, %s", M,
                      N, K, kernel.element_bytes, MC, KC, NC, kernel.MR, kernel.NR, kernel.KB,
                      kernel.tiles ? "tiles" : "registers",
                      streams_b  ? "few rows: B is read in place"
                      : few_rows ? "few rows: B is packed by the thread that uses it"
                      : packs_a  ? "packs A and B"
                                 : "packs B");
    }
};

inline GemmPlan gemm_plan(const GemmProblem& p, const GemmKernel& kernel) {
    const auto& [MR, NR, KB, k_step, element_bytes, tiles, streamed_rows, widens] = kernel;
    GemmPlan plan{p.M, p.N, p.K, p.M, p.K, p.N, kernel};
    const bool odd_a = p.a_transposed || p.K % k_step != 0;
    plan.copies_rows = !tiles && !p.a_transposed && (widens || (p.rows_collide && !odd_a));
    plan.packs_a = odd_a || widens || plan.copies_rows;
    if (p.streams_b && p.M <= streamed_rows && p.N >= kStreamedColumns && !odd_a) {
        plan.streams_b = true, plan.packs_a = plan.copies_rows = false;
        return plan;
    }

    // With few rows, packing is much of the work. A thread uses a block of a micro-panel of B right after packing it,
    // from L1, and reads A from L2 or L3 each time.
    constexpr int64_t kFewBytes = 4 << 20, kTinyTileRows = 12;
    const bool tiny = p.M <= (tiles ? kTinyTileRows : MR);
    const bool few =
        !tiles && p.M <= 64 * MR && p.M * p.K * element_bytes <= kFewBytes && (p.N + NR - 1) / NR >= 8 * p.threads;
    if ((few || tiny) && !p.a_transposed && (tiles || widens || !odd_a)) {
        plan.few_rows = true, plan.packs_a = plan.copies_rows, plan.NC = std::min(NR, p.N);
        return plan;
    }
    ensure(p.M > 0 && p.N > 0 && p.K > 0);

    // KC moves the least data at a middle size: a large KC leaves room for few rows of A in L2; a small one loads and
    // stores the partial sums of C more often. All of an A that is packed (M, KC) is packed at once, so KC is small if
    // A and B exceed L2: it is read while it is still in L2 or near it.
    constexpr int64_t kPackedRowBytes = 2048;
    const bool packs_a_part = plan.packs_a && (p.M + p.N) * p.K * element_bytes > p.l2_bytes;
    plan.KC = std::min<int64_t>(p.K, tiles ? 2048 : packs_a_part ? kPackedRowBytes / element_bytes : 4096);
    plan.keeps_sums = p.rounds_c && p.K > plan.KC;
    plan.c_is_far = !p.rounds_c && p.M * p.N * int64_t(sizeof(float)) > 2 * p.l2_bytes;
    // NC: packed B takes 4 MiB of L3 for all threads together, but at least one micro-panel per thread.
    constexpr int64_t kPackedBytes = 4 << 20;
    const int64_t row_bytes = plan.KC * element_bytes;
    plan.NC = std::min(p.N, std::max(kPackedBytes / row_bytes / NR, p.threads) * NR);
    // MC: A (MC, KC) takes half of L2. Blocks have equal sizes, to within MR, so that threads get equal work. AMX is
    // done with 192 rows of a micro-panel before the next one has arrived from L3, at about 30 GB/s per core; so it
    // takes more rows, in half of the 2 MiB of L2 that processors with AMX have.
    const int64_t l2_bytes = (tiles ? 1024 : 512) << 10, max_MC = tiles ? kMaxMC : 16 * MR;
    const int64_t most = std::clamp(l2_bytes / row_bytes / MR * MR, MR, max_MC);
    const int64_t blocks = (p.M + most - 1) / most, panels = (p.M + MR - 1) / MR;
    plan.MC = (panels + blocks - 1) / blocks * MR;
    return plan;
}
