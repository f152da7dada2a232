// Sums over rows on a GPU: exact on whole numbers for all shapes, and the same bits each time.
#include "llmc/cuda/reduce.cuh"
#include "test/cuda_testing.h"  // OnDevice, rounded, twice_the_same

TEMPLATE_TEST_CASE("add_column_sums is exact on whole numbers", "[reduce]" ON_DEVICE, float, bf16) {
    using T = TestType;
    // One row; fewer rows than warps; a row more than a block takes; columns that end inside a warp's.
    const auto [N, C] = GENERATE(table<int, int>({{1, 8}, {5, 264}, {128, 256}, {129, 512}, {1000, 40}}));
    INFO(N << " x " << C);
    const Floats inp = whole_numbers(N * C, 1, 100), start = whole_numbers(C, 2, 100);
    Floats want = start;
    for (int64_t i = 0; i < int64_t(N) * C; i++) want[size_t(i % C)] += inp[size_t(i)];
    Cuda cuda;
    const OnDevice<T> d_inp(cuda, inp);
    OnDevice<float> out(cuda, start);
    add_column_sums(cuda, out.data, d_inp.data, N, C);
    check_equal("sums", out.get(), want);
}

TEST_CASE("add_partials adds its rows, a stride apart, and nothing between them", "[reduce]" ON_DEVICE) {
    const auto [num, n] = GENERATE(table<int, int>({{1, 1}, {3, 33}, {17, 32}, {100, 70}}));
    const int64_t stride = n + 5;
    INFO(num << " partials of " << n);
    const Floats partials = whole_numbers(num * stride, 1, 1000), start = whole_numbers(n, 2, 1000);
    Floats want = start;
    for (int64_t i = 0; i < num; i++)
        for (int64_t c = 0; c < n; c++) want[size_t(c)] += partials[size_t(i * stride + c)];
    Cuda cuda;
    const OnDevice<float> d_partials(cuda, partials);
    OnDevice<float> out(cuda, start);
    add_partials(cuda, out.data, d_partials.data, num, stride, n);
    check_equal("sums", out.get(), want);
}

TEST_CASE("sums over rows give the same bits each time, within a rounding a term of the exact sum",
          "[reduce]" ON_DEVICE) {
    const int64_t N = 777, C = 136;
    const Floats inp = randn(size_t(N * C), 1), zeros(size_t(C), 0);
    Floats want(static_cast<size_t>(C));
    std::vector<double> bounds;
    for (int64_t c = 0; c < C; c++) {
        double sum = 0, sum_of_sizes = 0;
        for (int64_t n = 0; n < N; n++)
            sum += inp[size_t(n * C + c)], sum_of_sizes += std::fabs(inp[size_t(n * C + c)]);
        want[size_t(c)] = float(sum);
        // At most 16 rows a lane, 8 lanes, 7 blocks: so many roundings of half a unit, of no more than this.
        bounds.push_back(0.5 * (16 + 8 + 7) * kEpsF32 * sum_of_sizes);
    }
    Cuda cuda;
    const OnDevice<float> d_inp(cuda, inp);
    const auto got = twice_the_same([&] {
        OnDevice<float> out(cuda, zeros);
        add_column_sums(cuda, out.data, d_inp.data, N, C);
        return std::vector<Floats>{out.get()};
    });
    check_within("sums", got[0], want, bounds);
}

TEST_CASE("the largest of many magnitudes, NaN above all", "[reduce]" ON_DEVICE) {
    // One, a rest of a pack, more than a block reads at once.
    const int n = GENERATE(1, 6, 4099, 20000);
    const int at = GENERATE(0, 1) * (n - 1);
    Cuda cuda;
    for (const float most : {7.f, INFINITY, NAN}) {
        Floats magnitudes(size_t(n), 0.5f);
        magnitudes[size_t(at)] = most;
        const OnDevice<float> d_magnitudes(cuda, magnitudes);
        OnDevice<float> amax(cuda, 1);
        store_largest(cuda, amax.data, d_magnitudes.data, n);
        CHECK(same_bits(amax.get(), {most}));
    }
}
