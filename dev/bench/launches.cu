/*
What a launch costs apart from its work, which the model of a step assumes unless `plan --calibrate` has these rows
(llmc/plan/calibration.h). All but the first are enqueued after copies that keep the GPU busy until the last launch is
in the queue, so that the GPU never waits for the host. Figures are per launch.

one alone        a kernel of one warp and one store between two events. It and the events' own time are in every row of
                 dev/bench. It is not what the kernel would add to a stream.
tiny kernels     256 of them in a row: start and gap together. Their ends and beginnings are as short as they can be.
short kernels    kernels that each convert what a copy would in 10 us, beside one launch that converts it all. The
                 difference is what each launch beyond the first costs: start and gap, and also the time in which the
                 last blocks of one kernel and the first ones of the next leave part of the GPU idle.
host's time      of the calls that enqueue, over their number, by the host's clock: launch(), and a GEMM by cuBLASLt,
                 whose algorithm is already chosen.

Start and gap are never told apart: that would need the times of single blocks. In a graph are the same kernels,
captured and replayed; the start of the graph itself is part of the row, divided by the number of its kernels.
*/
#include <chrono>
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/buffers.cuh"
#include "llmc/cuda/cuda_graph.h"
#include "llmc/cuda/matmul.cuh"
#endif

#if BENCH_CUDA

// Times what is enqueued after copies.
class AfterCopies {
public:
    explicit AfterCopies(Bench& bench)
        : bench_(bench), copy_(bench.device, bench.flags.smoke ? 1 << 10 : 2. * (1 << 30)) {
        cuda_check(cudaEventCreate(&begin_), "creating an event");
        cuda_check(cudaEventCreate(&end_), "creating an event");
    }
    AfterCopies(const AfterCopies&) = delete;
    AfterCopies& operator=(const AfterCopies&) = delete;
    ~AfterCopies() { cudaEventDestroy(begin_), cudaEventDestroy(end_); }

    struct Times {
        Timing gpu, host;  // divided by `launches`
    };
    template <class F>
    Times time(int launches, F&& enqueue) {
        const bool smoke = bench_.flags.smoke;
        for (int i = 0; i < (smoke ? 1 : 3); i++) once(enqueue);
        std::vector<double> gpu, host;
        for (int i = 0; i < (smoke ? 2 : 20); i++) {
            const auto [gpu_s, host_s] = once(enqueue);
            gpu.push_back(gpu_s / launches), host.push_back(host_s / launches);
        }
        return {timing_of(gpu), timing_of(host)};
    }

private:
    Bench& bench_;
    CopyOf copy_;
    int copies_ = 4;  // at most 3 ms on an H100
    cudaEvent_t begin_, end_;

    template <class F>
    std::pair<double, double> once(F& enqueue) {
        using Clock = std::chrono::steady_clock;
        for (;; copies_ *= 2) {
            // A stream takes about 1000 launches before the host has to wait.
            require(copies_ <= 256, "the host does not enqueue launches faster than the GPU runs them");
            for (int i = 0; i < copies_; i++) copy_();
            cuda_check(cudaEventRecord(begin_, bench_.device.stream), "recording an event");
            const Clock::time_point start = Clock::now();
            enqueue();
            const double host_s = std::chrono::duration<double>(Clock::now() - start).count();
            cuda_check(cudaEventRecord(end_, bench_.device.stream), "recording an event");
            const bool is_ahead = cudaEventQuery(begin_) == cudaErrorNotReady;
            cudaGetLastError();  // that it is not ready is no error
            bench_.device.synchronize();
            float ms = 0;
            cuda_check(cudaEventElapsedTime(&ms, begin_, end_), "reading an event");
            // The emulator runs a stream only when the host waits for it.
            if (is_ahead || bench_.flags.smoke) return {double(ms) * 1e-3, host_s};
        }
    }
};

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    if (&s != &kShapes[0] && !bench.flags.smoke) return;  // its sizes are its own
    Cuda& cuda = bench.device;
    const bool smoke = bench.flags.smoke;
    AfterCopies after_copies(bench);
    CudaGraph graph(cuda);

    auto word = bench.random<float>(8);
    const OpCost one_word{.bytes = sizeof(float), .flops = 1};
    const auto tiny = [&] {
        launch(cuda, "tiny", random_kernel<float>, 1, kWarp, 0, word.data(), 1.f, uint64_t(1), int64_t(1));
    };
    bench.print("launch, one alone", s, one_word, bench.stopwatch.time(tiny));

    const int num_tiny = smoke ? 4 : 256;
    const auto many_tiny = [&] {
        for (int i = 0; i < num_tiny; i++) tiny();
    };
    const auto in_stream = after_copies.time(num_tiny, many_tiny);
    bench.print("launch, tiny kernels", s, one_word, in_stream.gpu);
    graph.capture(many_tiny);
    const auto in_graph = after_copies.time(num_tiny, [&] { graph.replay(); });
    bench.print("launch, tiny kernels in a graph", s, one_word, in_graph.gpu);
    bench.print("launch, host's time for a kernel", s, one_word, in_stream.host);

    // Slices of both arrays begin at multiples of 16 bytes.
    const int num_short = smoke ? 4 : 65, beyond_first = num_short - 1;
    const int64_t n = smoke ? 64 : int64_t(bench.peak * 10e-6 / 6) / 64 * 64;
    const auto floats = bench.random<float>(num_short * n);
    auto halves = bench.random<bf16>(num_short * n);
    const OpCost one_short{.bytes = 6. * double(n) * num_short / beyond_first,
                           .flops = double(n) * num_short / beyond_first};
    const auto many_short = [&] {
        for (int i = 0; i < num_short; i++) cast(cuda, halves.data() + i * n, floats.data() + i * n, n);
    };
    const Timing at_once =
        after_copies.time(beyond_first, [&] { cast(cuda, halves.data(), floats.data(), num_short * n); }).gpu;
    bench.print("launch, short kernels", s, one_short, after_copies.time(beyond_first, many_short).gpu, "one launch",
                at_once);
    graph.capture(many_short);
    bench.print("launch, short kernels in a graph", s, one_short,
                after_copies.time(beyond_first, [&] { graph.replay(); }).gpu, "one launch", at_once);

    const int64_t size = smoke ? 16 : 128;
    const auto a = bench.random<T>(size * size), b = bench.random<T>(size * size);
    auto out = bench.random<T>(size * size);
    const T* no_bias = nullptr;
    const auto gemms = [&] {
        for (int i = 0; i < num_tiny; i++)
            matmul_forward(cuda, out.data(), a.data(), b.data(), no_bias, size, size, size);
    };
    bench.print("launch, host's time for a GEMM", s,
                OpCost{.bytes = 3. * double(sizeof(T)) * double(size * size), .flops = 2. * double(size * size * size)},
                after_copies.time(num_tiny, gemms).host);
}

#else

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    if (&s == &kShapes[0] || bench.flags.smoke)
        std::printf("launches                           not run: of a GPU only\n");
}

#endif

BENCHMARK("launches", Bound::memory, measure)
