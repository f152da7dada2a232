/*
Sorts the rows of a batch by token: a stable radix sort, least significant digit first (Knuth, The Art of Computer
Programming, volume 3, 5.2.5), 8 bits per pass.

  tokens (N) int32, 0 <= token < 2^24     sorted.tokens, sorted.rows (N): tokens[rows[i]] = sorted.tokens[i], ascending;
                                          rows of one token in ascending order

Work      a block counts, and later places, kSortTile tokens. A lane finds the lanes of its warp with the same digit by
          one ballot per bit. Integers only: the result does not depend on the order of threads
Bytes     each of the three passes reads N tokens and rows twice and writes them once
*/
#pragma once
#include <cstdint>
#include "llmc/cuda/device.cuh"  // launch, ceil_div
#include "llmc/ops/op_cost.h"    // elements_cost

inline constexpr int kSortBits = 8, kSortDigits = 1 << kSortBits, kSortPasses = 3;
inline constexpr int kSortWarps = 8, kSortRounds = 8, kSortTile = kSortWarps * kWarp * kSortRounds;

// The lanes that have the caller's digit. All lanes must call it; those that are not `valid` are in no result.
DEVICE uint32_t peers_of(int digit, bool valid) {
    uint32_t peers = __ballot_sync(kAllLanes, valid);
#pragma unroll
    for (int bit = 0; bit < kSortBits; bit++) {
        const uint32_t set = __ballot_sync(kAllLanes, digit >> bit & 1);
        peers &= digit >> bit & 1 ? set : ~set;
    }
    return peers;
}

// Calls visit(i, digit, rank, peers) for each of this warp's tokens, in order; all lanes call it together.
template <class Visit>
DEVICE void each_of_warp(const int32_t* tokens, int64_t N, int shift, Visit visit) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int64_t first = (int64_t(blockIdx.x) * kSortWarps + warp) * kWarp * kSortRounds;
    for (int round = 0; round < kSortRounds; round++) {
        const int64_t i = first + round * kWarp + lane;
        const int digit = i < N ? tokens[i] >> shift & (kSortDigits - 1) : 0;
        const uint32_t peers = peers_of(digit, i < N);
        visit(i, digit, __popc(peers & ((1u << lane) - 1)), i < N ? __popc(peers) : 0);
        __syncwarp();
    }
}

// How often each digit occurs in each warp's tokens.
DEVICE void count_digits(int (&counts)[kSortWarps][kSortDigits], const int32_t* tokens, int64_t N, int shift) {
    const int warp = threadIdx.x / kWarp;
    for (int i = threadIdx.x; i < kSortWarps * kSortDigits; i += blockDim.x)
        counts[i / kSortDigits][i % kSortDigits] = 0;
    __syncthreads();
    each_of_warp(tokens, N, shift, [&](int64_t, int digit, int rank, int peers) {
        if (peers > 0 && rank == 0) counts[warp][digit] += peers;
    });
    __syncthreads();
}

// counts (kSortDigits, gridDim.x)
template <int kUnused = 0>
__global__ void __launch_bounds__(kSortWarps* kWarp)
    sort_count_kernel(int32_t* counts, const int32_t* tokens, int64_t N, int shift) {
    SMEM_STATIC(int, by_warp, [kSortWarps][kSortDigits]);
    count_digits(by_warp, tokens, N, shift);
    const int digit = threadIdx.x;
    int sum = 0;
    for (int warp = 0; warp < kSortWarps; warp++) sum += by_warp[warp][digit];
    counts[int64_t(digit) * gridDim.x + blockIdx.x] = sum;
}

// Exclusive prefix sum of counts (n), in place, by one block.
template <int kUnused = 0>
__global__ void __launch_bounds__(1024) sort_scan_kernel(int32_t* counts, int64_t n) {
    SMEM_STATIC(int, sums, [1024]);
    const int64_t each = ceil_div(n, int64_t(1024)), first = min(n, threadIdx.x * each), end = min(n, first + each);
    int sum = 0;
    for (int64_t i = first; i < end; i++) sum += counts[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int offset = 1; offset < 1024; offset *= 2) {
        const int other = int(threadIdx.x) >= offset ? sums[threadIdx.x - offset] : 0;
        __syncthreads();
        sums[threadIdx.x] += other;
        __syncthreads();
    }
    int before = sums[threadIdx.x] - sum;
    for (int64_t i = first; i < end; i++) {
        const int count = counts[i];
        counts[i] = before;
        before += count;
    }
}

// rows null: the tokens are still in the batch's order
template <int kUnused = 0>
__global__ void __launch_bounds__(kSortWarps* kWarp)
    sort_place_kernel(int32_t* sorted_tokens, int32_t* sorted_rows, const int32_t* tokens, const int32_t* rows,
                      const int32_t* starts, int64_t N, int shift) {
    SMEM_STATIC(int, next, [kSortWarps][kSortDigits]);
    count_digits(next, tokens, N, shift);
    const int digit_of_thread = threadIdx.x;
    int start = starts[int64_t(digit_of_thread) * gridDim.x + blockIdx.x];
    for (int warp = 0; warp < kSortWarps; warp++) {
        const int count = next[warp][digit_of_thread];
        next[warp][digit_of_thread] = start;
        start += count;
    }
    __syncthreads();
    const int warp = threadIdx.x / kWarp;
    each_of_warp(tokens, N, shift, [&](int64_t i, int digit, int rank, int peers) {
        const int to = peers > 0 ? next[warp][digit] + rank : 0;
        __syncwarp();
        if (peers == 0) return;
        if (rank == 0) next[warp][digit] += peers;
        sorted_tokens[to] = tokens[i];
        sorted_rows[to] = rows ? rows[i] : int32_t(i);
    });
}

struct SortedTokens {
    int32_t *tokens, *rows;  // (N)
};

// int32 elements of memory that sort_tokens needs, including its result
inline int64_t sort_tokens_size(int64_t N) { return 4 * N + kSortDigits * ceil_div(N, int64_t(kSortTile)); }

inline SortedTokens sort_tokens(Cuda& cuda, int32_t* memory, const int32_t* tokens, int64_t N) {
    static_assert(kSortWarps * kWarp == kSortDigits, "a thread for each digit");
    const auto blocks = unsigned(ceil_div(N, int64_t(kSortTile)));
    SortedTokens buffers[2] = {{memory, memory + N}, {memory + 2 * N, memory + 3 * N}};
    int32_t* counts = memory + 4 * N;
    SortedTokens from{const_cast<int32_t*>(tokens), nullptr};
    for (int pass = 0; pass < kSortPasses; pass++) {
        const SortedTokens to = buffers[pass % 2];
        const int shift = pass * kSortBits;
        launch(cuda, {"sort_count", elements_cost<int32_t>(1, 0, N)}, sort_count_kernel<>, blocks, kSortDigits, 0,
               counts, from.tokens, N, shift);
        launch(cuda, {"sort_scan", elements_cost<int32_t>(2, 0, int64_t(blocks) * kSortDigits)}, sort_scan_kernel<>, 1,
               1024, 0, counts, int64_t(blocks) * kSortDigits);
        launch(cuda, {"sort_place", elements_cost<int32_t>(4, 0, N)}, sort_place_kernel<>, blocks, kSortDigits, 0,
               to.tokens, to.rows, from.tokens, from.rows, counts, N, shift);
        from = to;
    }
    return from;
}
