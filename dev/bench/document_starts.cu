// Speed of finding document starts: four bytes per token in, four out. One token in about 1000 begins a document.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/document_starts.cuh"
#else
#include "llmc/cpu/document_starts.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const int64_t N = s.N();
    std::vector<int32_t> host_tokens;
    Rng rng(uint64_t(N), Stream::tests);
    for (int64_t i = 0; i < N; i++) host_tokens.push_back(int32_t(rng.below(1000)));
    const auto tokens = values_of(bench.device, host_tokens);
    auto starts = values_of(bench.device, host_tokens);
    bench.run("document_starts", s, 8. * double(N), double(N),
              [&] { document_starts(bench.device, starts.data(), tokens.data(), 0, s.B, s.T); });
}

BENCHMARK("document_starts", Bound::memory, measure)
