// Speed of the hash of the weights: one read, and ten operations per eight bytes, two of them 64-bit multiplications.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/weight_hash.cuh"
#else
#include "llmc/cpu/weight_hash.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const auto x = bench.random<T>(s.num_params);
    auto sum = values_of(bench.device, std::vector<uint64_t>(1));
    const double bytes = double(sizeof(T)) * double(s.num_params);
    bench.run("add_hash", s, bytes, 10 * bytes / 8,
              [&] { add_hash(bench.device, sum.data(), x.data(), s.num_params, 0); });
}

BENCHMARK("weight_hash", Bound::memory, measure)
