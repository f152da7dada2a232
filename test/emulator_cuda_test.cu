// The emulator itself: every kind of mistake that it is there to find, made on purpose, and beside it the same kernel
// done right, which must stay clean. Only the emulator can run these.
#include "test/cuda_testing.h"  // OnDevice
#ifdef ANVIL_EMULATED
#include <filesystem>
#include "dev/emulator/emulator.h"
#include "dev/emulator/sanitizers.h"  // ANVIL_MSAN, ANVIL_ASAN

// Named: what one build or another leaves unused is no mistake.
namespace emulator_test {

inline constexpr int kThreads = 128;

// "this file:line", as messages give it.
std::string at(int line) { return format("emulator_cuda_test.cu:%d", line); }

// One launch of a kernel (out, inp): inp is 1, 2, 3 ..., out is fresh and so NaN.
struct Trial {
    Cuda cuda;
    OnDevice<float> inp, out;
    std::string error;
    explicit Trial(size_t n = 512) : inp(cuda, counted(n)), out(cuda, n) {}
    static Floats counted(size_t n) {
        Floats x(n);
        for (size_t i = 0; i < n; i++) x[i] = float(i + 1);
        return x;
    }
    using Kernel = void (*)(float*, const float*);
    Trial& run(Kernel kernel, dim3 grid, dim3 block, size_t shared_bytes = 0) {
        error = error_of([&] { launch(cuda, "trial", kernel, grid, block, shared_bytes, out.data, inp.data); });
        return *this;
    }
    // How many of the first n results are NaN.
    int num_nan(int n) {
        const Floats values = out.get();
        return int(std::count_if(values.begin(), values.begin() + n, [](float x) { return std::isnan(x); }));
    }
};

// ---- what the emulator says itself --------------------------------------------------------------------------------
inline constexpr int kTwoBarriers = __LINE__ + 3;
__global__ void two_barriers(float* out, const float* inp) {
    if (threadIdx.x < 40)
        __syncthreads();
    else
        __syncthreads();
    out[threadIdx.x] = inp[threadIdx.x];
}
inline constexpr int kEarlyReturn = __LINE__ + 3;
__global__ void early_return(float* out, const float* inp) {
    if (threadIdx.x >= 100) return;
    __syncthreads();
    out[threadIdx.x] = inp[threadIdx.x];
}
inline constexpr int kPartialShuffle = __LINE__ + 5;
__global__ void shuffle_by_part_of_a_warp(float* out, const float* inp) {
    if (threadIdx.x >= 64) return;
    float x = inp[threadIdx.x];
    // the last round has only threads 32 to 35
    for (int i = int(threadIdx.x); i < 100; i += 64) x += __shfl_xor_sync(kAllLanes, x, 1);
    out[threadIdx.x] = x;
}
inline constexpr int kTwoShuffles = __LINE__ + 4;
__global__ void two_shuffles(float* out, const float* inp) {
    float x = inp[threadIdx.x];
    if (threadIdx.x % 2)
        x = __shfl_xor_sync(kAllLanes, x, 2);
    else
        x = __shfl_xor_sync(kAllLanes, x, 4);
    out[threadIdx.x] = x;
}
__global__ void not_in_its_own_mask(float* out, const float* inp) {
    out[threadIdx.x] = __shfl_xor_sync(0x0000FFFF, inp[threadIdx.x], 1);
}
__global__ void reads_beyond_its_mask(float* out, const float* inp) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(0x0000FFFF, inp[threadIdx.x], 16);
}
__global__ void shuffle_by_half_a_warp(float* out, const float* inp) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(0x0000FFFF, inp[threadIdx.x], 8);
}
inline constexpr int kHalfMma = __LINE__ + 4;
__global__ void mma_by_half_a_warp(float* out, const float*) {
    float d[4] = {};
    const uint32_t a[4] = {}, b[2] = {};
    if (threadIdx.x < 16) mma_m16n8k16(d, a, b);
    out[threadIdx.x] = d[0];
}
inline constexpr int kHalfLdmatrix = __LINE__ + 4;
__global__ void ldmatrix_by_half_a_warp(float* out, const float* inp) {
    SMEM_STATIC(float, tile, [32][4]);
    uint32_t r[4] = {};
    if (threadIdx.x < 16) ldmatrix_x4(r, tile[threadIdx.x]);
    out[threadIdx.x] = inp[r[0] & 1];
}

TEST_CASE("threads that miss a barrier, a shuffle or a matrix instruction end the launch", "[emulator]" ON_DEVICE) {
    Trial trial;
    trial.run(two_barriers, 1, kThreads);
    CHECK(contains(trial.error, "1: kernel trial, block (0,0,0), thread ("));
    CHECK(contains(trial.error, "one block at two barriers"));
    CHECK(contains(trial.error, "__syncthreads at test/" + at(kTwoBarriers)));
    CHECK(contains(trial.error, "__syncthreads at test/" + at(kTwoBarriers + 2)));

    trial.run(early_return, 1, kThreads);
    CHECK(contains(trial.error, "kernel trial, block (0,0,0)"));
    CHECK(contains(trial.error, "no thread can go on:"));
    CHECK(contains(trial.error, "\n  100 threads (0..99) wait in __syncthreads at test/" + at(kEarlyReturn)));
    CHECK(contains(trial.error, "\n  28 threads (100..127) have exited"));

    trial.run(shuffle_by_part_of_a_warp, 1, 96);
    CHECK(contains(trial.error, "\n  4 threads (32..35) wait in __shfl_xor_sync at test/" + at(kPartialShuffle) +
                                    " (mask ffffffff)"));
    CHECK(contains(trial.error, "\n  92 threads (0..95) have exited"));

    trial.run(two_shuffles, 1, 32);
    CHECK(contains(trial.error, "one warp in two operations: lane"));
    CHECK(contains(trial.error, at(kTwoShuffles)));
    CHECK(contains(trial.error, at(kTwoShuffles + 2)));

    trial.run(not_in_its_own_mask, 1, 32);
    CHECK(contains(trial.error, "is not in its own mask 0000ffff"));
    trial.run(reads_beyond_its_mask, 1, 32);
    CHECK(contains(trial.error, "a shuffle reads lane"));
    CHECK(contains(trial.error, "which is not in its mask 0000ffff"));

    trial.run(mma_by_half_a_warp, 1, 32);
    CHECK(contains(trial.error, "\n  16 threads (0..15) wait in mma.sync at test/" + at(kHalfMma)));
    trial.run(ldmatrix_by_half_a_warp, 1, 32);
    CHECK(contains(trial.error, "\n  16 threads (0..15) wait in ldmatrix at test/" + at(kHalfLdmatrix)));

    // The next launch knows nothing of it, and half a warp may shuffle among itself.
    trial.run(shuffle_by_half_a_warp, 1, 32);
    CHECK(trial.error == "");
    CHECK(trial.num_nan(16) == 0);
}

template <class T>
__global__ void load_misaligned(T* out, const T* inp) {
    store16(out + threadIdx.x * Pack<T>::size, load16(inp + 1 + threadIdx.x * Pack<T>::size));
}
template <class T>
__global__ void store_misaligned(T* out, const T* inp) {
    store16(out + Pack<T>::size / 2 + threadIdx.x * Pack<T>::size, load16(inp + threadIdx.x * Pack<T>::size));
}
__global__ void ldmatrix_misaligned(float* out, const float*) {
    SMEM_STATIC(bf16, tile, [32][12]);  // rows of 24 bytes
    for (int i = 0; i < 12; i++) tile[threadIdx.x][i] = from_float<bf16>(1);
    __syncwarp();
    uint32_t r[4];
    ldmatrix_x4(r, tile[threadIdx.x]);
    out[threadIdx.x] = float(r[0]);
}
template <int kTo, int kFrom>
__global__ void copy_misaligned(float*, const float* inp) {
    SMEM_STATIC(float, tile, [8]);
    cp_async16(tile + kTo, inp + kFrom, true);
    cp_async_commit();
    cp_async_wait<0>();
}

TEST_CASE("sixteen bytes at an address that is not a multiple of it end the launch", "[emulator]" ON_DEVICE) {
    Trial trial;
    CHECK(contains(trial.run(load_misaligned<float>, 1, 8).error, ": load16 at test/emulator_cuda_test.cu:"));
    CHECK(contains(trial.run(store_misaligned<float>, 1, 8).error, ": store16 at test/emulator_cuda_test.cu:"));
    CHECK(contains(trial.run(store_misaligned<float>, 1, 8).error, "is not a multiple of 16"));
    CHECK(contains(trial.run(ldmatrix_misaligned, 1, 32).error, ": ldmatrix at test/emulator_cuda_test.cu:"));
    CHECK(contains(trial.run(copy_misaligned<1, 0>, 1, 1).error, ": cp.async to at test/emulator_cuda_test.cu:"));
    CHECK(contains(trial.run(copy_misaligned<0, 2>, 1, 1).error, ": cp.async from at test/emulator_cuda_test.cu:"));
    CHECK(trial.run(copy_misaligned<4, 4>, 1, 1).error == "");
    OnDevice<bf16> in(trial.cuda, 64), out(trial.cuda, 64);
    CHECK(contains(error_of([&] { launch(trial.cuda, "trial", load_misaligned<bf16>, 1, 7, 0, out.data, in.data); }),
                   "load16"));
}

__global__ void copy_elements(float* out, const float* inp) {
    if (threadIdx.x < 32 && threadIdx.z == 0) out[threadIdx.x] = inp[threadIdx.x];
}
template <int kBytes>
__global__ void static_memory(float* out, const float* inp) {
    SMEM_STATIC(float, array, [kBytes / 4]);
    array[kBytes / 4 - 1] = inp[0];
    out[0] = array[kBytes / 4 - 1];
}
__global__ void static_and_dynamic_memory(float* out, const float* inp) {
    SMEM_STATIC(float, array, [256]);
    SMEM_DYNAMIC(float, more);
    array[0] = inp[0], more[0] = array[0];
    out[0] = more[0];
}
__global__ void dynamic_memory(float* out, const float* inp) {
    SMEM_DYNAMIC(float, array);
    array[0] = inp[0];
    out[0] = array[0];
}

TEST_CASE("a launch that a GPU would refuse is refused", "[emulator]" ON_DEVICE) {
    Trial trial;
    CHECK(trial.run(copy_elements, 1, 0).error ==
          "1: kernel trial: blocks of 0 x 1 x 1 threads: 1 to 1024, and 64 in z");
    CHECK(trial.run(copy_elements, 1, 1025).error ==
          "1: kernel trial: blocks of 1025 x 1 x 1 threads: 1 to 1024, and 64 in z");
    CHECK(contains(trial.run(copy_elements, 1, dim3(1, 1, 65)).error, "64 in z"));
    CHECK(trial.run(copy_elements, 0, 32).error ==
          "1: kernel trial: a grid of 0 x 1 x 1 blocks: at least 1, at most 65535 in y and z");
    CHECK(contains(trial.run(copy_elements, dim3(1, 65536), 32).error, "at most 65535 in y and z"));
    CHECK(contains(trial.run(copy_elements, dim3(1, 1, 65536), 32).error, "at most 65535 in y and z"));
    CHECK(trial.run(copy_elements, 1, 1024).error == "");
    CHECK(trial.run(copy_elements, 1, dim3(1, 1, 64)).error == "");

    constexpr size_t most = 227 << 10;
    CHECK(trial.run(dynamic_memory, 1, 1, most).error == "");
    CHECK(trial.run(dynamic_memory, 1, 1, most + 1).error ==
          "1: kernel trial: 232449 bytes of shared memory a block; a GPU has at most 232448");
    CHECK(
        contains(trial.run(dynamic_memory, 1, 1, 0).error, "dynamic shared memory is used, but the launch gave none"));
    CHECK(trial.run(static_memory<48 << 10>, 1, 1).error == "");
    CHECK(contains(trial.run(static_memory<(48 << 10) + 4>, 1, 1).error,
                   "49156 bytes in SMEM_STATIC arrays; nvcc allows 49152"));
    CHECK(trial.run(static_and_dynamic_memory, 1, 1, most - 1024).error == "");
    CHECK(contains(trial.run(static_and_dynamic_memory, 1, 1, most - 1023).error,
                   "232449 bytes of shared memory a block, 231425 of them dynamic; a GPU has at most 232448"));
}

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
// Waiting makes one's own copies visible to oneself only.
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

TEST_CASE("a copy that is never waited for", "[emulator]" ON_DEVICE) {
    Trial trial;
    CHECK(contains(trial.run(copy_never_waited_for, 1, 1).error, "1 cp.async copies were never waited for"));
    CHECK(trial.run(copy_read<true>, 1, 32).error == "");
    CHECK(trial.out.get()[127] == 128);
}

#ifndef ANVIL_MSAN  // which would rather have such memory undefined
TEST_CASE("what was not written yet is NaN", "[emulator]" ON_DEVICE) {
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

TEST_CASE("kernels with their barriers are clean", "[emulator][race]" ON_DEVICE) {
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

    Trial trial;
    const Floats zeros(512, 0);
    trial.out.set(zeros);
    CHECK(trial.run(sum_over_blocks<true>, 4, 32).error == "");
    CHECK(trial.out.get()[0] == 4 * 528);
    trial.out.set(zeros);
    CHECK(trial.run(in_place<false>, 3, 32).error == "");
}

#ifdef ANVIL_RACE
TEST_CASE("a race is reported with both its places", "[emulator][race]" ON_DEVICE) {
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
    }
    racy(loop<false>, 1, kThreads, war, kLoop);
    racy(sum_over_blocks<false>, 4, 32, "write after write on global memory", {kSumOverBlocks, kSumOverBlocks});
    racy(blocks_write<false>, 2, 128, "write after write on global memory", {kBlocksWrite, kBlocksWrite});
    racy(in_place<true>, 3, 32, "write after read on global memory", kInPlace);
    check(error_of_last_block(last_block<false>), "read after write on global memory", kLastBlock);
}
#endif

// ---- orders of threads ---------------------------------------------------------------------------------------------
struct OtherOptions {
    const emulator::Options before = emulator::options();
    ~OtherOptions() { emulator::options() = before; }
};

#ifndef ANVIL_RACE
__global__ void last_thread_wins(float* out, const float*) {
    out[0] = float(threadIdx.x);
    out[1] = float(blockIdx.x);
}
TEST_CASE("the order of threads is a choice, on which right results do not depend", "[emulator]" ON_DEVICE) {
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

// ---- streams and memory ---------------------------------------------------------------------------------------------
__global__ void add_one(float* x) { x[0] = x[0] + 1; }

struct TwoStreams {
    const OtherOptions restore;
    Cuda cuda;
    cudaStream_t other = nullptr;
    cudaEvent_t event = nullptr;
    OnDevice<float> x, y;
    explicit TwoStreams(bool lazy) : x(cuda, Floats{1}), y(cuda, 1) {
        cuda_check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "stream");
        cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
        cuda.synchronize();
        emulator::options().lazy_streams = lazy;
    }
    ~TwoStreams() {
        cuda_check(cudaDeviceSynchronize(), "waiting");
        cuda_check(cudaEventDestroy(event), "event");
        cuda_check(cudaStreamDestroy(other), "stream");
    }
    void copy(float* to, const float* from, cudaStream_t stream) {
        cuda_check(cudaMemcpyAsync(to, from, sizeof(float), cudaMemcpyDefault, stream), "copy");
    }
};

TEST_CASE("with lazy streams nothing is done before somebody waits", "[emulator]" ON_DEVICE) {
    for (const bool lazy : {false, true}) {
        INFO("lazy: " << lazy);
        TwoStreams s(lazy);
        float host = -1;
        launch(s.cuda, "add_one", add_one, 1, 1, 0, s.x.data);
        s.copy(&host, s.x.data, s.cuda.stream);
        CHECK(host == (lazy ? -1 : 2));
        s.cuda.synchronize();
        CHECK(host == 2);

        // A buffer that is used again before its copy was made.
        host = 10;
        s.copy(s.x.data, &host, s.cuda.stream);
        host = 20;
        s.cuda.synchronize();
        CHECK(s.x.get()[0] == (lazy ? 20 : 10));
    }
}

TEST_CASE("events order streams", "[emulator]" ON_DEVICE) {
    float host = -1;
    const auto produce_and_consume = [&](bool wait) {
        TwoStreams s(true);
        launch(s.cuda, "add_one", add_one, 1, 1, 0, s.x.data);
        cuda_check(cudaEventRecord(s.event, s.cuda.stream), "event");
        launch(s.cuda, "add_one", add_one, 1, 1, 0, s.x.data);  // behind the event: not waited for
        CHECK(cudaEventQuery(s.event) == cudaErrorNotReady);
        if (wait) cuda_check(cudaStreamWaitEvent(s.other, s.event), "wait");
        s.copy(s.y.data, s.x.data, s.other);
        s.copy(&host, s.y.data, s.other);
        cuda_check(cudaStreamSynchronize(s.other), "waiting");
    };
    produce_and_consume(true);
    CHECK(host == 2);
    produce_and_consume(false);
    CHECK(host != 3);

    TwoStreams s(true);
    CHECK(cudaEventQuery(s.event) == cudaSuccess);  // never recorded
    launch(s.cuda, "add_one", add_one, 1, 1, 0, s.x.data);
    cuda_check(cudaEventRecord(s.event, s.cuda.stream), "event");
    cuda_check(cudaStreamWaitEvent(s.other, s.event), "wait");
    // Recorded again: who waits already still waits for the first time only.
    launch(s.cuda, "add_one", add_one, 1, 1, 0, s.x.data);
    cuda_check(cudaEventRecord(s.event, s.cuda.stream), "event");
    s.copy(&host, s.x.data, s.other);
    cuda_check(cudaStreamSynchronize(s.other), "waiting");
    CHECK(host == 2);
    int questions = 0;
    while (cudaEventQuery(s.event) == cudaErrorNotReady) questions++;
    CHECK(questions == 2);  // the kernel and the record itself
    CHECK(s.x.get()[0] == 3);
    cuda_check(cudaEventRecord(s.event, s.cuda.stream), "event");
    cuda_check(cudaEventSynchronize(s.event), "event");
    CHECK(cudaEventQuery(s.event) == cudaSuccess);
}

TEST_CASE("with lazy streams whoever waits gets the kernel's error", "[emulator]" ON_DEVICE) {
    TwoStreams s(true);
    const auto fail = [&] { launch(s.cuda, "trial", early_return, 1, kThreads, 0, s.x.data, s.x.data); };
    fail();
    launch(s.cuda, "add_one", add_one, 1, 1, 0, s.x.data);
    CHECK(contains(error_of([&] { s.cuda.synchronize(); }), "1: waiting for GPU 0: kernel trial, block (0,0,0)"));
    s.cuda.synchronize();
    CHECK(s.x.get()[0] == 1);  // what was behind it is dropped
    fail();
    cuda_check(cudaEventRecord(s.event, s.cuda.stream), "event");
    cuda_check(cudaStreamWaitEvent(s.other, s.event), "wait");
    CHECK(cudaStreamSynchronize(s.other) == cudaErrorLaunchFailure);
}

TEST_CASE("device memory is limited, and counted", "[emulator]" ON_DEVICE) {
    const OtherOptions restore;
    Cuda before;
    const size_t used = emulator::options().memory_bytes - before.free_bytes();
    emulator::options().memory_bytes = used + (8 << 20);
    Cuda cuda;
    CHECK(cuda.free_bytes() == 8 << 20);
    void* half = cuda.allocate(4 << 20);
    CHECK(cuda.free_bytes() == 4 << 20);
    CHECK(error_of([&] { cuda.allocate((4 << 20) + 1); }) ==
          format("2: out of GPU memory: 4.0 MiB asked for, 4.0 of %.1f MiB are free. Lower --batch-size or --seq-len",
                 double(used) / (1 << 20) + 8));
    void* rest = cuda.allocate(4 << 20);
    CHECK(cuda.free_bytes() == 0);
    cuda.release(half, 4 << 20);
    cuda.release(rest, 4 << 20);
    CHECK(cuda.free_bytes() == 8 << 20);
    CHECK(cudaFree(&cuda) == cudaErrorInvalidValue);
    cuda.workspace(3 << 20);
    cuda.workspace(2 << 20);
    CHECK(cuda.free_bytes() == 5 << 20);
}

// ---- what ends the process: in one of its own
// ------------------------------------------------------------------------
Finished run_hidden(const std::string& test_case, const std::string& environment = "") {
    static const std::string program = std::filesystem::read_symlink("/proc/self/exe");
    return run(environment + " '" + program + "' '" + test_case + "'");
}

TEST_CASE("options as found", "[.options]") {
    const emulator::Options& options = emulator::options();
    std::printf("%d %u %d %zu\n", int(options.schedule), options.seed, options.lazy_streams,
                options.memory_bytes >> 20);
}
TEST_CASE("the emulator's options come from the environment", "[emulator]" ON_DEVICE) {
    const auto found = [](const std::string& environment) { return run_hidden("options as found", environment).out; };
    CHECK(contains(found("ANVIL_EMULATOR_SCHEDULE="), "0 1 0 4096\n"));
    CHECK(contains(found("ANVIL_EMULATOR_SCHEDULE=reverse ANVIL_EMULATOR_STREAMS=lazy"), "1 1 1 4096\n"));
    CHECK(contains(found("ANVIL_EMULATOR_SCHEDULE=random ANVIL_EMULATOR_SEED=7 ANVIL_EMULATOR_MEMORY_MIB=100"),
                   "2 7 0 100\n"));
    CHECK(contains(found("ANVIL_EMULATOR_SCHEDULE=forward"),
                   "ANVIL_EMULATOR_SCHEDULE=forward: expected in_order, reverse or random"));
    CHECK(contains(found("ANVIL_EMULATOR_STREAMS=late"), "ANVIL_EMULATOR_STREAMS=late: expected eager or lazy"));
    CHECK(contains(found("ANVIL_EMULATOR_MEMORY_MIB=1G"), "ANVIL_EMULATOR_MEMORY_MIB=1G: expected a number"));
}

#if defined(ANVIL_ASAN) || defined(ANVIL_MSAN)
// Kernels that a sanitizer stops. Memory on the device is allocated without guard zones here: those would be in its
// bounds.
template <class... P>
void run_bug(void (*kernel)(P...), unsigned blocks, unsigned threads, size_t shared_bytes,
             std::type_identity_t<P>... args) {
    Cuda cuda;
    launch(cuda, "bug", kernel, blocks, threads, shared_bytes, args...);
}
struct Bare {
    Cuda cuda;
    float* data;
    explicit Bare(size_t n) : data(static_cast<float*>(cuda.allocate(n * sizeof(float)))) {}
    ~Bare() { cuda.release(data, 0); }
    operator float*() const { return data; }
};
#endif

#ifdef ANVIL_ASAN
template <int n>
__global__ void fill_static(float* out) {
    SMEM_STATIC(float, s, [n]);
    s[threadIdx.x] = 1;
    out[threadIdx.x] = s[threadIdx.x];
}
__global__ void fill_dynamic(float* out) {
    SMEM_DYNAMIC(float, s);
    s[threadIdx.x] = 1;
    out[threadIdx.x] = s[threadIdx.x];
}
__global__ void fill_global(float* out) { out[blockIdx.x * blockDim.x + threadIdx.x] = 1; }
__global__ void index_in_int(float* out, int row) {
    const int i = row * 50304;
    out[i & 63] = 1;
}
__global__ void large_frame(float* out) {
    volatile float large[1 << 17];
    for (int i = (1 << 17) - 1; i >= 0; i -= 64) large[i] = float(i);
    out[0] = large[63];
}
TEST_CASE("bug: static shared memory", "[.bug]") { run_bug(fill_static<127>, 1, 128, 0, Bare(128)); }
TEST_CASE("bug: dynamic shared memory", "[.bug]") { run_bug(fill_dynamic, 1, 128, 127 * sizeof(float), Bare(128)); }
TEST_CASE("bug: global memory", "[.bug]") { run_bug(fill_global, 3, 96, 0, Bare(287)); }
TEST_CASE("bug: int overflow", "[.bug]") { run_bug(index_in_int, 1, 1, 0, Bare(64), 50000); }
TEST_CASE("bug: stack", "[.bug]") { run_bug(large_frame, 1, 32, 0, Bare(64)); }
TEST_CASE("bug: none", "[.bug]") {
    run_bug(fill_static<128>, 1, 128, 0, Bare(128));
    run_bug(fill_dynamic, 1, 128, 128 * sizeof(float), Bare(128));
    run_bug(fill_global, 3, 96, 0, Bare(288));
    run_bug(index_in_int, 1, 1, 0, Bare(64), 40000);
}

TEST_CASE("AddressSanitizer and UndefinedBehaviorSanitizer watch the kernels", "[emulator]" ON_DEVICE) {
    const auto stopped = [](const std::string& name, const std::string& report, const std::string& kernel) {
        const Finished result = run_hidden(name);
        INFO(name << ": exit code " << result.exit_code << "\n" << result.err);
        CHECK(result.exit_code != 0);
        CHECK(contains(result.err, report));
        CHECK(contains(result.err, kernel));
        CHECK(contains(result.err, "emulator_cuda_test.cu:"));
    };
    stopped("bug: static shared memory", "index 127 out of bounds", "fill_static");
    stopped("bug: dynamic shared memory", "heap-buffer-overflow", "fill_dynamic");
    stopped("bug: global memory", "heap-buffer-overflow", "fill_global");
    stopped("bug: int overflow", "signed integer overflow: 50000 * 50304", "index_in_int");
    stopped("bug: stack", "AddressSanitizer", "large_frame");
    const Finished clean = run_hidden("bug: none");
    INFO(clean.err);
    CHECK(clean.exit_code == 0);
}
#endif

#ifdef ANVIL_MSAN
// Undefined values may be moved about; what is found is a decision made with one.
template <bool kAll>
__global__ void decide_by_shared(float* out, const float* inp) {
    SMEM_STATIC(float, s, [kThreads]);
    if (kAll || threadIdx.x < 100) s[threadIdx.x] = inp[0];
    __syncthreads();
    if (s[threadIdx.x] > 0) out[threadIdx.x] = 1;
}
__global__ void decide_by_global(float* out, const float* inp) {
    if (inp[threadIdx.x] > 0) out[threadIdx.x] = 1;
}
template <bool kBarrier>
__global__ void decide_after_write(float* out, const float* inp) {
    SMEM_STATIC(float, s, [kThreads]);
    s[threadIdx.x] = inp[0];
    if constexpr (kBarrier) __syncthreads();
    if (s[kThreads - 1 - threadIdx.x] > 0) out[threadIdx.x] = 1;
}
template <bool kWait>
__global__ void decide_by_copy(float* out, const float* inp) {
    SMEM_STATIC(float, s, [4]);
    cp_async16(s, inp, true);
    cp_async_commit();
    if constexpr (kWait) cp_async_wait<0>();
    if (s[3] > 0) out[0] = 1;
    cp_async_wait<0>();
}
__global__ void decide_by_shuffle(float* out, const float* inp) {
    if (warp_sum(inp[threadIdx.x]) > 0) out[threadIdx.x] = 1;
}
struct Written : Bare {
    explicit Written(size_t n) : Bare(n) {
        const Floats values(n, 1);
        cuda_check(cudaMemcpyAsync(data, values.data(), n * 4, cudaMemcpyHostToDevice, cuda.stream), "upload");
    }
};
TEST_CASE("bug: undefined shared memory", "[.bug]") {
    run_bug(decide_by_shared<false>, 1, 128, 0, Bare(128), Written(128));
}
TEST_CASE("bug: undefined global memory", "[.bug]") { run_bug(decide_by_global, 1, 128, 0, Bare(128), Bare(128)); }
TEST_CASE("bug: no barrier", "[.bug]") { run_bug(decide_after_write<false>, 1, 128, 0, Bare(128), Written(128)); }
TEST_CASE("bug: copy not waited for", "[.bug]") { run_bug(decide_by_copy<false>, 1, 1, 0, Bare(4), Written(4)); }
TEST_CASE("bug: undefined and shuffled", "[.bug]") { run_bug(decide_by_shuffle, 1, 32, 0, Bare(32), Bare(32)); }
TEST_CASE("bug: none", "[.bug]") {
    run_bug(decide_by_shared<true>, 1, 128, 0, Bare(128), Written(128));
    run_bug(decide_by_global, 1, 128, 0, Bare(128), Written(128));
    run_bug(decide_after_write<true>, 1, 128, 0, Bare(128), Written(128));
    run_bug(decide_by_copy<true>, 1, 1, 0, Bare(4), Written(4));
    run_bug(decide_by_shuffle, 1, 32, 0, Bare(32), Written(32));
}

TEST_CASE("MemorySanitizer watches the kernels", "[emulator]" ON_DEVICE) {
    const auto stopped = [](const std::string& name, const std::string& kernel) {
        const Finished result = run_hidden(name);
        INFO(name << ": exit code " << result.exit_code << "\n" << result.err);
        CHECK(result.exit_code != 0);
        CHECK(contains(result.err, "MemorySanitizer: use-of-uninitialized-value"));
        CHECK(contains(result.err, kernel));
    };
    stopped("bug: undefined shared memory", "decide_by_shared");
    stopped("bug: undefined global memory", "decide_by_global");
    stopped("bug: no barrier", "decide_after_write");
    stopped("bug: copy not waited for", "decide_by_copy");
    stopped("bug: undefined and shuffled", "decide_by_shuffle");
    const Finished clean = run_hidden("bug: none");
    INFO(clean.err);
    CHECK(clean.exit_code == 0);
}
#endif

}  // namespace emulator_test
#endif
