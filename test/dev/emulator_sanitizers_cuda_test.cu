// The sanitizers detect errors of kernels on the emulator, and report no others.
#include "test/dev/emulator_testing.h"
#ifdef ANVIL_EMULATED
#ifdef ANVIL_MSAN
#include <sanitizer/msan_interface.h>
#include <iostream>
#endif

namespace emulator_cases {

using namespace emulator_test;

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

TEST_CASE("AddressSanitizer and UndefinedBehaviorSanitizer watch the kernels", "[emulator_sanitizers]" ON_DEVICE) {
    const auto stopped = [](const std::string& name, const std::string& report, const std::string& kernel) {
        const Finished result = run_hidden(name);
        INFO(name << ": exit code " << result.exit_code << "\n" << result.err);
        CHECK(result.exit_code != 0);
        CHECK(contains(result.err, report));
        CHECK(contains(result.err, kernel));
        CHECK(contains(result.err, "emulator_sanitizers_cuda_test.cu:"));
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
__attribute__((noinline)) void mark_the_stack() {
    char marked[16 << 10];
    __msan_poison(marked, sizeof marked);
    asm volatile("" ::"r"(marked) : "memory");
}
// As the standard library does, which is compiled without the sanitizer.
void write_on_a_marked_stack() {
    mark_the_stack();
    std::cout << size_t(93) << std::endl;
}
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
    write_on_a_marked_stack();
}
TEST_CASE("bug: none, and no kernel", "[.bug]") { write_on_a_marked_stack(); }

TEST_CASE("MemorySanitizer watches the kernels", "[emulator_sanitizers]" ON_DEVICE) {
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
    for (const char* name : {"bug: none", "bug: none, and no kernel"}) {
        const Finished clean = run_hidden(name);
        INFO(name << ": " << clean.err);
        CHECK(clean.exit_code == 0);
    }
}
#endif

// ---- what an error leaves behind -----------------------------------------------------------------------------------
// Of a launch that an error ends the frames stay on the fibers' stacks, and AddressSanitizer's guards around their
// arrays with them. Whoever runs there next must not meet these, not even after a launch of fewer threads.
inline constexpr int kDeep = 2048;  // floats: deeper than what a fiber that came to its end leaves
template <bool kAll>
__global__ void barrier_from_deep_down(float* out, const float*) {
    volatile float a[kDeep], b[kDeep];
    a[threadIdx.x] = 1;
    b[kDeep - 1 - threadIdx.x] = 1;
    if (kAll || threadIdx.x > 0) __syncthreads();
    out[threadIdx.x] = a[threadIdx.x] + b[kDeep - 1 - threadIdx.x];
}
__global__ void fill_an_array(float* out, const float*) {
    volatile float a[3 * kDeep];
    for (int i = 0; i < 3 * kDeep; i++) a[i] = float(i);
    out[threadIdx.x] = a[2 * kDeep + threadIdx.x];
}
TEST_CASE("launches after one that failed", "[.bug]") {
    Trial trial(1024);
    CHECK(trial.run(barrier_from_deep_down<false>, 1, 1024).error != "");
    CHECK(trial.run(barrier_from_deep_down<true>, 1, 32).error == "");
    CHECK(trial.run(fill_an_array, 1, 1024).error == "");
    CHECK(trial.out.get()[1023] == 2 * kDeep + 1023);
}
TEST_CASE("what an error left on the stacks stops no later launch", "[emulator_sanitizers]" ON_DEVICE) {
    const Finished result = run_hidden("launches after one that failed");
    INFO(result.out << result.err);
    CHECK(result.exit_code == 0);
}

}  // namespace emulator_cases
#endif
