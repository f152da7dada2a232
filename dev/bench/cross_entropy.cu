// Speed of softmax cross-entropy on a chunk of rows as in the head, with each softcap. The fused form works in place,
// so from the second run on it reads its own gradients, which is the same work.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
#include "llmc/cuda/cross_entropy.cuh"
#else
#include "llmc/cpu/cross_entropy.h"
#endif

template <class T>
void measure(Bench& bench, const BenchShape& s) {
    const int64_t N = bench.head_rows<T>(s);
    const auto targets = bench.tokens(N, s.V);
    auto logits = bench.random<T>(N * s.Vp, 4);
    auto losses = bench.random<float>(N);
    struct Case {
        const char* name;
        Softcap::Kind kind;
    };
    for (const Case& c :
         {Case{"", Softcap::Kind::none}, Case{", tanh", Softcap::Kind::tanh}, Case{", isru", Softcap::Kind::isru}}) {
        const Softcap cap{c.kind, 15};
        bench.run(format("cross_entropy_forward%s", c.name).c_str(), s,
                  cross_entropy_forward_cost<T>(N, s.V, cap, kExpFlops), [&] {
                      cross_entropy_forward(bench.device, losses.data(), logits.data(), targets.data(), N, s.V, s.Vp,
                                            cap);
                  });
        bench.run(format("cross_entropy_forward_backward%s", c.name).c_str(), s,
                  cross_entropy_forward_backward_cost<T>(N, s.V, s.Vp, cap, kExpFlops), [&] {
                      cross_entropy_forward_backward(bench.device, losses.data(), logits.data(), targets.data(),
                                                     1.f / float(N), N, s.V, s.Vp, cap);
                  });
    }
}

BENCHMARK("cross_entropy", Bound::memory, measure)
