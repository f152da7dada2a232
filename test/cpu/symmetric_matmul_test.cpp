// Symmetric products: exact on whole numbers, with equal triangles.
#include "llmc/cpu/symmetric_matmul.h"
#include "test/op_testing.h"  // on_any_threads, whole_numbers
#include "test/testing.h"

// sum over terms, in double
static double dot_of(const Floats& x, int64_t R, int64_t K, Gram gram, int64_t i, int64_t j) {
    double sum = 0;
    for (int64_t k = 0; k < (gram == Gram::rows ? K : R); k++)
        sum += gram == Gram::rows ? double(x[size_t(i * K + k)]) * double(x[size_t(j * K + k)])
                                  : double(x[size_t(k * K + i)]) * double(x[size_t(k * K + j)]);
    return sum;
}

// A row of one, odd sizes, more than a strip of rows and more than a block of terms.
static auto shapes() {
    return GENERATE(
        table<int64_t, int64_t>({{1, 1}, {1, 7}, {7, 1}, {5, 33}, {70, 65}, {200, 9}, {9, 300}, {389, 270}}));
}

TEST_CASE("symmetric_matmul is exact on whole numbers", "[symmetric_matmul]") {
    const auto [R, K] = shapes();
    const Gram gram = GENERATE(Gram::rows, Gram::columns);
    const bool has_addend = GENERATE(true, false);
    const int64_t batch = R > 100 ? 1 : 3, n = gram == Gram::rows ? R : K;
    INFO(R << " x " << K << (gram == Gram::rows ? ", rows" : ", columns") << (has_addend ? ", addend" : ""));
    const Floats x = whole_numbers(batch * R * K, 1, 8);
    Floats addend = whole_numbers(batch * n * n, 2, 100);
    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < i; j++) addend[size_t((b * n + j) * n + i)] = addend[size_t((b * n + i) * n + j)];
    const auto got = on_any_threads([&, R = R, K = K](Cpu& cpu) {
        Guarded out(addend.size());
        symmetric_matmul(cpu, out.data(), x.data(), has_addend ? addend.data() : nullptr, batch, R, K, gram, -0.5f, 3);
        return std::vector<Floats>{out.get()};
    });
    Floats want;
    for (int64_t b = 0; b < batch; b++) {
        const Floats one(x.begin() + b * R * K, x.begin() + (b + 1) * R * K);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++)
                want.push_back(
                    float(-0.5 * dot_of(one, R, K, gram, i, j) + (has_addend ? 3 * double(addend[want.size()]) : 0)));
    }
    check_equal("out", got[0], want);
}

TEST_CASE("symmetric_matmul agrees with sums in double, and is symmetric to the bit", "[symmetric_matmul]") {
    const auto [R, K] = shapes();
    const Gram gram = GENERATE(Gram::rows, Gram::columns);
    INFO(R << " x " << K << (gram == Gram::rows ? ", rows" : ", columns"));
    const int64_t n = gram == Gram::rows ? R : K, terms = gram == Gram::rows ? K : R;
    const Floats x = randn(size_t(R * K), 1);
    const auto got = on_any_threads([&, R = R, K = K](Cpu& cpu) {
        Guarded out(size_t(n * n));
        symmetric_matmul(cpu, out.data(), x.data(), nullptr, 1, R, K, gram, 1, 0);
        return std::vector<Floats>{out.get()};
    });
    Floats want, transposed;
    std::vector<double> bounds, squares;
    for (int64_t i = 0; i < n; i++) squares.push_back(dot_of(x, R, K, gram, i, i));
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            want.push_back(float(dot_of(x, R, K, gram, i, j)));
            transposed.push_back(got[0][size_t(j * n + i)]);
            // Each of the terms' roundings is at most half a unit of the sum so far, which the two norms' product
            // bounds.
            bounds.push_back(double(terms) * kEpsF32 * std::sqrt(squares[size_t(i)] * squares[size_t(j)]));
        }
    check_within("out", got[0], want, bounds);
    CHECK(same_bits(got[0], transposed));
}

TEST_CASE("symmetric_matmul: a NaN spoils its row and column and no other", "[symmetric_matmul]") {
    Floats x = randn(7 * 20, 1);
    x[3 * 20 + 19] = std::nanf("");
    Cpu cpu(2);
    Guarded out(49);
    symmetric_matmul(cpu, out.data(), x.data(), nullptr, 1, 7, 20, Gram::rows, 1, 0);
    for (size_t i = 0; i < 49; i++) CHECK(std::isnan(out.get()[i]) == (i / 7 == 3 || i % 7 == 3));
}

// Small whole numbers: every product and sum is exact, and bf16's roundings are left: of the product, and of the sum.
TEST_CASE("symmetric_matmul of bf16 is exact on whole numbers but for its roundings", "[symmetric_matmul]") {
    const auto [R, K] = shapes();
    const Gram gram = GENERATE(Gram::rows, Gram::columns);
    const int64_t n = gram == Gram::rows ? R : K;
    INFO(R << " x " << K << (gram == Gram::rows ? ", rows" : ", columns"));
    const Floats x = whole_numbers(R * K, 1, 8);
    Floats addend = whole_numbers(n * n, 2, 100), product, scaled;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            if (j > i) addend[size_t(i * n + j)] = addend[size_t(j * n + i)] = float((i + 2 * j) % 200 - 100);
            product.push_back(float(dot_of(x, R, K, gram, i, j)));
        }
    for (size_t i = 0; i < product.size(); i++) scaled.push_back(float(-0.5 * product[i] + 3 * double(addend[i])));
    const auto got = on_any_threads([&, R = R, K = K](Cpu& cpu) {
        Guarded<bf16> X(x), added(addend), out(product.size());
        Guarded<float> sums(product.size());
        symmetric_matmul(cpu, out.data(), X.data(), nullptr, 1, R, K, gram, 1, 0);
        symmetric_matmul(cpu, sums.data(), X.data(), added, 1, R, K, gram, -0.5f, 3);
        return std::vector{out.get(), sums.get()};
    });
    check_equal("out", got[0], rounded<bf16>(product));
    check_equal("sums", got[1], scaled);
}
