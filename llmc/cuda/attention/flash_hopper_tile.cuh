/*
Building blocks of the flash attention kernels for Hopper. A block has one warpgroup with a thread that issues TMA loads
of tiles, and two warpgroups that read and multiply the tiles, each with 64 rows of the block's own side.

A tile belongs to TMA from load() until a phase of `full` ends, then to its readers until each of their warps has
arrived at `empty`. Accumulators never leave registers: rounded, they are wgmma's A operand there. Of an accumulator of
64 rows and N columns, a thread has two rows, 8 apart, and a quarter of the columns of each.
*/
#pragma once
#include "llmc/cuda/attention/flash_tile.cuh"
#include "llmc/cuda/hopper.cuh"

inline constexpr int kHopperReaders = 2;  // warpgroups
inline constexpr int kHopperThreads = (1 + kHopperReaders) * kWarpgroup;
inline constexpr int kHopperRows = 128;  // of a block's own side
static_assert(kHopperRows == kHopperReaders * 64);

// Named barriers: one per warpgroup for its turn, then one per warpgroup for its own rows. As many threads must arrive
// for each turn as are expected: a surplus would count toward the next one.
inline constexpr int kFirstTurn = 1, kOwnRows = kFirstTurn + kHopperReaders;
// Of both warpgroups, in backward.
inline constexpr int kBothHandedOver = kOwnRows + kHopperReaders, kBothFinished = kBothHandedOver + 1;

// A tile of `rows` rows of HS columns: 64 columns of all rows, then the next 64.
template <int HS, int rows = kHopperRows>
struct HopperTile {
    static constexpr int kPartBytes = rows * kTmaColumns * int(sizeof(bf16));
    static constexpr int kBytes = HS / kTmaColumns * kPartBytes;
    unsigned char* data;

    DEVICE unsigned char* at(int row, int chunk) const {
        return data + chunk / 8 * kPartBytes + row * 128 + ((chunk % 8 ^ row % 8) << 4);
    }
    // Called by one thread, after `full` was told to expect kBytes: loads the rows of a head from t on.
    DEVICE void load(const TensorMap& map, Mbarrier* full, int head, int t, int b) const {
#pragma unroll
        for (int part = 0; part < HS / kTmaColumns; part++)
            tma_load(data + part * kPartBytes, map, full, part * kTmaColumns, head, t, b);
    }
};

// A map of (B, T, row), where a row has heads of HS columns next to each other, for HopperTile<..., rows>::load().
inline TensorMap map_of_heads(const bf16* base, const AttentionShape& s, int64_t heads, int64_t row, int rows) {
    return tensor_map(base, {{s.HS, heads, s.T, s.B}, {s.HS, row, s.T * row}, {kTmaColumns, 1, rows, 1}});
}
// The heads of queries, then those of keys, then those of values.
inline TensorMap map_of_qkv(const bf16* qkv, const AttentionShape& s, int rows) {
    return map_of_heads(qkv, s, s.NH + 2 * s.NKV, s.row(), rows);
}

// Barriers of a stage in shared memory: `full` when its data has arrived, `empty` when its readers are done with it.
struct HopperStage {
    Mbarrier full, empty;

    DEVICE void init() {
        mbarrier_init(&full, 1);
        mbarrier_init(&empty, kHopperReaders * kWarpgroup / kWarp);
    }
};
DEVICE void release(Mbarrier* empty) {
    if (lane_id() == 0) mbarrier_arrive(empty);
}

// x, which is the same in all lanes. The compiler must see that, or it serializes wgmma.
DEVICE int uniform(int x) { return __shfl_sync(kAllLanes, x, 0); }
DEVICE int warpgroup_id() { return uniform(int(threadIdx.x) / kWarpgroup); }
// The first (half = 0) or second of the thread's two rows among the 64 from `row` on.
DEVICE int own_row(int row, int half) { return row + int(threadIdx.x) / kWarp % 4 * 16 + lane_id() / 4 + 8 * half; }

// Starts   d (64, N)  =  rows [row, row + 64) of a times rows of b, transposed.
template <int HS, int N>
DEVICE void multiply_by_rows(float (&d)[N / 2], const HopperTile<HS>& a, int row, const HopperTile<HS, N>& b) {
#pragma unroll
    for (int k = 0; k < HS / 16; k++) {
        const uint64_t left = wgmma_tile(a.data + k / 4 * a.kPartBytes + row * 128);
        const uint64_t right = wgmma_tile(b.data + k / 4 * b.kPartBytes);
        wgmma<N>(d, left + 2 * (k % 4), right + 2 * (k % 4), k > 0);
    }
}
// Starts   d (64, HS)  +=  a (64, N) times b.
template <int HS, int N>
DEVICE void multiply(float (&d)[HS / 2], const uint32_t (&a)[N / 16][4], const HopperTile<HS, N>& b) {
    const uint64_t right = wgmma_tile(b.data, b.kPartBytes);
#pragma unroll
    for (int k = 0; k < N / 16; k++) wgmma<HS, true>(d, a[k], right + 128 * k, true);
}
// Rounds an accumulator to an A operand.
template <int N>
DEVICE void round_pairs(uint32_t (&a)[N / 16][4], const float (&d)[N / 2]) {
#pragma unroll
    for (int j = 0; j < N / 2; j += 2) a[j / 8][j / 2 % 4] = bf16x2(d[j], d[j + 1]);
}

// Stores d (64, HS), its rows multiplied by the thread's two factors, to a tensor with rows `stride` apart: those rows
// below `end` and the first `columns` columns. Goes through rows [row, row + 64) of a tile, the warpgroup's own.
template <int HS>
DEVICE void store_rows(bf16* to, int stride, int end, int columns, const HopperTile<HS>& tile, int row,
                       const float (&d)[HS / 2], const float (&factor)[2]) {
    barrier_sync(kOwnRows + row / 64, kWarpgroup);  // no GEMM reads these rows any more
    const int first_row = computed_here(own_row(row, 0));
#pragma unroll
    for (int j = 0; j < HS / 2; j += 2)
        *reinterpret_cast<uint32_t*>(tile.at(first_row + 8 * (j / 2 % 2), j / 4) + lane_id() % 4 * 4) =
            bf16x2(d[j] * factor[j / 2 % 2], d[j + 1] * factor[j / 2 % 2]);
    __syncwarp();
    constexpr int kChunks = HS / 8, kStep = kWarp / kChunks;
    const int r0 = int(threadIdx.x) / kWarp % 4 * 16 + lane_id() / kChunks, chunk = lane_id() % kChunks;
    if (chunk * 8 >= columns) return;
    to += int64_t(r0) * stride + chunk * 8;
    for (int r = r0; r < r0 + 16 && r < end; r += kStep, to += int64_t(kStep) * stride)
        store16(to, load16(reinterpret_cast<const bf16*>(tile.at(row + r, chunk))));
}
