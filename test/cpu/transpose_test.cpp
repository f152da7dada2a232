// The transpose, element by element.
#include "llmc/cpu/transpose.h"
#include "test/op_testing.h"
#include "test/testing.h"

// Not inlined into the test case, where g++ 12's vectorizer fails.
__attribute__((noinline)) static Floats transposed(Cpu& cpu, const Floats& inp, int64_t R, int64_t C) {
    Guarded out(inp.size());
    transpose(cpu, out.data(), inp.data(), R, C);
    return out.get();
}

TEST_CASE("transpose puts every element in its place", "[transpose]") {
    const auto [R, C] = GENERATE(table<int, int>({{1, 1}, {1, 9}, {7, 1}, {64, 64}, {65, 130}, {3, 200}}));
    INFO(R << " x " << C);
    const Floats inp = randn(size_t(R * C), 1);
    const auto got = on_any_threads([&](Cpu& cpu) { return std::vector<Floats>{transposed(cpu, inp, R, C)}; });
    Floats want(inp.size());
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) want[size_t(c * R + r)] = inp[size_t(r * C + c)];
    check_equal("out", got[0], want);
}
