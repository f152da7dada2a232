// AMX tiles: the software tiles against the manual's description, the processor's tiles against them, and the panels of
// attention. (gemm_test has GEMMs with tiles, bf16_model_test whole models.)
#include "llmc/cpu/amx.h"
#include <algorithm>
#include <cfloat>
#include <cstring>
#include "llmc/cpu/gemm.h"
#include "llmc/cpu/gemm_micro_kernel.h"  // multiply_panels
#include "test/cpu/software_tiles.h"
#include "test/op_testing.h"  // same_bits
#include "test/testing.h"

namespace {

// What tdpbf16ps makes of c (16, 16), a (16, 32) and pairs (16, 16 x 2), in registers of any number
template <class Tiles>
Floats multiplied(const Floats& c, const std::vector<bf16>& a, const std::vector<bf16>& pairs) {
    Floats sums = c;
    Tiles::prepare();
    Tiles::load(Tmm<3>{}, sums.data(), 64);
    Tiles::load(Tmm<5>{}, a.data(), 64);
    Tiles::load(Tmm<6>{}, pairs.data(), 64);
    Tiles::multiply(Tmm<3>{}, Tmm<5>{}, Tmm<6>{});
    Tiles::store(Tmm<3>{}, sums.data(), 64);
    return sums;
}

// One row and column: c + a . b
float one_sum(float c, const Floats& a, const Floats& b) {
    Floats sums(256, 0);
    std::vector<bf16> rows(512, bf16{}), pairs(512, bf16{});
    sums[16 * 2 + 3] = c;
    for (size_t k = 0; k < a.size(); k++) {
        rows[32 * 2 + k] = to_bf16(a[k]);
        pairs[32 * (k / 2) + 2 * 3 + k % 2] = to_bf16(b[k]);
    }
    return multiplied<SoftwareTiles>(sums, rows, pairs)[16 * 2 + 3];
}

}  // namespace

TEST_CASE("software tiles: even and odd terms have sums of their own", "[amx]") {
    CHECK(one_sum(1, {2, 3, 5, 7}, {1, 10, 100, 1000}) == 7533);
    // 1 + 2^-24 + 2^-24 in that order stays 1, and 2^-24 + 2^-24 by itself does not.
    CHECK(one_sum(0, {1, 0x1p-24f, 0x1p-24f}, {1, 1, 1}) == 1);
    CHECK(one_sum(0, {1, 0x1p-24f, 0, 0x1p-24f}, {1, 1, 1, 1}) == 1 + 0x1p-23f);
    // Nor does the sum so far have a say before the end.
    CHECK(one_sum(1, {0x1p-24f, 0x1p-24f}, {1, 1}) == 1 + 0x1p-23f);
    // Products are not rounded: (1 + 2^-7)^2 - (1 + 2^-6) = 2^-14.
    CHECK(one_sum(0, {-1 - 0x1p-6f, 0, 1 + 0x1p-7f}, {1, 0, 1 + 0x1p-7f}) == 0x1p-14f);
}

TEST_CASE("software tiles: numbers that are too small are zero wherever they appear", "[amx]") {
    const float tiny = FLT_MIN / 2;
    CHECK(one_sum(tiny, {}, {}) == 0);
    CHECK(one_sum(tiny, {FLT_MIN}, {1}) == FLT_MIN);
    CHECK(one_sum(0, {tiny}, {0x1p100f}) == 0);
    CHECK(one_sum(0, {0, 0x1p100f}, {0, tiny}) == 0);
    CHECK(one_sum(0, {FLT_MIN}, {0.5f}) == 0);
    CHECK(one_sum(0, {0, FLT_MIN}, {0, 0.5f}) == 0);
    CHECK(one_sum(0, {FLT_MIN, 0, FLT_MIN}, {0.5f, 0, 1}) == FLT_MIN);
    CHECK(one_sum(0, {0, FLT_MIN, 0, FLT_MIN}, {0, 0.5f, 0, 1}) == FLT_MIN);
    CHECK(one_sum(0, {1.5f * FLT_MIN, FLT_MIN}, {1, -1}) == 0);  // even + odd
    CHECK(one_sum(1.5f * FLT_MIN, {FLT_MIN, 0}, {-1, 0}) == 0);  // + the sum so far
    CHECK(one_sum(FLT_MIN, {FLT_MIN, 0}, {1, 0}) == 2 * FLT_MIN);
}

TEST_CASE("the processor's tiles do what the software's do", "[amx]") {
#if defined(__x86_64__)
    if (has_amx()) {
        for (uint64_t seed = 1; seed <= 20; seed++) {
            // Of every size, so that some are too small and some overflow.
            const float scale = seed <= 10 ? 1 : seed % 2 ? 0x1p-64f : 0x1p64f;
            const auto a = bf16_randn<bf16>(512, seed, scale), pairs = bf16_randn<bf16>(512, seed + 50, scale);
            const Floats c = randn(256, seed + 100, scale == 0x1p-64f ? FLT_MIN : scale);
            CHECK(same_bits(multiplied<AmxTiles>(c, a, pairs), multiplied<SoftwareTiles>(c, a, pairs)));
        }
        return;
    }
#endif
    WARN("no AMX here: its tiles are not compared with the software's");
}

// A as attention has it: rows that are read in place, with a guard of NaN after what is theirs, or pairs of them
// transposed.
TEST_CASE("panels are multiplied in tiles as by registers, but for the order of sums", "[amx]") {
    // Transposed: the pair of the next row follows, or the one after it.
    const int transposed = GENERATE(0, 1, 2);
    for (const int64_t M : {1, 15, 32, 48})
        for (const int64_t N : {7, 32, 64, 80})
            for (const int64_t K : {2, 30, 31, 32, 64, 80, 256}) {
                INFO("M=" << M << " N=" << N << " K=" << K << (transposed ? ", a transposed" : ""));
                const int64_t a_row = transposed ? 2 * transposed : K + K % 2 + 6, pair_row = a_row * (M + 5),
                              depth = K + K % 2;
                std::vector<bf16> a(size_t(transposed > 0 ? depth / 2 * pair_row : M * a_row), to_bf16(std::nanf("")));
                const auto values = bf16_randn<bf16>(M * depth, 1), b = bf16_randn<bf16>(K * N, 2);
                for (int64_t i = 0; i < M; i++)
                    for (int64_t k = 0; k < depth; k++)
                        a[size_t(transposed ? k / 2 * pair_row + a_row * i + k % 2 : i * a_row + k)] =
                            k < K ? values[size_t(i * depth + k)] : bf16{};
                const Strided<bf16> factor{a.data(), a_row, transposed ? pair_row / 2 : 1};
                Floats panels(size_t(packed_size<bf16>(K, N)));
                pack_b<bf16>(panels.data(), Strided{b.data(), N, 1}, K, N);
                const Floats start = randn(size_t(M * N), 3);
                for (const Write write : {Write::set, Write::add}) {
                    const auto product = [&](TileKernel tiles) {
                        Guarded out(write == Write::add ? start : Floats(start.size(), std::nanf("")));
                        multiply_panels(out.data(), N, M, N, K, factor, panels.data(), write, {}, tiles);
                        return out.get();
                    };
                    // Either way a term takes part in K / 2 + 2 roundings at most, of half a unit of what the
                    // absolute values of all terms add up to.
                    const Floats got = product(software_tiles()), want = product(nullptr);
                    std::vector<double> bounds;
                    for (int64_t i = 0; i < M; i++)
                        for (int64_t j = 0; j < N; j++) {
                            double sizes = write == Write::add ? std::fabs(start[size_t(i * N + j)]) : 0;
                            for (int64_t k = 0; k < K; k++)
                                sizes += std::fabs(double(to_float(values[size_t(i * depth + k)])) *
                                                   to_float(b[size_t(k * N + j)]));
                            bounds.push_back(double(K + 2) * kEpsF32 * sizes);
                        }
                    check_within("c", got, want, bounds);
                }
            }
}

TEST_CASE("a GEMM in tiles reads nothing that it has not packed", "[amx]") {
    const TileKernel own = tile_kernel();
    tile_kernel() = software_tiles();
    const int64_t M = 40;
    for (const int64_t N : {33, 300})  // micro-panels packed one after the other, and all together
        for (const int64_t K : {2, 40, 63, 600}) {
            INFO("N=" << N << " K=" << K);
            const auto a = bf16_randn<bf16>(M * K, 1), b = bf16_randn<bf16>(K * N, 2);
            const auto product = [&](float left_over) {
                Cpu cpu(1);
                std::fill_n(cpu.shared_scratch(1 << 20), 1 << 20, left_over);
                Guarded c(size_t(M * N));
                gemm(cpu, c.data(), N, M, N, K, Strided{a.data(), K, 1}, Strided{b.data(), N, 1}, nullptr, Write::set);
                return c.get();
            };
            CHECK(same_bits(product(std::nanf("")), product(0)));
        }
    tile_kernel() = own;
}
