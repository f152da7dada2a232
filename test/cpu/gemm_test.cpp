// GEMMs in bf16: every element has the bits of the chain of fused multiply-adds that llmc/cpu/gemm_micro_kernel.h
// defines, on every processor; with tiles, of that in llmc/cpu/gemm_tiles.h. (matmul_test has float.)
#include "llmc/cpu/gemm.h"
#include <cmath>
#include "test/cpu/software_tiles.h"
#include "test/op_testing.h"  // on_any_threads, same_bits
#include "test/testing.h"

namespace {
using Halves = std::vector<bf16>;

Halves random_halves(int64_t n, uint64_t seed) {
    Halves out;
    for (const float x : randn(size_t(n), seed)) out.push_back(to_bf16(x));
    return out;
}

float element(const Strided<bf16>& m, int64_t row, int64_t col) { return to_float(*m.at(row, col).data); }

// Element (i, j) of the sums over k, from the definition
float chain(const Strided<bf16>& a, const Strided<bf16>& b, int64_t i, int64_t j, int64_t K, float start, bool add) {
    float total = start;
    for (int64_t k0 = 0; k0 < K; k0 += 512) {
        float sum = 0;
        for (int64_t k = k0; k < std::min(K, k0 + 512); k += 2) {
            if (k + 1 < K) sum = std::fma(element(a, i, k + 1), element(b, k + 1, j), sum);
            sum = std::fma(element(a, i, k), element(b, k, j), sum);
        }
        total = k0 == 0 && !add ? sum : total + sum;
    }
    return total;
}
// The same in tiles
float tile_chain(const Strided<bf16>& a, const Strided<bf16>& b, int64_t i, int64_t j, int64_t K, float start,
                 bool add) {
    float total = add ? start : 0;
    for (int64_t k0 = 0; k0 < K; k0 += 32) {
        float even = 0, odd = 0;
        for (int64_t k = k0; k < std::min(K, k0 + 32); k++) {
            float& sum = k % 2 == 0 ? even : odd;
            sum = std::fma(element(a, i, k), element(b, k, j), sum);
        }
        total += even + odd;
    }
    return total;
}

// c (M, N) from a (M, K) and b (K, N), each of which may be stored transposed.
template <class Chain>
void check_chains(Chain chain, int64_t M, int64_t N, int64_t K, bool transposed_a, bool transposed_b) {
    INFO("M=" << M << " N=" << N << " K=" << K << (transposed_a ? ", a transposed" : "")
              << (transposed_b ? ", b transposed" : ""));
    Halves a_data = random_halves(M * K, 1), b_data = random_halves(K * N, 2);
    const Halves bias = random_halves(N, 3);
    const Strided<bf16> a = transposed_a ? Strided{a_data.data(), 1, M} : Strided{a_data.data(), K, 1};
    const Strided<bf16> b = transposed_b ? Strided{b_data.data(), 1, K} : Strided{b_data.data(), N, 1};
    // Where the second half of the terms takes back the first, roundings are all there is: in bf16, too, every bit of
    // the result speaks of the order of sums.
    const int64_t half = K % 4 == 0 ? K / 2 : 0;
    for (int64_t k = 0; k < half; k++) {
        for (int64_t i = 0; i < M; i++)
            a_data[size_t(i * a.row + (half + k) * a.col)] = a_data[size_t(i * a.row + k * a.col)];
        for (int64_t j = 0; j < N; j++)
            b_data[size_t((half + k) * b.row + j * b.col)].bits = b_data[size_t(k * b.row + j * b.col)].bits ^ 0x8000;
    }
    const Floats start = randn(size_t(M * N), 4);
    Floats added(start.size()), rounded(start.size()), plain(start.size());
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < N; j++) {
            const size_t at = size_t(i * N + j);
            added[at] = chain(a, b, i, j, K, start[at], true);
            plain[at] = to_float(to_bf16(chain(a, b, i, j, K, 0, false)));
            rounded[at] = to_float(to_bf16(chain(a, b, i, j, K, 0, false) + to_float(bias[size_t(j)])));
        }
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded sums(start);
        gemm(cpu, sums.data(), N, M, N, K, a, b, nullptr, Write::add);
        const auto product = [&](const bf16* offset) {
            const bf16 mark{0x4321};
            Halves out(size_t(M * N) + 32, mark);  // 16 of guard on both sides
            gemm(cpu, out.data() + 16, N, M, N, K, a, b, offset, Write::set);
            Floats wide(start.size());
            for (size_t i = 0; i < wide.size(); i++) wide[i] = to_float(out[16 + i]);
            for (size_t i = 0; i < 16; i++)
                if (out[i].bits != mark.bits || out[out.size() - 1 - i].bits != mark.bits) FAIL("written outside");
            return wide;
        };
        return std::vector{sums.get(), product(bias.data()), product(nullptr)};
    });
    CHECK(same_bits(got[0], added));
    CHECK(same_bits(got[1], rounded));
    CHECK(same_bits(got[2], plain));
}
}  // namespace

// Around tiles of 12 rows and 32 columns, blocks of 512 terms, blocks of 8 x 16 and parts of 768 rows and 32 steps that
// are packed together, and pairs. Rows of 2048 terms are 4 KB.
TEST_CASE("a bf16 GEMM is one chain on every processor, as pairs and widened", "[gemm]") {
    const UsedRegisters used(GENERATE(true, false));
    const bool transposed_a = GENERATE(false, true), transposed_b = GENERATE(false, true);
    for (const int64_t M : {1, 11, 13, 25})
        for (const int64_t N : {1, 31, 33})
            for (const int64_t K : {1, 2, 17, 512, 513, 1200}) check_chains(chain, M, N, K, transposed_a, transposed_b);
    check_chains(chain, 13, 33, 4200, transposed_a, transposed_b);  // more than is packed at once
    check_chains(chain, 781, 40, 134, transposed_a, transposed_b);
    check_chains(chain, 25, 40, 2048, transposed_a, transposed_b);
    check_chains(chain, 50, 33, 35, transposed_a, transposed_b);
    check_chains(chain, 5, 2100, 18, transposed_a, transposed_b);
    check_chains(chain, 25, 790, 600, transposed_a, transposed_b);  // panels enough for each thread to pack its own
    check_chains(chain, 210, 790, 40, transposed_a, transposed_b);  // whose rows are rounded in parts
}

TEST_CASE("a transposed A of floats gives the same bits packed in one part or more", "[gemm]") {
    const int64_t l2_bytes = l2_cache_bytes();
    for (const int64_t M : {129, 140})
        for (const int64_t K : {1, 255, 600}) {
            const int64_t N = 4 * kNR + 6;
            const Floats a = randn(size_t(M * K), 1), b = randn(size_t(K * N), 2), start = randn(size_t(M * N), 3);
            const auto sums = [&](int64_t bytes) {
                l2_cache_bytes() = bytes;
                return on_any_threads([&](Cpu& cpu) {
                    Guarded c(start);
                    gemm(cpu, c.data(), N, M, N, K, Strided{a.data(), 1, M}, Strided{b.data(), N, 1}, nullptr,
                         Write::add);
                    return std::vector<Floats>{c.get()};
                })[0];
            };
            INFO("M=" << M << " K=" << K);
            CHECK(same_bits(sums(0), sums(1 << 30)));
        }
    l2_cache_bytes() = l2_bytes;
}

TEST_CASE("rows of A that are a multiple of 4 KB apart give the same bits", "[gemm]") {
    for (const int64_t M : {1, 13, 100})
        for (const int64_t N : {40, 70 * kNR}) {  // packed by all threads together, and by each for itself
            const int64_t K = 600, row = 1024;
            const Floats apart = randn(size_t(M * row), 1), b = randn(size_t(K * N), 2);
            Floats side_by_side;
            for (int64_t i = 0; i < M; i++)
                side_by_side.insert(side_by_side.end(), apart.data() + i * row, apart.data() + i * row + K);
            const auto product = [&](const Strided<float>& a) {
                return on_any_threads([&](Cpu& cpu) {
                    Floats c(size_t(M * N));
                    gemm(cpu, c.data(), N, M, N, K, a, Strided{b.data(), N, 1}, nullptr, Write::set);
                    return std::vector<Floats>{c};
                })[0];
            };
            INFO("M=" << M << " N=" << N);
            CHECK(same_bits(product({apart.data(), row, 1}), product({side_by_side.data(), K, 1})));
        }
}

TEST_CASE("a widened bf16 GEMM keeps subnormal numbers, which only vdpbf16ps takes for zero", "[gemm]") {
    const bool pairs = GENERATE(true, false);
    const UsedRegisters used(pairs);
#if defined(__AVX512BF16__)
    const bool flushes = pairs;
#else
    const bool flushes = false;
#endif
    const int64_t M = 30, N = 40, K = 6;
    const Halves a(size_t(M * K), to_bf16(1e-39f)), b(size_t(K * N), to_bf16(0x1p100f));
    Floats c(size_t(M * N));
    Cpu cpu(1);
    gemm(cpu, c.data(), N, M, N, K, Strided{a.data(), K, 1}, Strided{b.data(), N, 1}, nullptr, Write::set);
    for (const float x : c) CHECK((flushes ? x == 0 : x > 6e-9f && x < 9e-9f));
}

// Around tiles of 32 rows and halves of them, steps of 32 terms, and blocks of 256.
TEST_CASE("a bf16 GEMM in tiles is one chain", "[gemm]") {
    const UsedTiles software(software_tiles());
    if (!tile_kernel()) return;
    const bool transposed_a = GENERATE(false, true), transposed_b = GENERATE(false, true);
    for (const int64_t M : {1, 13, 16, 33, 49})
        for (const int64_t N : {1, 32, 33})
            for (const int64_t K : {1, 2, 32, 63, 257, 608})
                check_chains(tile_chain, M, N, K, transposed_a, transposed_b);
    check_chains(tile_chain, 35, 33, 2115, transposed_a, transposed_b);  // more than is packed at once
    check_chains(tile_chain, 14, 33, 2112, transposed_a, transposed_b);
    check_chains(tile_chain, 1100, 40, 34, transposed_a, transposed_b);  // more than a chunk
    check_chains(tile_chain, 64, 2100, 32, transposed_a, transposed_b);
}

TEST_CASE("a transposed A is packed for tiles with zeros beyond its rows and terms", "[gemm]") {
    const int64_t rows = 33, K = 31;
    const Halves a = random_halves(rows * K, 1);
    Halves to(size_t(48 * kTileBlockK), to_bf16(7.f));
    pack_a_columns(to.data(), Strided{a.data(), 1, rows}, rows, K);
    for (int64_t i = 0; i < 48; i++)
        for (int64_t k = 0; k < kTmmDepth; k++) {
            const float expected = i < rows && k < K ? to_float(a[size_t(k * rows + i)]) : 0;
            CHECK(to_float(to[size_t(i * kTileBlockK + k)]) == expected);
        }
}

TEST_CASE("a NaN in a bf16 GEMM makes its row NaN and no other", "[gemm]") {
    const UsedTiles used(GENERATE(TileKernel(nullptr), software_tiles()));
    const int64_t M = 14, N = 40, K = 301;
    Halves a = random_halves(M * K, 1), out(size_t(M * N));
    const Halves b = random_halves(K * N, 2);
    a[size_t(5 * K + 300)] = to_bf16(std::nanf(""));
    Cpu cpu(2);
    gemm(cpu, out.data(), N, M, N, K, Strided{a.data(), K, 1}, Strided{b.data(), N, 1}, nullptr, Write::set);
    for (int64_t i = 0; i < M * N; i++) CHECK(std::isnan(to_float(out[size_t(i)])) == (i / N == 5));
}
