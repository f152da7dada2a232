// The symmetric product on a GPU: exact on whole numbers, symmetric to the bit, and against the CPU's.
#include "llmc/cuda/symmetric_matmul.cuh"
#include "llmc/cpu/symmetric_matmul.h"
#include "test/cuda_testing.h"  // OnDevice, rounded, twice_the_same

// Part of a tile, odd numbers of packs; several tiles, the last one of 8 rows; several steps of terms with a rest of 8.
template <class T>
std::tuple<int64_t, int64_t, int64_t> symmetric_shape() {
    return GENERATE(table<int64_t, int64_t, int64_t>(
        {{1, 8, 8}, {2, 8, 72}, {2, 72, 8}, {1, 64, 64}, {2, 128, 200}, {1, 264, 136}, {1, 136, 264}}));
}

static void make_symmetric(Floats& x, int64_t n) {
    for (int64_t b = 0; b < int64_t(x.size()) / (n * n); b++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < i; j++) x[size_t((b * n + j) * n + i)] = x[size_t((b * n + i) * n + j)];
}

// Small whole numbers: every product and sum is exact in f32, in any order, and one rounding to T is left.
TEMPLATE_TEST_CASE("symmetric_matmul on a GPU is exact on whole numbers", "[symmetric_matmul]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const auto [batch, R, K] = symmetric_shape<T>();
    const Gram gram = GENERATE(Gram::rows, Gram::columns);
    const bool has_addend = GENERATE(true, false);
    const int64_t n = gram == Gram::rows ? R : K;
    INFO(batch << " x " << R << " x " << K << (gram == Gram::rows ? ", rows" : ", columns")
               << (has_addend ? ", addend" : ""));
    const Floats x = whole_numbers(batch * R * K, 1, 8);
    Floats addend = whole_numbers(batch * n * n, 2, 100), want(addend.size());
    make_symmetric(addend, n);
    Cpu cpu;
    symmetric_matmul(cpu, want.data(), x.data(), has_addend ? addend.data() : nullptr, batch, R, K, gram, -0.5f, 3);

    Cuda cuda;
    const OnDevice<T> d_x(cuda, x), d_addend(cuda, addend);
    const auto got = twice_the_same([&] {
        OnDevice<T> d_out(cuda, addend.size());
        symmetric_matmul(cuda, d_out.data, d_x.data, has_addend ? d_addend.data : nullptr, batch, R, K, gram, -0.5f, 3);
        return std::vector<Floats>{d_out.get()};
    });
    check_equal("out", got[0], rounded<T>(want));
}

TEMPLATE_TEST_CASE("symmetric_matmul on a GPU agrees with the CPU, to the bit with its transpose",
                   "[symmetric_matmul]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const auto [batch, R, K] = symmetric_shape<T>();
    const Gram gram = GENERATE(Gram::rows, Gram::columns);
    const int64_t n = gram == Gram::rows ? R : K, terms = gram == Gram::rows ? K : R;
    INFO(batch << " x " << R << " x " << K << (gram == Gram::rows ? ", rows" : ", columns"));
    const Floats x = rounded<T>(randn(size_t(batch * R * K), 1));
    Floats addend = rounded<T>(randn(size_t(batch * n * n), 2)), products(addend.size()), want(addend.size());
    make_symmetric(addend, n);
    Cpu cpu;
    symmetric_matmul(cpu, products.data(), x.data(), nullptr, batch, R, K, gram, 1, 0);
    symmetric_matmul(cpu, want.data(), x.data(), addend.data(), batch, R, K, gram, 0.7f, -1.3f);

    Cuda cuda;
    const OnDevice<T> d_x(cuda, x), d_addend(cuda, addend);
    const auto got = twice_the_same([&] {
        OnDevice<T> d_out(cuda, addend.size());
        symmetric_matmul(cuda, d_out.data, d_x.data, d_addend.data, batch, R, K, gram, 0.7f, -1.3f);
        return std::vector<Floats>{d_out.get()};
    });
    // Two orders of a sum of `terms` numbers, half a unit each of what the two vectors' norms bound; a few roundings of
    // the scaled terms, one of the result.
    std::vector<double> bounds;
    Floats transposed;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) {
                const auto at = [&](int64_t r, int64_t c) { return size_t((b * n + r) * n + c); };
                const double norms = std::sqrt(double(products[at(i, i)]) * double(products[at(j, j)]));
                transposed.push_back(got[0][at(j, i)]);
                bounds.push_back(kEpsF32 * (double(terms) * norms + 4 * (norms + 2 * std::fabs(addend[at(i, j)]))) +
                                 (std::is_same_v<T, bf16> ? kEpsBf16 / 2 * std::fabs(want[at(i, j)]) : 0));
            }
    check_within("out", got[0], want, bounds);
    // Of a whole product by a library nobody promises it.
    if (std::is_same_v<T, bf16>) CHECK(same_bits(got[0], transposed));
}

TEST_CASE("symmetric_matmul on a GPU refuses rows that are not a multiple of 16 bytes",
          "[symmetric_matmul]" ON_DEVICE) {
    Cuda cuda;
    OnDevice<bf16> x(cuda, 128);
    const bf16* none = nullptr;
    CHECK(error_of([&] { symmetric_matmul(cuda, x.data, x.data, none, 1, 8, 12, Gram::columns, 1, 0); }) ==
          "2: symmetric_matmul of the columns of (8, 12): the sizes must be multiples of 8, 16 bytes");
    CHECK(error_of([&] { symmetric_matmul(cuda, x.data, x.data, none, 1, 12, 8, Gram::rows, 1, 0); }) ==
          "2: symmetric_matmul of the rows of (12, 8): the sizes must be multiples of 8, 16 bytes");
}
