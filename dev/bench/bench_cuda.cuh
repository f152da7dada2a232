/*
What bench.h needs to time a GPU: random data made on it, and launches between CUDA events. Before each launch the L2
cache is filled with other data by reading, not writing: lines that it still had to write back would slow down the
launch that follows.
*/
#pragma once
#include <cmath>
#include <string>
#include <utility>
#include <vector>
#include "llmc/cuda/cublaslt.h"     // CublasLt, MatmulCall
#include "llmc/cuda/cuda_device.h"  // Cuda, cuda_check
#include "llmc/cuda/device.cuh"     // launch, load16

using Device = Cuda;

// Each has 32768 tokens: enough rows for every multiprocessor of the largest GPUs.
inline constexpr BenchShape kShapes[] = {
    {"small", 512, 64, 128, 2, 65, 128, 4, gpt2_params(4, 128, 128, 64)},
    {"124M", 32, 1024, 768, 12, 50257, 50304, 12, gpt2_params(12, 768, 50304, 1024)},
    {"1558M", 32, 1024, 1600, 25, 50257, 50304, 48, gpt2_params(48, 1600, 50304, 1024)},
    {"d24", 16, 2048, 1536, 12, 32768, 32768, 24, gpt2_params(24, 1536, 32768, 2048)},
};

inline constexpr double kExpFlops = 1;  // one instruction

template <class T>
struct Values {
    Cuda& cuda;
    int64_t n;
    T* memory;

    Values(Cuda& cuda, int64_t n) : cuda(cuda), n(n), memory(static_cast<T*>(cuda.allocate(size_t(n) * sizeof(T)))) {}
    Values(Values&& other) : cuda(other.cuda), n(other.n), memory(std::exchange(other.memory, nullptr)) {}
    Values& operator=(Values&&) = delete;
    ~Values() {
        if (memory) cuda.release(memory, size_t(n) * sizeof(T));
    }
    T* data() { return memory; }
    const T* data() const { return memory; }
};

// splitmix64, as in llmc/base/rng.h, one number an element: [-scale, scale)
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
Values<T> random_values(Cuda& cuda, int64_t n, float scale) {
    static uint64_t seed = 0;
    Values<T> values(cuda, n);
    launch(cuda, "random", random_kernel<T>, unsigned(ceil_div(n, 256)), 256, 0, values.data(), scale, seed, n);
    seed += uint64_t(n);
    return values;
}

template <class T>
Values<T> values_of(Cuda& cuda, const std::vector<T>& values) {
    Values<T> copy(cuda, int64_t(values.size()));
    copy_to_device(cuda, copy.data(), values.data(), copy.n);
    return copy;
}

inline std::string device_text(Cuda& cuda) { return cuda.name; }

// Reads all of `data`; the sum of random bits is never what would be stored.
__global__ void __launch_bounds__(256) flush_kernel(int* sink, const int* data, int64_t n) {
    int bits = 0;
    const int64_t step = int64_t(gridDim.x) * blockDim.x * Pack<int>::size;
    for (int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * Pack<int>::size; i < n; i += step) {
        const Pack<int> pack = load16(data + i);
        for (int k = 0; k < pack.size; k++) bits |= pack[k];
    }
    if (bits == 1) *sink = bits;
}

// Five warm-ups, then fifty launches; fewer if they take longer than a second, but five. Everything is queued behind
// the flush, so that no launch waits for the host.
class Stopwatch {
public:
    bool smoke;

    Stopwatch(Cuda& cuda, bool smoke)
        : smoke(smoke),
          cuda_(cuda),
          flush_n_(smoke ? 1 << 10 : std::max<int64_t>(64 << 20, int64_t(cuda.l2_bytes))),
          flush_(cuda, flush_n_) {
        for (auto& [begin, end] : events_) {
            cuda_check(cudaEventCreate(&begin), "creating an event");
            cuda_check(cudaEventCreate(&end), "creating an event");
        }
    }
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;
    ~Stopwatch() {
        for (auto& [begin, end] : events_) cudaEventDestroy(begin), cudaEventDestroy(end);
    }

    template <class F>
    Timing time(F&& f) {
        for (int i = 0; i < (smoke ? 1 : 5); i++) f();
        const double estimate = seconds_of(f, 1)[0];
        const int runs = smoke ? 2 : int(std::min(double(kMostRuns), std::max(5., 1 / estimate)));
        return timing_of(seconds_of(f, runs));
    }

private:
    static constexpr int kMostRuns = 50;

    template <class F>
    std::vector<double> seconds_of(F& f, int runs) {
        for (int i = 0; i < runs; i++) {
            launch(cuda_, "flush", flush_kernel, unsigned(cuda_.num_sms) * 8, 256, 0, flush_.data(), flush_.data(),
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

    Cuda& cuda_;
    int64_t flush_n_;
    Values<int> flush_;  // as allocated: all bits set
    std::pair<cudaEvent_t, cudaEvent_t> events_[kMostRuns];
};

// A copy that reads and writes `bytes` in all.
struct CopyOf {
    Values<float> from, to;

    CopyOf(Cuda& cuda, double bytes) : from(random_values<float>(cuda, int64_t(bytes / 8), 1)), to(cuda, from.n) {}
    void operator()() {
        cuda_check(cudaMemcpyAsync(to.data(), from.data(), size_t(from.n) * sizeof(float), cudaMemcpyDeviceToDevice,
                                   to.cuda.stream),
                   "copying %ld floats on the GPU", long(from.n));
    }
};

// What a memory-bound op is held against: as many bytes copied, those beyond 4 GiB at the same rate as the first.
inline constexpr bool kHasCopyRival = true;
inline Timing copy_time(Cuda& cuda, Stopwatch& stopwatch, double bytes) {
    const double copied = std::min(bytes, 4. * (1 << 30)), more = bytes / copied;
    const Timing timing = stopwatch.time(CopyOf(cuda, copied));
    return {more * timing.median, more * timing.fastest, more * timing.p90, timing.runs};
}

// bytes/s, read and written, of a large copy
#define kCopyText "a copy of 1 GiB"
inline double copy_peak(Cuda& cuda, Stopwatch& stopwatch) {
    const double bytes = stopwatch.smoke ? 2 << 10 : 2. * (1 << 30);
    return bytes / stopwatch.time(CopyOf(cuda, bytes)).median;
}

// FLOP/s of a large product. Of random numbers: on zeros a GPU draws less power and runs faster.
#define kComputeText "a product of 8192 x 8192 matrices by cuBLASLt"
inline double compute_peak(Cuda& cuda, Stopwatch& stopwatch, bool fp32) {
    const int64_t n = stopwatch.smoke ? 32 : 8192;
    const auto seconds = [&](auto element, DType dtype) {
        using T = decltype(element);
        const Values<T> a = random_values<T>(cuda, n * n, 1), b = random_values<T>(cuda, n * n, 1);
        Values<T> out(cuda, n * n);
        const MatmulCall call{.m = n, .n = n, .k = n, .transpose_b = true, .a = dtype, .b = dtype, .out = dtype};
        return stopwatch.time([&] { cuda.cublaslt().run(cuda, call, out.data(), a.data(), b.data()); }).median;
    };
    return 2. * double(n) * double(n) * double(n) /
           (fp32 ? seconds(float(), DType::f32) : seconds(bf16(), DType::bf16));
}
