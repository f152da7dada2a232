/*
Helpers of the tests of CUDA kernels. Each test is compiled twice: with g++ for the emulator (`make test`, tag
[emulated]) and with nvcc for a GPU (`make test-gpu`, tag [gpu]). Each kernel is compared with the CPU function of the
same name.

  Cuda cuda;
  OnDevice<T> inp(cuda, values), out(cuda, n);      out starts as NaN, with guard zones around it
  gelu_forward(cuda, out.data, inp.data, n);
  check_close("out", out.get(), want, eps_of<T>());  want: the CPU's result for rounded<T>(values)
*/
#pragma once
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>
#ifdef ANVIL_EMULATED
#include "dev/emulator/sanitizers.h"  // ANVIL_ASAN, ANVIL_MSAN
#endif
#include "llmc/cpu/device.h"        // Cpu
#include "llmc/cuda/cuda_device.h"  // Cuda
#include "llmc/cuda/device.cuh"     // bf16, to_float
#include "test/op_testing.h"        // Floats, check_within
#include "test/testing.h"

#ifdef ANVIL_EMULATED
#define ON_DEVICE "[emulated]"
#else
#define ON_DEVICE "[gpu]"
#endif

// Under a sanitizer, the race checker, qemu or on dev/ptx, tests take ten times as long, and repetitions would find
// nothing new. They run only in `make test` and on a GPU.
#if defined(ANVIL_ASAN) || defined(ANVIL_MSAN) || defined(ANVIL_RACE) || defined(ANVIL_QEMU)
inline const bool kWatched = true;
#else
inline const bool kWatched = std::getenv("ANVIL_PTX");  // dev/ptx executes the kernels
#endif

template <class T>
constexpr double eps_of() {
    return std::is_same_v<T, bf16> ? kEpsBf16 : kEpsF32;
}

// n elements of T on the device, between guard zones that must not change. Guards and new elements are NaN, which
// reveals reads beyond the ends or before the first write.
template <class T>
struct OnDevice {
    static constexpr size_t kGuard = 256 / sizeof(T);  // elements; 256 bytes keep `data` aligned
    Cuda& cuda;
    size_t n;
    T* memory;
    T* data;

    OnDevice(Cuda& cuda, size_t n)
        : cuda(cuda),
          n(n),
          memory(static_cast<T*>(cuda.allocate((n + 2 * kGuard) * sizeof(T)))),
          data(memory + kGuard) {}
    OnDevice(Cuda& cuda, const std::vector<T>& values) : OnDevice(cuda, values.size()) { set(values); }
    OnDevice(Cuda& cuda, const Floats& values)
        requires(!std::is_same_v<T, float>)
        : OnDevice(cuda, values.size()) {
        std::vector<T> converted;
        for (const float x : values) converted.push_back(rounded_value<T>(x));
        set(converted);
    }
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;
    ~OnDevice() { cuda.release(memory, (n + 2 * kGuard) * sizeof(T)); }

    void set(const std::vector<T>& values) {
        REQUIRE(values.size() == n);
        cuda_check(cudaMemcpyAsync(data, values.data(), n * sizeof(T), cudaMemcpyHostToDevice, cuda.stream), "upload");
        cuda.synchronize();
    }

    // The elements, after checking the guards.
    std::vector<T> values() {
        std::vector<T> all(n + 2 * kGuard);
        cuda_check(cudaMemcpyAsync(all.data(), memory, all.size() * sizeof(T), cudaMemcpyDeviceToHost, cuda.stream),
                   "download");
        cuda.synchronize();
        unsigned char untouched[kGuard * sizeof(T)];
        std::memset(untouched, 0xFF, sizeof untouched);
        if (std::memcmp(all.data(), untouched, sizeof untouched) != 0)
            FAIL("the kernel wrote before its buffer of " << n);
        if (std::memcmp(all.data() + kGuard + n, untouched, sizeof untouched) != 0)
            FAIL("the kernel wrote past its buffer of " << n);
        return std::vector<T>(all.begin() + kGuard, all.begin() + ptrdiff_t(kGuard + n));
    }
    Floats get() {
        Floats floats;
        for (const T x : values()) floats.push_back(to_float(x));
        return floats;
    }
};

// Runs op(), which returns a vector of outputs, twice, and checks that both results have the same bits.
template <class Op>
std::vector<Floats> twice_the_same(Op op) {
    const std::vector<Floats> first = op();
    if (kWatched) return first;
    const std::vector<Floats> second = op();
    REQUIRE(first.size() == second.size());
    for (size_t i = 0; i < first.size(); i++) {
        INFO("output " << i << ", second run against the first");
        CHECK(same_bits(first[i], second[i]));
    }
    return first;
}
