// The transpose on a GPU, element by element.
#include "llmc/cuda/transpose.cuh"
#include "test/cuda_testing.h"

TEMPLATE_TEST_CASE("transpose on a GPU puts every element in its place", "[transpose]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const auto [R, C] = GENERATE(table<int, int>(
        {{1, 1}, {1, 9}, {7, 1}, {64, 64}, {65, 130}, {3, 200}, {8, 8}, {136, 72}, {16, 200}, {200, 12}}));
    INFO(R << " x " << C);
    const Floats inp = rounded<T>(randn(size_t(R * C), 1));
    Floats want(inp.size());
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) want[size_t(c * R + r)] = inp[size_t(r * C + c)];
    Cuda cuda;
    const OnDevice<T> d_inp(cuda, inp);
    OnDevice<T> out(cuda, inp.size());
    transpose(cuda, out.data, d_inp.data, R, C);
    check_equal("out", out.get(), want);
}
