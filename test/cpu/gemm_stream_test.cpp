// GEMMs with few rows, which read B in place: they have the bits of GEMMs that pack B, at every number of rows around
// the switch.
#include "llmc/cpu/gemm_stream.h"
#include <cmath>
#include <set>
#include <vector>
#include "llmc/cpu/gemm.h"
#include "test/cpu/software_tiles.h"  // UsedRegisters
#include "test/op_testing.h"          // on_any_threads, same_bits
#include "test/testing.h"

namespace {

template <class T>
std::vector<T> random_values(int64_t n, uint64_t seed) {
    std::vector<T> out;
    for (const float x : randn(size_t(n), seed)) out.push_back(rounded_value<T>(x));
    return out;
}

// b (K, N) and its transpose, (N, K): one is packed, the other read in place if a has few rows.
template <class T>
void check_same(int64_t M, int64_t N, int64_t K, bool with_bias) {
    INFO(sizeof(T) << " bytes, M=" << M << " N=" << N << " K=" << K << (with_bias ? ", bias" : ""));
    std::vector<T> a = random_values<T>(M * K, 1), b = random_values<T>(K * N, 2), b_t(b.size());
    const std::vector<T> offset = random_values<T>(N, 3);
    // A product that underflows to -0
    for (int64_t k = 0; k < K; k++)
        a[size_t(k)] = rounded_value<T>(-1e-30f), b[size_t(k * N)] = rounded_value<T>(1e-30f);
    // Where the second half of the terms takes back the first, roundings are all that is left to compare.
    const int64_t half = K / 4 * 2;
    for (int64_t k = 0; k < half; k++) {
        for (int64_t i = 1; i < M; i++) a[size_t(i * K + half + k)] = a[size_t(i * K + k)];
        for (int64_t j = 1; j < N; j++)
            b[size_t((half + k) * N + j)] = rounded_value<T>(-to_float(b[size_t(k * N + j)]));
    }
    for (int64_t k = 0; k < K; k++)
        for (int64_t j = 0; j < N; j++) b_t[size_t(j * K + k)] = b[size_t(k * N + j)];
    const T* bias = with_bias ? offset.data() : nullptr;
    const int64_t row = N + 3;  // of C, longer than its columns
    const auto results = on_any_threads([&](Cpu& cpu) {
        const auto product = [&](Strided<T> factor) {
            Guarded<T> c(Floats(size_t(M * row), 7.f));
            gemm(cpu, c.data(), row, M, N, K, Strided{a.data(), K, 1}, factor, bias, Write::set);
            return c.get();
        };
        return std::vector{product({b.data(), N, 1}), product({b_t.data(), 1, K})};
    });
    CHECK(same_bits(results[1], results[0]));
}

template <class V>
void check_transpose() {
    constexpr int n = sizeof(V) / 4;
    V registers[n];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) registers[i][j] = float(n * i + j);
    transpose_lanes(registers);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) CHECK(registers[i][j] == float(n * j + i));
}

}  // namespace

// Around 1, 2, 4 and 8 rows at a time, and where B is packed from then on; sixteen columns and 32; a register full of
// terms and blocks of 256 and 512.
TEST_CASE("few rows have the bits of many", "[gemm_stream]") {
    const UsedRegisters used(GENERATE(true, false));
    const bool with_bias = GENERATE(false, true);
    std::set<int64_t> rows = {1, 2, 3, 4, 5, 7, 8, kMostStreamedRows, kMostStreamedRows + 1};
    if (kMostStreamedRows > kStreamedRows) rows.insert({9, 12, 17});
    for (const int64_t M : rows)
        for (const int64_t N : {15, 17, 33, 40})
            for (const int64_t K : {2, 30, 34, 546}) {
                check_same<float>(M, N, K, with_bias);
                check_same<bf16>(M, N, K, with_bias);
            }
    for (const int64_t K : {1, 17, 515}) {  // an odd number of terms
        check_same<float>(3, 33, K, with_bias);
        check_same<bf16>(3, 33, K, with_bias);
    }
    for (const int64_t M : {1, 3, 5, 17})  // columns longer than a page
        for (const int64_t K : {1100, 2114}) {
            check_same<float>(M, 48, K, with_bias);
            check_same<bf16>(M, 48, K, with_bias);
        }
}

// Around the sixteen rows that a tile has; steps of 32 terms
TEST_CASE("few rows have the bits of many in tiles", "[gemm_stream]") {
    const UsedTiles used(software_tiles());
    const bool with_bias = GENERATE(false, true);
    for (const int64_t M : {1, 7, 8, 16, 17, int(kMostStreamedRows), int(kMostStreamedRows) + 1})
        for (const int64_t N : {15, 17, 33, 40})
            for (const int64_t K : {32, 34, 64, 544, 2080}) check_same<bf16>(M, N, K, with_bias);
}

TEST_CASE("registers are transposed", "[gemm_stream]") {
    check_transpose<FloatRegister>();
    // Eight lanes, as packing takes them on every processor
    float from[8][8], to[8][8];
    for (int i = 0; i < 64; i++) from[i / 8][i % 8] = float(i);
    transpose_8x8(to, sizeof to[0], from, sizeof from[0]);
    for (int i = 0; i < 64; i++) CHECK(to[i % 8][i / 8] == from[i / 8][i % 8]);
}

TEST_CASE("a NaN in a product of few rows makes its row NaN and no other", "[gemm_stream]") {
    const int64_t M = 7, N = 35, K = 50;
    std::vector<float> a = random_values<float>(M * K, 1);
    const std::vector<float> b = random_values<float>(K * N, 2);
    a[5 * K + 49] = std::nanf("");
    Cpu cpu(2);
    Guarded out(M * N);
    gemm(cpu, out.data(), N, M, N, K, Strided{a.data(), K, 1}, Strided{b.data(), 1, K}, nullptr, Write::set);
    const Floats got = out.get();
    for (int64_t i = 0; i < M * N; i++) CHECK(std::isnan(got[size_t(i)]) == (i / N == 5));
}
