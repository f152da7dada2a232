// Sums over rows: exact on whole numbers, on any number of threads, in both types.
#include "llmc/cpu/reduce.h"
#include "test/op_testing.h"  // check_rounds_once, check_equal, whole_numbers
#include "test/testing.h"

TEST_CASE("add_column_sums is exact on whole numbers", "[reduce]") {
    // One row; one chunk and a row of the next; columns that end inside of sixteen.
    const auto [N, C] = GENERATE(table<int64_t, int64_t>({{1, 1}, {5, 264}, {32, 16}, {33, 47}, {1000, 40}}));
    INFO(N << " x " << C);
    const Floats numbers = whole_numbers(N * C, 1, 100), start = whole_numbers(C, 2, 100);
    Floats want = start;
    for (int64_t i = 0; i < N * C; i++) want[size_t(i % C)] += numbers[size_t(i)];
    check_rounds_once([&, N = N, C = C]<class T>(Cpu& cpu) {
        Guarded<T> inp(numbers);
        Guarded out(start);
        add_column_sums(cpu, out, inp.data(), N, C);
        check_equal("sums", out.get(), want);
        return std::vector<Floats>{out.get()};
    });
}

TEST_CASE("add_column_sums in bf16 rounds nothing", "[reduce]") {
    const int64_t N = 77, C = 33;
    check_rounds_once([=]<class T>(Cpu& cpu) {
        const auto inp = bf16_randn<T>(N * C, 1);
        Guarded out(randn(size_t(C), 2));
        add_column_sums(cpu, out, inp.data(), N, C);
        return std::vector<Floats>{out.get()};
    });
}

TEST_CASE("add_partials adds its rows, a stride apart, and nothing between them", "[reduce]") {
    const auto [num, n] = GENERATE(table<int64_t, int64_t>({{1, 1}, {3, 33}, {17, 600}}));
    const int64_t stride = n + 5;
    INFO(num << " partials of " << n);
    const Floats partials = whole_numbers(num * stride, 1, 1000), start = whole_numbers(n, 2, 1000);
    Floats want = start;
    for (int64_t i = 0; i < num; i++)
        for (int64_t c = 0; c < n; c++) want[size_t(c)] += partials[size_t(i * stride + c)];
    const auto got = on_any_threads([&, num = num, n = n](Cpu& cpu) {
        Guarded out(start);
        add_partials(cpu, out, partials.data(), num, n, stride);
        return std::vector<Floats>{out.get()};
    });
    check_equal("sums", got[0], want);
}
