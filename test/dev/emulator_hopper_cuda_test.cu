// The emulator's errors for misuse of TMA, mbarriers and wgmma: each mistake is added to a correct kernel.
#include "llmc/cuda/hopper.cuh"
#include "test/dev/emulator_testing.h"
#ifdef ANVIL_EMULATED

namespace emulator_cases {

using namespace emulator_test;

enum class Mistake {
    none,
    // barriers
    init_unfenced,
    never_made,
    too_many_arrivals,
    too_few_arrivals,
    fewer_bytes,
    more_bytes,
    expected_twice,
    reader_keeps_parity,
    writer_begins_with_0,
    seen_twice,
    never_released,
    another_number,
    number_never_complete,
    // copies
    read_before_landing,
    released_before_wait,
    two_lanes_copy,
    copy_misaligned,
    copy_beyond,
    copy_abandoned,
    bytes_to_misaligned,
    bytes_from_misaligned,
    bytes_odd,
    bytes_none,
    bytes_beyond,
    bytes_to_static,
    bytes_over_a_box,
    bytes_while_read,
    bytes_unfenced,
    bytes_unmade,
    bytes_abandoned,
    bytes_read_before_landing,
    bytes_not_waited_for,
    bytes_over_stores,
    bytes_over_fenced_stores,
    bytes_stored_meanwhile,
    // products
    no_fence,
    pinned_after_fence,
    d_read_early,
    d_written_early,
    a_written_early,
    never_committed,
    waits_for_too_few,
    // shared memory
    stores_unfenced,
    stores_not_swizzled,
    stored_after_fence,
    stored_while_read,
    a_stored_after_fence,
    a_stored_while_read,
    // descriptors
    other_swizzle,
    eight_rows_wrong,
    base_offset,
    start_misaligned,
    k_across_row,
    k_in_next_row,
    columns_nowhere,
    not_transposed,
    a_across_columns,
    a_in_next_row,
    a_outside,
    a_transposed_by_some,
    outside,
    warps_differ,
    lanes_differ,
    warp_misses,
    // registers
    nobody_gives,
    gives_more,
    takes_less,
};
using enum Mistake;

inline constexpr int kTile = 64 * 128, kTiles = 5, kStages = 2;  // bytes of 64 rows; how many; under way
struct Stage {
    unsigned char tile[kTile];
};
struct Pipeline {
    Stage stages[kStages], more[2];
    Mbarrier full[kStages], empty[kStages], unmade;
};

// out (64, 64) = sum of tile (64, 64) times itself, transposed, over kTiles tiles of the input (320, 64). Warpgroup 0
// brings them by TMA, warpgroup 1 multiplies.
template <Mistake m>
__global__ void squares(float* out, const __grid_constant__ TensorMap map) {
    SMEM_DYNAMIC(Pipeline, shared);
    if (threadIdx.x == 0) {
        for (int i = 0; i < kStages; i++) {
            mbarrier_init(&shared->full[i], m == too_few_arrivals ? 2 : 1);
            mbarrier_init(&shared->empty[i], m == too_many_arrivals ? 3 : 4);
        }
        if (m != init_unfenced) mbarrier_fence_init();
    }
    __syncthreads();
    if (threadIdx.x >= 2 * kWarpgroup) return;  // with them a thread has 128 registers at first
    if (threadIdx.x < kWarpgroup) {
        if (m == gives_more)
            give_registers<256>();
        else if (m != nobody_gives)
            give_registers<32>();
        if (threadIdx.x >= (m == two_lanes_copy ? 2 : 1)) return;
        for (int i = 0; i < kTiles; i++) {
            const int s = i % kStages, round = i / kStages;
            mbarrier_wait(&shared->empty[s], m == writer_begins_with_0 ? round % 2 : round % 2 ^ 1);
            const int bytes = m == fewer_bytes ? kTile - 128 : m == more_bytes ? kTile + 128 : kTile;
            if (threadIdx.x == 0) mbarrier_arrive_expect(m == never_made ? &shared->unmade : &shared->full[s], bytes);
            if (m == expected_twice) mbarrier_arrive_expect(&shared->full[s], 0);
            unsigned char* const to = m == copy_beyond
                                          ? reinterpret_cast<unsigned char*>(shared) + sizeof *shared / 1024 * 1024
                                          : shared->stages[s].tile + (m == copy_misaligned ? 128 : 0);
            tma_load(to, map, &shared->full[s], 0, 0, 64 * i, 0);
        }
        if (m == copy_abandoned) {
            mbarrier_wait(&shared->empty[1], 1);
            tma_load(shared->stages[1].tile, map, &shared->full[1], 0, 0, 0, 0);
        }
        return;
    }
    m == takes_less ? take_registers<64>() : take_registers<224>();
    float d[32];
    const int warp = int(threadIdx.x) / kWarp % 4, lane = int(threadIdx.x) % kWarp;
    for (int i = 0; i < kTiles; i++) {
        const int s = i % kStages, round = i / kStages;
        if (m != read_before_landing) mbarrier_wait(&shared->full[s], m == reader_keeps_parity ? 0 : round % 2);
        if (m == seen_twice) mbarrier_wait(&shared->full[s], round % 2);
        if (m != no_fence) wgmma_fence();
        if (m == pinned_after_fence) wgmma_pin(d);
        for (int k = 0; k < 4; k++) {
            uint64_t a = wgmma_tile(shared->stages[s].tile) + uint64_t(k) * 2, b = a;
            if (m == other_swizzle) b ^= uint64_t(3) << 62;  // 64 bytes
            if (m == eight_rows_wrong) b ^= uint64_t(3072 >> 4) << 32;
            if (m == base_offset) b |= uint64_t(1) << 49;
            if (m == start_misaligned) b += 128 >> 4;
            if (m == k_across_row) b += 1;
            if (m == k_in_next_row) b += 2;
            if (m == outside) b += kTile >> 4 << 3;
            if (m == warps_differ && warp == 2) b += 1024 >> 4;
            if (m == lanes_differ && lane == 7) b += 1024 >> 4;
            if (m == warp_misses && warp == 3 && i == kTiles - 1 && k == 3) continue;
            if constexpr (m == not_transposed)
                wgmma<64, true>(d, a, wgmma_tile(shared->stages[s].tile) + uint64_t(k) * 128, i + k > 0);
            else
                wgmma<64>(d, a, b, i + k > 0);
        }
        if (m == d_read_early) out[threadIdx.x] = d[0];
        if (m == d_written_early) d[5] = 0;
        if (m != never_committed) wgmma_commit();
        if (m == released_before_wait && lane == 0) mbarrier_arrive(&shared->empty[s]);
        m == waits_for_too_few ? wgmma_wait<1>() : wgmma_wait<0>();
        if (m != released_before_wait && m != never_released && lane == 0) mbarrier_arrive(&shared->empty[s]);
    }
    if (m == another_number) barrier_sync(1, warp == 0 ? 64 : 128);
    if (m == number_never_complete && warp == 0) barrier_arrive(1, 64);
    if (m == d_read_early) return;
    for (int i = 0; i < 32; i++)
        out[(warp * 16 + lane / 4 + i / 2 % 2 * 8) * 64 + i / 4 * 8 + lane % 4 * 2 + i % 2] = d[i];
}

// out (64, 128) = a (64, 16) b (16, 128), stored by the threads; a in registers.
template <Mistake m>
__global__ void stored(float* out, const float* inp) {
    SMEM_DYNAMIC(unsigned char, shared);  // b: two parts of 16 rows of 64 columns
    const auto store = [&](int row, int column) {
        const int swizzle = m == stores_not_swizzled ? 0 : row % 8;
        unsigned char* const to =
            shared + column / 64 * 2048 + row * 128 + ((column % 64 / 8 ^ swizzle) << 4) + column % 8 * 2;
        *reinterpret_cast<bf16*>(to) = from_float<bf16>(inp[(row * 128 + column) % 64]);
    };
    for (int i = int(threadIdx.x); i < 16 * 128; i += kWarpgroup) store(i / 128, i % 128);
    if (m != stores_unfenced) fence_async();
    __syncthreads();
    if (m == stored_after_fence && threadIdx.x == 0) shared[17] ^= 1;
    __syncthreads();
    uint32_t a[4];
    for (int i = 0; i < 4; i++) a[i] = bf16x2(float(i + 1), float(threadIdx.x % 4));
    float d[64];
    wgmma_fence();
    wgmma<128, true>(d, a, wgmma_tile(shared, m == columns_nowhere ? 16 : 2048), false);
    wgmma_commit();
    if (m == a_written_early && threadIdx.x == 40) a[2] = 0;
    if (m == stored_while_read && threadIdx.x == 0) shared[17] ^= 1;
    wgmma_wait<0>();
    for (int i = 0; i < 64; i++) out[threadIdx.x * 64 + i] = d[i];
}

// out (64, 64) = a (64, 16) b (16, 64), both stored by the threads and transposed.
template <Mistake m>
__global__ void stored_transposed(float* out, const float* inp) {
    SMEM_DYNAMIC(unsigned char, shared);  // b, then a: 16 rows of 64 columns
    const auto place = [&](int tile, int k, int column) {
        return shared + tile * 2048 + k * 128 + ((column / 8 ^ k % 8) << 4) + column % 8 * 2;
    };
    for (int i = int(threadIdx.x); i < 2 * 16 * 64; i += kWarpgroup)
        *reinterpret_cast<bf16*>(place(i / 1024, i / 64 % 16, i % 64)) = from_float<bf16>(inp[i % 61]);
    fence_async();
    __syncthreads();
    // Of a only warp 2 reads this element.
    if (m == a_stored_after_fence && threadIdx.x == 0) *place(1, 9, 40) ^= 1;
    __syncthreads();
    uint64_t a = wgmma_tile(shared + 2048);
    if (m == a_across_columns) a += 2;
    if (m == a_in_next_row) a += 128 >> 4;
    if (m == a_outside) a += 1024 >> 4;
    float d[32];
    wgmma_fence();
    if (m == a_transposed_by_some && threadIdx.x / kWarp == 0)
        wgmma<64, true>(d, a, wgmma_tile(shared), false);
    else
        wgmma<64, true, true>(d, a, wgmma_tile(shared), false);
    wgmma_commit();
    if (m == a_stored_while_read && threadIdx.x == 2 * kWarp) *place(1, 9, 40) ^= 1;
    wgmma_wait<0>();
    for (int i = 0; i < 32; i++) out[threadIdx.x * 32 + i] = d[i];
}

// out (64, 64) = a (64, 16) b (16, 64): b's bytes are brought in two parts, a is in registers. Warpgroup 1 multiplies.
template <Mistake m>
__global__ void brought(float* out, const float* inp, const __grid_constant__ TensorMap map) {
    SMEM_DYNAMIC(unsigned char, shared);  // b, a barrier that is made and one that is not
    SMEM_STATIC(float, not_dynamic, [512]);
    constexpr int kBytes = 16 * 128;
    Mbarrier* const full = reinterpret_cast<Mbarrier*>(shared + kBytes);
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        if (m != bytes_unfenced) mbarrier_fence_init();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect(full, kBytes + (m == bytes_over_a_box ? 1024 : 0));
        if (m == bytes_over_a_box) tma_load(shared, map, full, 0, 0, 0, 0);
        if (m == bytes_over_stores || m == bytes_over_fenced_stores) shared[17] = 1;
        if (m == bytes_over_fenced_stores) fence_async();
        void* const to = m == bytes_to_static ? static_cast<void*>(not_dynamic)
                         : m == bytes_beyond  ? shared + 4096 - 16
                                              : shared + (m == bytes_to_misaligned ? 8 : 0);
        bulk_load(to, inp + (m == bytes_from_misaligned ? 2 : 0),
                  m == bytes_odd    ? 24
                  : m == bytes_none ? 0
                                    : 48,
                  m == bytes_unmade ? full + 1 : full);
        bulk_load(shared + 48, inp + 12, kBytes - 48, full);
        if (m == bytes_stored_meanwhile) shared[17] = 1;
        if (m == bytes_abandoned) bulk_load(shared + kBytes + 16, inp, 16, full);
    }
    if (threadIdx.x < kWarpgroup) {
        if (m == bytes_while_read) {
            barrier_sync(1, 2 * kWarpgroup);  // the products have begun
            if (threadIdx.x == 0) bulk_load(shared + 32, inp, 16, full);
            barrier_arrive(2, 2 * kWarpgroup);
        }
        return;
    }
    if (m != bytes_read_before_landing && m != bytes_not_waited_for) mbarrier_wait(full, 0);
    uint32_t a[4];
    for (int i = 0; i < 4; i++) a[i] = bf16x2(1, float(i));
    if (m == bytes_read_before_landing) {
        out[threadIdx.x] = reinterpret_cast<const float*>(shared)[threadIdx.x];
        return mbarrier_wait(full, 0);
    }
    float d[32];
    wgmma_fence();
    wgmma<64, true>(d, a, wgmma_tile(shared), false);
    wgmma_commit();
    if (m == bytes_while_read) barrier_arrive(1, 2 * kWarpgroup);
    if (m == bytes_while_read) barrier_sync(2, 2 * kWarpgroup);
    wgmma_wait<0>();
    for (int i = 0; i < 32; i++) out[(threadIdx.x - kWarpgroup) * 32 + unsigned(i)] = d[i];
}

template <Mistake m>
std::string say_brought(Floats* result = nullptr) {
    Trial trial(64 * 64);
    const OnDevice<bf16> box(trial.cuda, Floats(8 * 64, 1));
    const std::string error = error_of([&] {
        launch(trial.cuda, "trial", brought<m>, 1, 2 * kWarpgroup, 4096, trial.out.data, trial.inp.data,
               tensor_map(box.data, {{64, 1, 8, 1}, {64, 64, 8 * 64}, {64, 1, 8, 1}}));
    });
    if (result) *result = trial.out.get();
    return error;
}

template <Mistake m>
std::string say_squares(Floats* result = nullptr) {
    Cuda cuda;
    const Floats values = rounded<bf16>(randn(kTiles * 64 * 64, 1));
    const OnDevice<bf16> inp(cuda, values);
    OnDevice<float> out(cuda, 64 * 64);
    const std::string error = error_of([&] {
        launch(cuda, "trial", squares<m>, 1, 4 * kWarpgroup, sizeof(Pipeline), out.data,
               tensor_map(inp.data, {{64, 1, kTiles * 64, 1}, {64, 64, kTiles * 64 * 64}, {64, 1, 64, 1}}));
    });
    if (result) *result = out.get();
    return error;
}
template <Mistake m>
std::string say_stored(Floats* result = nullptr) {
    Trial trial(64 * 128);
    const std::string error = trial.run(stored<m>, 1, kWarpgroup, 4096).error;
    if (result) *result = trial.out.get();
    return error;
}

template <Mistake m>
std::string say_stored_transposed() {
    Trial trial(64 * 64);
    return trial.run(stored_transposed<m>, 1, kWarpgroup, 4096).error;
}

// In each order of threads, because what happens late must not depend on it.
struct EachOrder {
    OtherOptions restore;
    EachOrder() {
        const int which = GENERATE(0, 1, 2, 3);
        emulator::options().schedule = which == 0   ? emulator::Schedule::in_order
                                       : which == 1 ? emulator::Schedule::reverse
                                                    : emulator::Schedule::random;
        emulator::options().seed = unsigned(which);
        INFO("schedule " << which);
    }
};

TEST_CASE("a pipeline of TMA and wgmma without a mistake is right", "[emulator_hopper]" ON_DEVICE) {
    const EachOrder order;
    Floats got;
    CHECK(say_squares<none>(&got) == "");
    const Floats values = rounded<bf16>(randn(kTiles * 64 * 64, 1));
    Floats want(64 * 64), bounds(64 * 64);
    for (size_t i = 0; i < want.size(); i++) {
        double sum = 0, size = 0;
        for (size_t t = 0; t < kTiles; t++)
            for (size_t k = 0; k < 64; k++) {
                const double x = double(values[(t * 64 + i / 64) * 64 + k]) * values[(t * 64 + i % 64) * 64 + k];
                sum += x, size += std::abs(x);
            }
        want[i] = float(sum), bounds[i] = float(size * kTiles * 64 * kEpsF32);
    }
    for (size_t i = 0; i < want.size(); i++) REQUIRE(std::abs(got[i] - want[i]) <= bounds[i]);
    CHECK(say_stored<none>() == "");
    CHECK(say_stored_transposed<none>() == "");
}

TEST_CASE("mistakes with mbarriers are found", "[emulator_hopper]" ON_DEVICE) {
    const EachOrder order;
    const std::string here = " at test/dev/emulator_hopper_cuda_test.cu:";
    CHECK(contains(say_squares<init_unfenced>(), "its mbarrier was made without mbarrier_fence_init() after it"));
    CHECK(contains(say_squares<never_made>(), "mbarrier_arrive_expect" + here));
    CHECK(contains(say_squares<never_made>(), ": there is no mbarrier at 0x"));
    // The phase ends without the fourth warp, whose arrival the next one has: sooner or later a tile is overwritten
    // that is still read, or there is one arrival too few or too many.
    CHECK(say_squares<too_many_arrivals>() != "");
    CHECK(contains(say_squares<too_few_arrivals>(), "no thread can go on:"));
    CHECK(contains(say_squares<too_few_arrivals>(), "phase 0, 1 of 2 arrivals and 0 bytes missing"));
    CHECK(contains(say_squares<fewer_bytes>(), "has 128 bytes more than it was told to expect"));
    CHECK(contains(say_squares<more_bytes>(), "phase 0, 0 of 1 arrivals and 128 bytes missing"));
    CHECK(contains(say_squares<expected_twice>(), "mbarrier_arrive_expect" + here));
    CHECK(contains(say_squares<expected_twice>(), ": the phase has its 1 arrivals already"));
    CHECK(say_squares<reader_keeps_parity>() != "");  // which mistake that leads to depends on the order
    CHECK(contains(say_squares<writer_begins_with_0>(), "threads (0..0) wait in mbarrier_wait" + here));
    CHECK(contains(say_squares<seen_twice>(), "that of a phase whose end this thread has seen"));
    CHECK(contains(say_squares<never_released>(), "phase 0, 4 of 4 arrivals and 0 bytes missing"));
    CHECK(contains(say_squares<another_number>(), ": barrier 1 for "));
    CHECK(contains(say_squares<number_never_complete>(), "at the end of the block:\n  barrier 1: 32 of 64 threads"));
}

TEST_CASE("mistakes with copies are found", "[emulator_hopper]" ON_DEVICE) {
    const EachOrder order;
    CHECK(contains(say_squares<released_before_wait>(), "of shared memory, which a wgmma still reads"));
    CHECK(contains(say_squares<copy_misaligned>(), "byte 128 of shared memory is not a multiple of 1024"));
    CHECK(contains(say_squares<copy_beyond>(), ": 8192 bytes from "));
    CHECK(say_squares<copy_abandoned>() != "");
    CHECK(say_squares<two_lanes_copy>() != "");
    // Before the writer comes to run, what is read is NaN, and so is the sum.
    Floats got;
    const std::string error = say_squares<read_before_landing>(&got);
    INFO(error);
    CHECK((contains(error, "which a tma_load is still bringing") || contains(error, "and nobody has waited for it") ||
           std::isnan(got[0])));
}

TEST_CASE("mistakes with copies of bytes are found", "[emulator_hopper]" ON_DEVICE) {
    const EachOrder order;
    const std::string here = "bulk_load at test/dev/emulator_hopper_cuda_test.cu:";
    const auto found = [&](const std::string& error, const char* text) {
        INFO(error);
        return contains(error, here) && contains(error, text);
    };
    Floats got;
    CHECK(say_brought<none>(&got) == "");
    CHECK(std::count_if(got.begin(), got.end(), [](float x) { return std::isfinite(x); }) == 64 * 64);
    CHECK(found(say_brought<bytes_to_misaligned>(), "to byte 8 of shared memory: expected multiples of 16"));
    CHECK(found(say_brought<bytes_from_misaligned>(), ": 48 bytes from 0x"));
    CHECK(found(say_brought<bytes_from_misaligned>(), "to byte 0 of shared memory: expected multiples of 16"));
    CHECK(found(say_brought<bytes_odd>(), ": 24 bytes from 0x"));
    CHECK(found(say_brought<bytes_none>(), ": 0 bytes from 0x"));
    CHECK(found(say_brought<bytes_beyond>(), ": 48 bytes from 4080 on, of 4096 of shared memory"));
    CHECK(found(say_brought<bytes_to_static>(), ": not in the block's dynamic shared memory"));
    CHECK(found(say_brought<bytes_over_a_box>(), "to byte 0 of shared memory, which another is still bringing"));
    CHECK(found(say_brought<bytes_while_read>(), "to byte 32 of shared memory, which a wgmma still reads"));
    CHECK(found(say_brought<bytes_unfenced>(), ": its mbarrier was made without mbarrier_fence_init() after it"));
    CHECK(found(say_brought<bytes_unmade>(), ": there is no mbarrier at 0x"));
    CHECK(say_brought<bytes_over_fenced_stores>() == "");
#ifdef ANVIL_RACE
    CHECK(found(say_brought<bytes_over_stores>(), "to byte 16 of shared memory, which was stored to without fence"));
    CHECK(contains(say_brought<bytes_stored_meanwhile>(),
                   ": a store to byte 17 of shared memory, which a tma_load is still bringing"));
#endif
    // Never waited for, or, if they have landed, more than expected.
    CHECK(say_brought<bytes_abandoned>() != "");
    const std::string not_waited_for = say_brought<bytes_not_waited_for>();
    INFO(not_waited_for);
    CHECK((contains(not_waited_for, "is still bringing") || contains(not_waited_for, "nobody has waited for it") ||
           contains(not_waited_for, "which a wgmma still reads")));  // where it reads before the copy begins
    if (emulator::options().schedule == emulator::Schedule::in_order) {
        CHECK(say_brought<bytes_read_before_landing>(&got) == "");
        CHECK(std::isnan(got[kWarpgroup]));
    }
}

TEST_CASE("mistakes with products are found", "[emulator_hopper]" ON_DEVICE) {
    const EachOrder order;
    CHECK(contains(say_squares<no_fence>(), "without wgmma_fence() since the last wait"));
    CHECK(contains(say_squares<pinned_after_fence>(), "without wgmma_fence() since the last wait or wgmma_pin()"));
    Floats got;
    CHECK(say_squares<d_read_early>(&got) == "");
    CHECK(std::all_of(got.begin() + 128, got.begin() + 256, [](float x) { return std::isnan(x); }));
    CHECK(contains(say_squares<d_written_early>(), ": its d was written to before the wait"));
    CHECK(contains(say_stored<a_written_early>(), ": its a was written to before the wait"));
    CHECK(say_squares<never_committed>() != "");
    CHECK(say_squares<waits_for_too_few>() != "");
}

TEST_CASE("what was stored is not what wgmma reads before a fence", "[emulator_hopper]" ON_DEVICE) {
    const EachOrder order;
    const char* const unfenced = "which was stored to without fence_async() after it";
    CHECK(contains(say_stored<stores_unfenced>(), unfenced));
    CHECK(contains(say_stored<stored_after_fence>(), unfenced));
    CHECK(contains(say_stored<stored_while_read>(), unfenced));
    CHECK(contains(say_stored_transposed<a_stored_after_fence>(), unfenced));
    CHECK(contains(say_stored_transposed<a_stored_while_read>(), unfenced));
    Floats right, wrong;
    CHECK(say_stored<none>(&right) == "");
    CHECK(say_stored<stores_not_swizzled>(&wrong) == "");
    CHECK(!same_bits(right, wrong));
}

TEST_CASE("mistakes with descriptors are found", "[emulator_hopper]" ON_DEVICE) {
    CHECK(contains(say_squares<other_swizzle>(), "of tile b, its swizzle is not that of 128 bytes"));
    CHECK(contains(say_squares<eight_rows_wrong>(), "of tile b, 8 rows of 128 bytes are not 1024 bytes away"));
    CHECK(contains(say_squares<base_offset>(), "of tile b, its base offset is not 0"));
    CHECK(contains(say_squares<start_misaligned>(), "of tile b, its start is not the first of 8 rows"));
    CHECK(contains(say_squares<k_across_row>(), "of tile b, 16 elements of k do not end in their row of 128 bytes"));
    CHECK(contains(say_squares<k_in_next_row>(), "of tile b, its start is not the first of 8 rows"));
    CHECK(contains(say_squares<outside>(), "of shared memory"));
    CHECK(contains(say_squares<warps_differ>(), "has other operands than the others of its warpgroup"));
    CHECK(contains(say_squares<lanes_differ>(), ": lane 7 has other operands than lane 0"));
    CHECK(contains(say_squares<warp_misses>(), "warp 7 has 19 products, and its warpgroup 20"));
    CHECK(contains(say_stored<columns_nowhere>(), "of tile b, the next 64 columns are nowhere"));
    CHECK(contains(say_stored_transposed<a_across_columns>(), "of tile a, its start is not the first of 64 columns"));
    CHECK(contains(say_stored_transposed<a_in_next_row>(), "of tile a, its start is not the first of 8 rows"));
    CHECK(contains(say_stored_transposed<a_outside>(), " of 4096 of shared memory"));
    CHECK(
        contains(say_stored_transposed<a_transposed_by_some>(), "has other operands than the others of its warpgroup"));
    Floats right, wrong;
    CHECK(say_squares<none>(&right) == "");
    CHECK(say_squares<not_transposed>(&wrong) == "");
    CHECK(!same_bits(right, wrong));
}

TEST_CASE("registers that nobody gives are waited for", "[emulator_hopper]" ON_DEVICE) {
    const EachOrder order;
    CHECK(contains(say_squares<nobody_gives>(), "threads (128..255) wait in take_registers"));
    CHECK(contains(say_squares<nobody_gives>(), "\n  0 registers are free"));
    CHECK(contains(say_squares<gives_more>(), "down to 256, of "));
    CHECK(contains(say_squares<takes_less>(), "up to 64, of "));
}

}  // namespace emulator_cases
#endif
