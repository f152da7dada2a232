/*
Measured peak rates of a GPU, for benchmarks (dev/bench), --profile and MFU. Launches are timed between CUDA events.
Before each, the L2 cache is filled with other data by reading, not writing: lines that had to be written back would
slow down the launch that follows.

  CudaStopwatch stopwatch(cuda, false);          true: a smoke test of tiny sizes and two runs; rates are meaningless
  copy_peak(cuda, stopwatch)                     bytes/s          compute_peak(cuda, stopwatch, fp32)   FLOP/s
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>
#include "llmc/base/profile.h"      // Timing, timing_of
#include "llmc/cuda/cublaslt.h"     // CublasLt
#include "llmc/cuda/cuda_device.h"  // Cuda, cuda_check
#include "llmc/cuda/device.cuh"     // launch, load16
#include "llmc/cuda/matmul_call.h"  // MatmulCall

template <class T>
struct CudaValues {
    Cuda& cuda;
    int64_t n;
    T* memory;

    CudaValues(Cuda& cuda, int64_t n)
        : cuda(cuda), n(n), memory(static_cast<T*>(cuda.allocate(size_t(n) * sizeof(T)))) {}
    CudaValues(CudaValues&& other) : cuda(other.cuda), n(other.n), memory(std::exchange(other.memory, nullptr)) {}
    CudaValues& operator=(CudaValues&&) = delete;
    ~CudaValues() {
        if (memory) cuda.release(memory, size_t(n) * sizeof(T));
    }
    T* data() { return memory; }
    const T* data() const { return memory; }
};

// splitmix64, as in llmc/base/rng.h, one number per element: [-scale, scale)
template <class T>
__global__ void __launch_bounds__(256) random_kernel(T* out, float scale, uint64_t seed, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint64_t z = (seed + uint64_t(i)) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    out[i] = from_float<T>(scale * (float(z >> 40) * 0x1p-23f - 1));
}

template <class T>
CudaValues<T> random_values(Cuda& cuda, int64_t n, float scale) {
    static uint64_t seed = 0;
    CudaValues<T> values(cuda, n);
    launch(cuda, "random", random_kernel<T>, unsigned(ceil_div(n, 256)), 256, 0, values.data(), scale, seed, n);
    seed += uint64_t(n);
    return values;
}

// Reads all of `data`. The store, which keeps the compiler from removing the reads, is never taken for our data.
template <class T>
__global__ void __launch_bounds__(256) flush_kernel(T* sink, const T* data, int64_t n) {
    T bits = 0;
    const int64_t step = int64_t(gridDim.x) * blockDim.x * Pack<T>::size;
    for (int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * Pack<T>::size; i < n; i += step) {
        const Pack<T> pack = load16(data + i);
        for (int k = 0; k < pack.size; k++) bits |= pack[k];
    }
    if (bits == 1) *sink = bits;
}

// Five warm-ups, then fifty launches, or fewer, but at least five, if they take longer than `limit_s`. Everything is
// queued after the flush, so that no launch waits for the host.
class CudaStopwatch {
public:
    bool smoke;

    CudaStopwatch(Cuda& cuda, bool smoke, double limit_s = 1)
        : smoke(smoke),
          limit_s_(limit_s),
          cuda_(cuda),
          flush_n_(smoke ? 1 << 10 : std::max<int64_t>(64 << 20, int64_t(cuda.l2_bytes))),
          flush_(cuda, flush_n_) {
        for (auto& [begin, end] : events_) {
            cuda_check(cudaEventCreate(&begin), "creating an event");
            cuda_check(cudaEventCreate(&end), "creating an event");
        }
    }
    CudaStopwatch(const CudaStopwatch&) = delete;
    CudaStopwatch& operator=(const CudaStopwatch&) = delete;
    ~CudaStopwatch() {
        for (auto& [begin, end] : events_) cudaEventDestroy(begin), cudaEventDestroy(end);
    }

    template <class F>
    Timing time(F&& f) {
        for (int i = 0; i < (smoke ? 1 : 5); i++) f();
        const double estimate = seconds_of(f, 1)[0];
        const int runs = smoke ? 2 : int(std::min(double(kMostRuns), std::max(5., limit_s_ / estimate)));
        return timing_of(seconds_of(f, runs));
    }

private:
    static constexpr int kMostRuns = 50;

    template <class F>
    std::vector<double> seconds_of(F& f, int runs) {
        for (int i = 0; i < runs; i++) {
            launch(cuda_, "flush", flush_kernel<int>, unsigned(cuda_.num_sms) * 8, 256, 0, flush_.data(), flush_.data(),
                   flush_n_);
            cuda_check(cudaEventRecord(events_[i].first, cuda_.stream), "recording an event");
            f();
            cuda_check(cudaEventRecord(events_[i].second, cuda_.stream), "recording an event");
        }
        cuda_.synchronize();
        std::vector<double> seconds;
        for (int i = 0; i < runs; i++) {
            float ms = 0;
            cuda_check(cudaEventElapsedTime(&ms, events_[i].first, events_[i].second), "reading an event");
            seconds.push_back(double(ms) * 1e-3);
        }
        return seconds;
    }

    double limit_s_;
    Cuda& cuda_;
    int64_t flush_n_;
    CudaValues<int> flush_;  // as allocated: all bits set
    std::pair<cudaEvent_t, cudaEvent_t> events_[kMostRuns];
};

// A copy that reads and writes `bytes` in all.
struct CopyOf {
    CudaValues<float> from, to;

    CopyOf(Cuda& cuda, double bytes) : from(random_values<float>(cuda, int64_t(bytes / 8), 1)), to(cuda, from.n) {}
    void operator()() {
        cuda_check(cudaMemcpyAsync(to.data(), from.data(), size_t(from.n) * sizeof(float), cudaMemcpyDeviceToDevice,
                                   to.cuda.stream),
                   "copying %ld floats on the GPU", long(from.n));
    }
};

// bytes/s, read and written, of a large copy
inline constexpr const char* kCudaCopyText = "a copy of 1 GiB";
inline double copy_peak(Cuda& cuda, CudaStopwatch& stopwatch) {
    const double bytes = stopwatch.smoke ? 2 << 10 : 2. * (1 << 30);
    return bytes / stopwatch.time(CopyOf(cuda, bytes)).median;
}

// FLOP/s of a large GEMM of random numbers: with zeros a GPU draws less power and runs faster.
inline constexpr const char* kCudaComputeText = "a product of 8192 x 8192 matrices by cuBLASLt";
inline double compute_peak(Cuda& cuda, CudaStopwatch& stopwatch, bool fp32, int64_t size = 8192) {
    const int64_t n = stopwatch.smoke ? 32 : size;
    const auto seconds = [&](auto element, DType dtype) {
        using T = decltype(element);
        const CudaValues<T> a = random_values<T>(cuda, n * n, 1), b = random_values<T>(cuda, n * n, 1);
        CudaValues<T> out(cuda, n * n);
        const MatmulCall call{.m = n, .n = n, .k = n, .transpose_b = true, .a = dtype, .b = dtype, .out = dtype};
        return stopwatch.time([&] { cuda.cublaslt().run(cuda, call, out.data(), a.data(), b.data()); }).median;
    };
    return 2. * double(n) * double(n) * double(n) /
           (fp32 ? seconds(float(), DType::f32) : seconds(bf16(), DType::bf16));
}
