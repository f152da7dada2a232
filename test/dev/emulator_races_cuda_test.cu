// The emulator's reports of races, and the effects of its thread schedules.
#include <thread>
#include "test/dev/emulator_testing.h"
#ifdef ANVIL_EMULATED

namespace emulator_cases {

using namespace emulator_test;

// ---- what shows as NaN, and is a race as well ----------------------------------------------------------------------
// Each pair: what thread i writes, another one reads. `kBarrier`: with what keeps them apart.
struct Lines {
    int first, second;
};
inline constexpr Lines kReadAfterWrite = {__LINE__ + 4, __LINE__ + 6};
template <bool kBarrier>
__global__ void read_after_write(float* out, const float* inp) {
    SMEM_STATIC(float, s, [kThreads]);
    s[threadIdx.x] = inp[threadIdx.x];
    if constexpr (kBarrier) __syncthreads();
    out[threadIdx.x] = s[kThreads - 1 - threadIdx.x];
}
inline constexpr Lines kWithinAWarp = {__LINE__ + 4, __LINE__ + 6};
template <bool kBarrier>
__global__ void within_a_warp(float* out, const float* inp) {
    SMEM_STATIC(float, s, [32]);
    s[threadIdx.x] = inp[threadIdx.x];
    if constexpr (kBarrier) __syncwarp();
    out[threadIdx.x] = s[31 - threadIdx.x];
}
// Waiting makes your own copies visible to oneself only.
inline constexpr Lines kCopyWaitedFor = {__LINE__ + 4, __LINE__ + 9};
template <bool kBarrierBefore, bool kBarrier>
__global__ void copy_waited_for(float* out, const float* inp) {
    SMEM_STATIC(float, s, [kThreads]);
    if (threadIdx.x < 32) cp_async16(s + threadIdx.x * 4, inp + threadIdx.x * 4, true);
    cp_async_commit();
    if constexpr (kBarrierBefore) __syncthreads();
    cp_async_wait<0>();
    if constexpr (kBarrier) __syncthreads();
    out[threadIdx.x] = s[kThreads - 1 - threadIdx.x];
}
template <bool kWait>
__global__ void copy_read(float* out, const float* inp) {
    SMEM_STATIC(float, s, [kThreads]);
    cp_async16(s + threadIdx.x * 4, inp + threadIdx.x * 4, true);
    cp_async_commit();
    if constexpr (kWait) cp_async_wait<0>();
    for (int i = 0; i < 4; i++) out[threadIdx.x * 4 + i] = s[threadIdx.x * 4 + i];
    cp_async_wait<0>();
}
__global__ void second_group_read_early(float* out, const float* inp) {
    SMEM_STATIC(float, s, [2][32][4]);
    for (int group = 0; group < 2; group++) {
        cp_async16(s[group][threadIdx.x], inp + threadIdx.x * 4, true);
        cp_async_commit();
    }
    cp_async_wait<1>();
    for (int i = 0; i < 4; i++) {
        out[threadIdx.x * 4 + i] = s[0][threadIdx.x][i];
        out[128 + threadIdx.x * 4 + i] = s[1][threadIdx.x][i];
    }
    cp_async_wait<0>();
}
__global__ void copy_never_waited_for(float* out, const float* inp) {
    SMEM_STATIC(float, s, [4]);
    cp_async16(s, inp, true);
    cp_async_wait<0>();  // for the groups that were closed, and there is none
    out[0] = inp[0];
}
__global__ void reads_fresh_memory(float* out, const float* inp) {
    SMEM_STATIC(float, s, [kThreads]);
    if (threadIdx.x < 100) s[threadIdx.x] = inp[threadIdx.x];
    out[threadIdx.x] = s[threadIdx.x];
}

TEST_CASE("a copy that is never waited for", "[emulator_races]" ON_DEVICE) {
    Trial trial;
    CHECK(contains(trial.run(copy_never_waited_for, 1, 1).error, "1 cp.async copies were never waited for"));
    CHECK(trial.run(copy_read<true>, 1, 32).error == "");
    CHECK(trial.out.get()[127] == 128);
}

#ifndef ANVIL_MSAN  // which would rather have such memory undefined
TEST_CASE("what was not written yet is NaN", "[emulator_races]" ON_DEVICE) {
    CHECK(Trial().num_nan(512) == 512);
    Trial trial;
    CHECK(trial.run(reads_fresh_memory, 1, kThreads).error == "");
    CHECK(trial.num_nan(kThreads) == 28);
    CHECK(Trial().run(copy_read<false>, 1, 32).num_nan(128) == 128);
    trial.run(second_group_read_early, 1, 32);
    CHECK(trial.num_nan(128) == 0);
    CHECK(trial.num_nan(256) == 128);
    // When the race checker ends the launch, there is no result to look at.
#ifndef ANVIL_RACE
    CHECK(Trial().run(read_after_write<false>, 1, kThreads).num_nan(kThreads) > 0);
    CHECK(Trial().run(within_a_warp<false>, 1, 32).num_nan(32) > 0);
    CHECK(Trial().run(copy_waited_for<false, false>, 1, kThreads).num_nan(kThreads) > 0);
#endif
}
#endif

// ---- races: found with -DANVIL_RACE, `make race` ------------------------------------------------------------------
inline constexpr Lines kLoop = {__LINE__ + 8, __LINE__ + 6};
template <bool kBarrier>
__global__ void loop(float* out, const float* inp) {
    SMEM_STATIC(float, s, [kThreads]);
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        s[threadIdx.x] = inp[threadIdx.x] + float(i);
        __syncthreads();
        sum += s[kThreads - 1 - threadIdx.x];
        if constexpr (kBarrier) __syncthreads();
    }
    out[threadIdx.x] = sum;
}
// Two buffers by turns need no second barrier.
__global__ void loop_by_turns(float* out, const float* inp) {
    SMEM_STATIC(float, s, [2][kThreads]);
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        s[i % 2][threadIdx.x] = inp[threadIdx.x] + float(i);
        __syncthreads();
        sum += s[i % 2][kThreads - 1 - threadIdx.x];
    }
    out[threadIdx.x] = sum;
}
// __syncwarp keeps no more than one warp together.
inline constexpr Lines kWarpsApart = {__LINE__ + 4, __LINE__ + 6};
template <int kPartner>
__global__ void warps_apart(float* out, const float* inp) {
    SMEM_STATIC(float, s, [kThreads]);
    s[threadIdx.x] = inp[threadIdx.x];
    __syncwarp();
    out[threadIdx.x] = s[threadIdx.x ^ kPartner];
}
// Nor does a shuffle order memory.
inline constexpr Lines kShuffleOnly = {__LINE__ + 4, __LINE__ + 7};
template <bool kBarrier>
__global__ void shuffle_only(float* out, const float* inp) {
    SMEM_STATIC(float, s, [32]);
    s[threadIdx.x] = inp[threadIdx.x];
    const float x = __shfl_xor_sync(kAllLanes, inp[threadIdx.x], 1);
    if constexpr (kBarrier) __syncwarp();
    out[threadIdx.x] = s[threadIdx.x ^ 1] + x;
}
inline constexpr Lines kLdmatrix = {__LINE__ + 4, __LINE__ + 7};
template <bool kBarrier>
__global__ void ldmatrix_after_write(float* out, const float* inp) {
    SMEM_STATIC(float, s, [32][4]);
    for (int i = 0; i < 4; i++) s[31 - threadIdx.x][i] = inp[i];
    if constexpr (kBarrier) __syncwarp();
    uint32_t r[4];
    ldmatrix_x4(r, s[threadIdx.x]);
    out[threadIdx.x] = __uint_as_float(r[0]);
}
template <bool kAtomic>
__global__ void sum_over_blocks(float* out, const float* inp) {
    const float sum = warp_sum(inp[threadIdx.x]);
    if (threadIdx.x > 0) return;
    if constexpr (kAtomic)
        atomicAdd(out, sum);
    else
        out[0] = out[0] + sum;
}
inline constexpr int kSumOverBlocks = __LINE__ - 2;
template <bool kApart>
__global__ void blocks_write(float* out, const float* inp) {
    out[(kApart ? blockIdx.x * blockDim.x : 0) + threadIdx.x] = inp[threadIdx.x];
}
inline constexpr int kBlocksWrite = __LINE__ - 2;
// Each block reads a cell of the next one's, which writes it in place: out is inp.
template <bool kHalo>
__global__ void in_place(float* out, const float*) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    const float right = out[kHalo ? i + 1 : i];
    out[i] = out[i] + right;
}
inline constexpr Lines kInPlace = {__LINE__ - 3, __LINE__ - 2};
// The block that comes last adds up what all have left, which needs fences on both sides of the counter.
template <bool kFence>
__global__ void last_block(float* out, const float* inp, float* partials, uint32_t* counter) {
    SMEM_STATIC(uint32_t, ticket, [1]);
    partials[blockIdx.x * blockDim.x + threadIdx.x] = inp[blockIdx.x];
    if constexpr (kFence) __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) ticket[0] = atomicAdd(counter, 1u);
    __syncthreads();
    if (ticket[0] != gridDim.x - 1) return;
    if constexpr (kFence) __threadfence();
    float sum = 0;
    for (unsigned i = threadIdx.x; i < gridDim.x * blockDim.x; i += blockDim.x) sum += partials[i];
    out[threadIdx.x] = sum;
}
inline constexpr Lines kLastBlock = {__LINE__ - 11, __LINE__ - 3};

std::string error_of_last_block(void (*kernel)(float*, const float*, float*, uint32_t*)) {
    Trial trial;
    OnDevice<float> partials(trial.cuda, 4 * 32);
    OnDevice<uint32_t> counter(trial.cuda, std::vector<uint32_t>(1, 0));
    const std::string error = error_of([&] {
        launch(trial.cuda, "trial", kernel, 4, 32, 0, trial.out.data, trial.inp.data, partials.data, counter.data);
    });
    CHECK(trial.out.get()[31] == 10);  // 1 + 2 + 3 + 4
    return error;
}

// Block after block adds to sums, one per thread, which only counters hand on.
enum class Handed {
    by_each,           // thread by thread
    by_one,            // by thread 0 for its block, with barriers
    by_plain_flag,     // with loads and stores like any other
    by_relaxed_flag,   // with atomics that are no fence
    unwaited,          // the next block does not look
    waits_afterwards,  // but too late
    stores_afterwards,
    by_one_unordered,  // thread 0 hands on what the others store, without a barrier
    one_has_waited,    // the others read with no barrier after its wait
    by_lane,           // by lane 0 for its warp, with __syncwarp
    by_lane_unordered,
    lane_has_waited,
    by_other_warp,  // what another warp has stored
};
using enum Handed;
inline constexpr Lines kHanded = {__LINE__ + 25, __LINE__ + 23};  // the store, the load
inline constexpr Lines kFlag = {__LINE__ + 31, __LINE__ + 14};
template <Handed how>
__global__ void hand_on(float* sums, const float* inp, int* next_ticket, int* counters) {
    SMEM_STATIC(int, shared, [1]);
    constexpr bool is_one = how == by_one || how == by_one_unordered || how == one_has_waited;
    constexpr bool is_lane =
        how == by_lane || how == by_lane_unordered || how == lane_has_waited || how == by_other_warp;
    const int thread = int(threadIdx.x);
    const bool hands_on = is_one ? thread == 0 : !is_lane || thread % 32 == 0;
    if (thread == 0) shared[0] = atomicAdd(next_ticket, 1);
    __syncthreads();
    const int ticket = shared[0];
    int* const counter = counters + (is_one ? 0 : is_lane ? thread / 32 : thread);
    if (how == by_relaxed_flag) atomicAdd(counter, 0);
    if (how == by_plain_flag && *counter > ticket) return;
    const bool waits = how != by_plain_flag && how != by_relaxed_flag && how != unwaited && how != waits_afterwards;
    if (waits && hands_on) wait_until(counter, ticket);
    if (how == by_one || how == by_one_unordered) __syncthreads();
    if (how == by_lane || how == by_lane_unordered || how == by_other_warp) __syncwarp();
    if (how == stores_afterwards) publish(counter, ticket + 1);
    float sum = 0;
    float* const own = sums + (how == by_other_warp && ticket % 2 ? thread ^ 32 : thread);
    sum = *own;
    sum += inp[ticket];
    *own = sum;
    if (how == waits_afterwards) wait_until(counter, ticket);
    if (how == by_one || how == one_has_waited) __syncthreads();
    if (how == by_lane || how == lane_has_waited || how == by_other_warp) __syncwarp();
    if (how == by_relaxed_flag)
        atomicAdd(counter, 1);
    else if (how == by_plain_flag)
        *counter = ticket + 1;
    else if (how != stores_afterwards && hands_on)
        publish(counter, ticket + 1);
}

template <Handed how>
std::string error_of_hand_on() {
    Trial trial;
    trial.out.set(Floats(512, 0));
    OnDevice<int32_t> next_ticket(trial.cuda, std::vector<int32_t>(1, 0)),
        counters(trial.cuda, std::vector<int32_t>(64, 0));
    const std::string error = error_of([&] {
        launch(trial.cuda, "trial", hand_on<how>, 4, 64, 0, trial.out.data, trial.inp.data, next_ticket.data,
               counters.data);
    });
    if (error.empty()) CHECK(trial.out.get()[63] == 10);  // 1 + 2 + 3 + 4
    return error;
}

TEST_CASE("kernels with their barriers are clean", "[emulator_races]" ON_DEVICE) {
    const auto clean = [](Trial::Kernel kernel, int blocks, int threads, size_t n, float last) {
        Trial trial;
        CHECK(trial.run(kernel, unsigned(blocks), unsigned(threads)).error == "");
        CHECK(trial.out.get()[n - 1] == last);
    };
    clean(read_after_write<true>, 1, kThreads, kThreads, 1);
    clean(within_a_warp<true>, 1, 32, 32, 1);
    clean(copy_waited_for<true, true>, 1, kThreads, kThreads, 1);
    clean(copy_waited_for<false, true>, 1, kThreads, kThreads, 1);
    clean(warps_apart<16>, 1, 64, 64, 48);
    clean(shuffle_only<true>, 1, 32, 32, 62);
    clean(loop<true>, 1, kThreads, kThreads, 10);
    clean(loop_by_turns, 1, kThreads, kThreads, 10);
    clean(ldmatrix_after_write<true>, 1, 32, 32, 4);
    clean(blocks_write<true>, 4, 128, 512, 128);
    CHECK(error_of_last_block(last_block<true>) == "");
    CHECK(error_of_hand_on<by_each>() == "");
    CHECK(error_of_hand_on<by_one>() == "");
    CHECK(error_of_hand_on<by_lane>() == "");

    Trial trial;
    const Floats zeros(512, 0);
    trial.out.set(zeros);
    CHECK(trial.run(sum_over_blocks<true>, 4, 32).error == "");
    CHECK(trial.out.get()[0] == 4 * 528);
    trial.out.set(zeros);
    CHECK(trial.run(in_place<false>, 3, 32).error == "");
}

#ifdef ANVIL_RACE
// The kernel starts the host's other thread, so that both run at once.
__global__ void host_thread_reads(float* out, const float*) {
    out[threadIdx.x] = 1;
    if (threadIdx.x == 1) std::thread([&] { out[1] = out[0]; }).join();
}
TEST_CASE("what another thread of the host does meanwhile is no access of the kernel", "[emulator_races]" ON_DEVICE) {
    CHECK(Trial().run(host_thread_reads, 1, 2).error == "");
}

TEST_CASE("a race is reported with both its places", "[emulator_races]" ON_DEVICE) {
    const auto check = [](const std::string& error, const char* kind, Lines lines) {
        INFO(error);
        CHECK(contains(error, "1: kernel trial: races:"));
        bool found = false;
        for (size_t from = 0; (from = error.find("\n  ", from)) != std::string::npos; from++) {
            const std::string line = error.substr(from, error.find('\n', from + 1) - from);
            const size_t first = line.find(at(lines.first)), second = line.rfind(at(lines.second));
            found |= contains(line, kind) && first != std::string::npos && second != std::string::npos &&
                     first < line.find(", then thread") && second > line.find(", then thread");
        }
        CHECK(found);
    };
    const auto racy = [&](Trial::Kernel kernel, int blocks, int threads, const char* kind, Lines lines) {
        check(Trial().run(kernel, unsigned(blocks), unsigned(threads)).error, kind, lines);
    };
    // In each pair the order is the one in which the threads ran.
    const bool forward = emulator::options().schedule == emulator::Schedule::in_order;
    const char* const raw = "read after write on shared memory";
    const char* const war = "write after read on shared memory";
    const auto swapped = [](Lines lines) { return Lines{lines.second, lines.first}; };
    if (forward) {
        racy(read_after_write<false>, 1, kThreads, raw, kReadAfterWrite);
        racy(within_a_warp<false>, 1, 32, raw, kWithinAWarp);
        racy(copy_waited_for<false, false>, 1, kThreads, raw, kCopyWaitedFor);
        racy(copy_waited_for<true, false>, 1, kThreads, raw, kCopyWaitedFor);
        racy(warps_apart<32>, 1, 64, raw, kWarpsApart);
        racy(shuffle_only<false>, 1, 32, raw, kShuffleOnly);
        racy(ldmatrix_after_write<false>, 1, 32, war, swapped(kLdmatrix));
        racy(in_place<true>, 3, 32, "write after read on global memory", kInPlace);
    }
    racy(loop<false>, 1, kThreads, war, kLoop);
    racy(sum_over_blocks<false>, 4, 32, "write after write on global memory", {kSumOverBlocks, kSumOverBlocks});
    racy(blocks_write<false>, 2, 128, "write after write on global memory", {kBlocksWrite, kBlocksWrite});
    check(error_of_last_block(last_block<false>), "read after write on global memory", kLastBlock);
    const char* const global = "read after write on global memory";
    check(error_of_hand_on<by_plain_flag>(), global, kFlag);
    check(error_of_hand_on<by_plain_flag>(), global, kHanded);
    check(error_of_hand_on<by_relaxed_flag>(), global, kHanded);
    check(error_of_hand_on<unwaited>(), global, kHanded);
    check(error_of_hand_on<waits_afterwards>(), global, kHanded);
    check(error_of_hand_on<stores_afterwards>(), global, kHanded);
    check(error_of_hand_on<by_one_unordered>(), global, kHanded);
    check(error_of_hand_on<one_has_waited>(), global, kHanded);
    check(error_of_hand_on<by_lane_unordered>(), global, kHanded);
    check(error_of_hand_on<lane_has_waited>(), global, kHanded);
    check(error_of_hand_on<by_other_warp>(), global, kHanded);
}
#endif

// ---- orders of threads ---------------------------------------------------------------------------------------------
#ifndef ANVIL_RACE
__global__ void last_thread_wins(float* out, const float*) {
    out[0] = float(threadIdx.x);
    out[1] = float(blockIdx.x);
}
TEST_CASE("the order of threads is a choice, on which right results do not depend", "[emulator_races]" ON_DEVICE) {
    const OtherOptions restore;
    const auto under = [](emulator::Schedule schedule, unsigned seed, Trial::Kernel kernel) {
        emulator::options().schedule = schedule, emulator::options().seed = seed;
        Trial trial;
        CHECK(trial.run(kernel, 4, kThreads).error == "");
        Floats out = trial.out.get();
        out.resize(kThreads);
        return out;
    };
    using enum emulator::Schedule;
    const Floats right = under(in_order, 1, read_after_write<true>);
    CHECK(same_bits(under(reverse, 1, read_after_write<true>), right));
    for (unsigned seed = 1; seed < 5; seed++) CHECK(same_bits(under(random, seed, read_after_write<true>), right));

    CHECK(under(in_order, 1, last_thread_wins)[0] == kThreads - 1);
    CHECK(under(in_order, 1, last_thread_wins)[1] == 3);
    CHECK(under(reverse, 1, last_thread_wins)[0] == 0);
    CHECK(under(reverse, 1, last_thread_wins)[1] == 0);
    std::vector<float> winners;
    for (unsigned seed = 1; seed < 9; seed++) winners.push_back(under(random, seed, last_thread_wins)[0]);
    CHECK(std::count(winners.begin(), winners.end(), winners[0]) < 8);
    CHECK(under(random, 3, last_thread_wins)[0] == winners[2]);  // but the same seed gives the same order

    // The barrier that a loop lacks: some order shows it.
    const Floats want = under(in_order, 1, loop<true>);
    CHECK(same_bits(under(reverse, 1, loop<true>), want));
    bool differs = false;
    for (unsigned seed = 1; seed < 5; seed++) differs |= !same_bits(under(random, seed, loop<false>), want);
    CHECK(differs);
}
#endif

}  // namespace emulator_cases
#endif
