// The emulator itself: every kind of mistake that it detects, and for each the correct kernel, for which it must report
// nothing. Races, streams and the sanitizers: emulator_*_cuda_test.cu.
#include "test/dev/emulator_testing.h"
#ifdef ANVIL_EMULATED

namespace emulator_cases {

using namespace emulator_test;

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
    CHECK(contains(trial.error, "__syncthreads at test/dev/" + at(kTwoBarriers)));
    CHECK(contains(trial.error, "__syncthreads at test/dev/" + at(kTwoBarriers + 2)));

    trial.run(early_return, 1, kThreads);
    CHECK(contains(trial.error, "kernel trial, block (0,0,0)"));
    CHECK(contains(trial.error, "no thread can go on:"));
    CHECK(contains(trial.error, "\n  100 threads (0..99) wait in __syncthreads at test/dev/" + at(kEarlyReturn)));
    CHECK(contains(trial.error, "\n  28 threads (100..127) have exited"));

    trial.run(shuffle_by_part_of_a_warp, 1, 96);
    CHECK(contains(trial.error, "\n  4 threads (32..35) wait in __shfl_xor_sync at test/dev/" + at(kPartialShuffle) +
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
    CHECK(contains(trial.error, "\n  16 threads (0..15) wait in mma.sync at test/dev/" + at(kHalfMma)));
    trial.run(ldmatrix_by_half_a_warp, 1, 32);
    CHECK(contains(trial.error, "\n  16 threads (0..15) wait in ldmatrix at test/dev/" + at(kHalfLdmatrix)));

    // The next launch knows nothing of it, and half a warp may shuffle among itself.
    trial.run(shuffle_by_half_a_warp, 1, 32);
    CHECK(trial.error == "");
    CHECK(trial.num_nan(16) == 0);
}

// Block i waits until `first` + i blocks have been here.
inline constexpr int kWaits = __LINE__ + 4;
template <int first>
__global__ void wait_for_blocks(float* out, const float*) {
    int* const counter = reinterpret_cast<int*>(out);
    wait_until(counter, int(blockIdx.x) + first);
    publish(counter, int(blockIdx.x) + 1);
}

TEST_CASE("a wait for a later block, or for less than what is needed, ends the launch", "[emulator]" ON_DEVICE) {
    const OtherOptions restore;
    emulator::options().schedule = emulator::Schedule::in_order;  // blocks, too
    const auto say = [](Trial::Kernel kernel) {
        Trial trial;
        trial.out.set(Floats(512, 0));
        return trial.run(kernel, 3, 1).error;
    };
    const std::string waits = "wait_until at test/dev/" + at(kWaits) + " waits for what no earlier block has left: ";
    CHECK(say(wait_for_blocks<0>) == "");
    CHECK(contains(say(wait_for_blocks<1>), "kernel trial, block (0,0,0), thread (0,0,0): " + waits));
    CHECK(contains(say(wait_for_blocks<1>), waits + "its counter is 0, expected 1"));
    CHECK(contains(say(wait_for_blocks<-1>), waits + "its counter is 0, expected -1"));
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
    CHECK(contains(trial.run(load_misaligned<float>, 1, 8).error, ": load16 at test/dev/emulator_cuda_test.cu:"));
    CHECK(contains(trial.run(store_misaligned<float>, 1, 8).error, ": store16 at test/dev/emulator_cuda_test.cu:"));
    CHECK(contains(trial.run(store_misaligned<float>, 1, 8).error, "is not a multiple of 16"));
    CHECK(contains(trial.run(ldmatrix_misaligned, 1, 32).error, ": ldmatrix at test/dev/emulator_cuda_test.cu:"));
    CHECK(contains(trial.run(copy_misaligned<1, 0>, 1, 1).error, ": cp.async to at test/dev/emulator_cuda_test.cu:"));
    CHECK(contains(trial.run(copy_misaligned<0, 2>, 1, 1).error, ": cp.async from at test/dev/emulator_cuda_test.cu:"));
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

}  // namespace emulator_cases
#endif
