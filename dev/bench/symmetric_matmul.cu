// Speed of a symmetric product that computes only a triangle, compared with the full product: by gemm on the CPU, by
// cuBLASLt on a GPU. FLOPs and percentages are those of the full product for both, so above 100 % the triangle is
// certainly faster.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/symmetric_matmul.cuh"
#else
#include "llmc/cpu/symmetric_matmul.h"
#endif

#if BENCH_CUDA
template <class T>
void whole_product(Cuda& cuda, T* out, const T* X, int64_t batch, int64_t R, int64_t K, Gram gram) {
    const bool rows = gram == Gram::rows;
    const int64_t n = rows ? R : K;
    cuda.cublaslt().run(cuda,
                        {.m = n,
                         .n = n,
                         .k = rows ? K : R,
                         .transpose_a = !rows,
                         .transpose_b = rows,
                         .a = kDType<T>,
                         .b = kDType<T>,
                         .out = kDType<T>,
                         .batch = batch},
                        out, X, X);
}
#else
template <class T>
void whole_product(Cpu& cpu, T* out, const T* X, int64_t batch, int64_t R, int64_t K, Gram gram) {
    const bool rows = gram == Gram::rows;
    const int64_t n = rows ? R : K;
    for (int64_t i = 0; i < batch; i++, out += n * n, X += R * K) {
        const Strided<T> left = rows ? Strided{X, K, 1} : Strided{X, 1, K};
        gemm(cpu, out, n, n, n, rows ? K : R, left, left.transposed(), nullptr, Write::set);
    }
}
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    struct Product {
        const char* name;
        int64_t batch, R, K;
        Gram gram;
    };
    const int64_t many = bench.flags.smoke ? 2 : 12;  // the emulator is slow
    for (const auto& [name, batch, R, K, gram] :
         {Product{"(C, C)", 1, s.C, s.C, Gram::rows}, Product{"12 (C, C)", many, s.C, s.C, Gram::rows},
          Product{"(C, 4C) rows", 1, s.C, 4 * s.C, Gram::rows},
          Product{"(4C, C) columns", 1, 4 * s.C, s.C, Gram::columns},
          Product{"12 (4C, C) columns", many, 4 * s.C, s.C, Gram::columns}}) {
        const int64_t n = gram == Gram::rows ? R : K;
        const auto X = bench.random<T>(batch * R * K);
        auto out = bench.random<T>(batch * n * n);
        const T* none = nullptr;
        const double flops = 2 * double(batch) * double(n) * double(R * K);
        const double bytes = sizeof(T) * double(batch) * double(R * K + n * n);
        const Timing whole =
            bench.stopwatch.time([&] { whole_product(bench.device, out.data(), X.data(), batch, R, K, gram); });
        const Timing triangle = bench.stopwatch.time(
            [&] { symmetric_matmul(bench.device, out.data(), X.data(), none, batch, R, K, gram, 1, 0); });
        bench.print(format("symmetric_matmul %s", name).c_str(), s, bytes, flops, triangle, "whole", whole);
    }
}

BENCHMARK("symmetric_matmul", Bound::compute, measure)
