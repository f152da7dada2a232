// Speed of five Newton-Schulz iterations on the matrices of a layer. Each has two lines: the FLOPs of full products,
// and those of the triangles that symmetric products need. On a GPU in bf16, Anvil's kernel for triangles is compared
// with full products by cuBLASLt.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/newton_schulz.cuh"
#else
#include "llmc/cpu/newton_schulz.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    struct Matrices {
        const char* name;
        int64_t batch, R, K;
    };
    const int64_t many = bench.flags.smoke ? 1 : 4;  // the emulator is slow
    for (const auto& [name, batch, R, K] :
         {Matrices{"(C, C)", 1, s.C, s.C}, Matrices{"4 (C, C)", many, s.C, s.C}, Matrices{"(4C, C)", 1, 4 * s.C, s.C},
          Matrices{"(C, 4C)", 1, s.C, 4 * s.C}}) {
        NewtonSchulzOptions options = NewtonSchulzOptions::polar_express();
        const double n = double(std::min(R, K)), m = double(std::max(R, K)), iterations = options.iterations;
        // Of norm 0.5 or less; what the runs before left is as good: its singular values are about 1 and stay so.
        auto X = bench.random<T>(batch * R * K, 0.5f / std::sqrt(float(R * K)));
        const auto run = [&] { newton_schulz(bench.device, X.data(), batch, R, K, options); };
        const OpCost triangle = newton_schulz_cost<T>(batch, R, K, options.iterations);
        const double whole_flops = double(batch) * iterations * (4 * n * n * m + 2 * n * n * n);
        const std::string what = format("newton_schulz %s", name);
        const auto print = [&](const Timing& timing, auto... rival) {
            bench.print((what + ", FLOPs whole").c_str(), s, triangle.bytes, whole_flops, timing, rival...);
            bench.print((what + ", triangle").c_str(), s, triangle.bytes, triangle.flops, timing, rival...);
        };
        if constexpr (BENCH_CUDA && sizeof(T) < sizeof(float)) {
            options.products = SymmetricProducts::whole;
            const Timing whole = bench.stopwatch.time(run);
            options.products = SymmetricProducts::triangle;
            print(bench.stopwatch.time(run), "whole", whole);
        } else {
            print(bench.stopwatch.time(run));
        }
    }
}

BENCHMARK("newton_schulz", Bound::compute, measure)
