// The blocking of GEMMs: the plans of GPT-2's, as text, and properties of all plans.
#include "llmc/cpu/gemm_plan.h"
#include "test/testing.h"

namespace {

// The tiles of other processors than this one, so that the plans are the same wherever the test runs.
constexpr GemmKernel kAvx2{6, 16, 256, 1, 4, false, 8}, kAvx2Bf16{6, 16, 512, 2, 2, false, 8};
constexpr GemmKernel kWidened{12, 32, 512, 2, 4, false, 24, true};
constexpr GemmKernel kAvx512{12, 32, 256, 1, 4, false, 24}, kAmx{32, 32, 256, 32, 2, true, 24};

std::string plan_text(const GemmKernel& kernel, const GemmProblem& problem) {
    return gemm_plan(problem, kernel).text();
}

}  // namespace

TEST_CASE("gemm_plan: the GEMMs of GPT-2 124M", "[gemm_plan]") {
    const int64_t N = 4096, C = 768;
    // Forward and dX: A is read in place. MC divides the rows into equal blocks, NC lets packed B take 4 MiB.
    CHECK(plan_text(kAvx2, {.M = N, .N = 3 * C, .K = C, .threads = 8}) ==
          "4096 x 2304 x 768, 4-byte elements: MC 96, KC 768, NC 1360, MR 6, NR 16, KB 256, registers, packs B");
    CHECK(plan_text(kAvx512, {.M = N, .N = C, .K = 4 * C, .threads = 8}) ==
          "4096 x 768 x 3072, 4-byte elements: MC 36, KC 3072, NC 320, MR 12, NR 32, KB 256, registers, packs B");
    // dW: A is dout, transposed.
    CHECK(plan_text(kAvx2Bf16, {.M = 3 * C, .N = C, .K = N, .threads = 8, .a_transposed = true}) ==
          "2304 x 768 x 4096, 2-byte elements: MC 96, KC 1024, NC 768, MR 6, NR 16, KB 512, registers, packs A and B");
    CHECK(plan_text(kAmx, {.M = 3 * C, .N = C, .K = N, .threads = 8, .a_transposed = true}) ==
          "2304 x 768 x 4096, 2-byte elements: MC 256, KC 2048, NC 768, MR 32, NR 32, KB 256, tiles, packs A and B");
    // One micro-batch of short rows, and one token.
    CHECK(plan_text(kAvx2, {.M = 256, .N = 50304, .K = C, .threads = 2}) ==
          "256 x 50304 x 768, 4-byte elements: MC 256, KC 768, NC 16, MR 6, NR 16, KB 256, registers, few rows: "
          "B is packed by the thread that uses it");
    CHECK(
        plan_text(kAvx512, {.M = 8, .N = C, .K = C, .threads = 8, .streams_b = true}) ==
        "8 x 768 x 768, 4-byte elements: MC 8, KC 768, NC 768, MR 12, NR 32, KB 256, registers, few rows: B is read in "
        "place");
    CHECK(plan_text(kAmx, {.M = 1, .N = C, .K = C, .threads = 8}) ==
          "1 x 768 x 768, 2-byte elements: MC 1, KC 768, NC 32, MR 32, NR 32, KB 256, tiles, few rows: B is packed by "
          "the thread that uses it");
}

TEST_CASE("gemm_plan: A is packed if it is transposed or widened, or its rows collide or do not end with a step",
          "[gemm_plan]") {
    CHECK_FALSE(gemm_plan({.M = 999, .N = 64, .K = 63}, kAvx2).packs_a);
    CHECK(gemm_plan({.M = 12, .N = 16, .K = 64, .a_transposed = true}, kAvx2).packs_a);
    const GemmProblem transposed{.M = 129, .N = 65, .K = 2048, .a_transposed = true};
    CHECK(gemm_plan(transposed, kAvx2).packs_a);
    // All of K at once if A and B fit in L2
    CHECK(gemm_plan(transposed, kAvx2).KC == 512);
    GemmProblem in_l2 = transposed;
    in_l2.l2_bytes = (129 + 65) * 2048 * 4;
    CHECK(gemm_plan(in_l2, kAvx2).KC == 2048);
    // Rows that do not fit in a set of L1 are copied.
    CHECK(gemm_plan({.M = 999, .N = 64, .K = 63, .rows_collide = true}, kAvx512).copies_rows);
    CHECK_FALSE(gemm_plan({.M = 999, .N = 64, .K = 63}, kAvx512).copies_rows);
    // Pairs of bf16 must be side by side.
    CHECK(gemm_plan(transposed, kAvx2Bf16).packs_a);
    CHECK_FALSE(gemm_plan({.M = 999, .N = 64, .K = 62}, kAvx2Bf16).packs_a);
    CHECK(gemm_plan({.M = 999, .N = 64, .K = 63}, kAvx2Bf16).packs_a);
    // bf16 is widened when it is packed.
    CHECK(gemm_plan({.M = 999, .N = 64, .K = 62}, kWidened).packs_a);
    CHECK(gemm_plan({.M = 9, .N = 64, .K = 63}, kWidened).packs_a);
    CHECK(gemm_plan({.M = 999, .N = 64, .K = 62}, kAmx).packs_a);
    CHECK_FALSE(gemm_plan({.M = 999, .N = 64, .K = 64}, kAmx).packs_a);
    // With few rows and tiles, rows are padded when they are read.
    CHECK_FALSE(gemm_plan({.M = 9, .N = 64, .K = 63}, kAmx).packs_a);
}

TEST_CASE("gemm_plan: few rows need columns for every thread, and an A that is small and not transposed",
          "[gemm_plan]") {
    const GemmProblem few{.M = 384, .N = 8 * 4 * 16, .K = 2730, .threads = 4};
    CHECK(gemm_plan(few, kAvx2).few_rows);
    const auto changed = [&](auto change) {
        GemmProblem p = few;
        change(p);
        return gemm_plan(p, kAvx2).few_rows;
    };
    CHECK_FALSE(changed([](GemmProblem& p) { p.M++; }));
    CHECK_FALSE(changed([](GemmProblem& p) { p.K++; }));  // 4 MiB of A
    CHECK_FALSE(changed([](GemmProblem& p) { p.N -= 16; }));
    CHECK_FALSE(changed([](GemmProblem& p) { p.threads++; }));
    CHECK_FALSE(changed([](GemmProblem& p) { p.a_transposed = true; }));
    CHECK_FALSE(gemm_plan({.M = 14, .N = 10000, .K = 64}, kAmx).few_rows);
}

TEST_CASE("gemm_plan: B is read in place for very few rows, where it can be", "[gemm_plan]") {
    const GemmProblem few{.M = 8, .N = kStreamedColumns, .K = 62, .streams_b = true};
    CHECK(gemm_plan(few, kAvx2Bf16).streams_b);
    const auto changed = [&](const GemmKernel& kernel, auto change) {
        GemmProblem p = few;
        change(p);
        return gemm_plan(p, kernel).streams_b;
    };
    CHECK_FALSE(changed(kAvx2Bf16, [](GemmProblem& p) { p.streams_b = false; }));
    CHECK_FALSE(changed(kAvx2Bf16, [](GemmProblem& p) { p.M++; }));
    CHECK(changed(kAvx512, [](GemmProblem& p) { p.M = 24; }));
    CHECK_FALSE(changed(kAvx2Bf16, [](GemmProblem& p) { p.N--; }));
    CHECK_FALSE(changed(kAvx2Bf16, [](GemmProblem& p) { p.K++; }));
    CHECK(changed(kAvx2, [](GemmProblem& p) { p.K++; }));
    CHECK_FALSE(changed(kAvx2Bf16, [](GemmProblem& p) { p.a_transposed = true; }));
    CHECK_FALSE(changed(kAmx, [](GemmProblem& p) { p.K = 62; }));
    CHECK(changed(kAmx, [](GemmProblem& p) { p.K = 64; }));
    // Without widening A for the micro-kernel
    CHECK(gemm_plan(few, kWidened).streams_b);
    CHECK_FALSE(gemm_plan(few, kWidened).packs_a);
    CHECK_FALSE(changed(kWidened, [](GemmProblem& p) { p.K++; }));
}

TEST_CASE("gemm_plan: sums wait in float where C is bf16 and K is cut", "[gemm_plan]") {
    GemmProblem p{.M = 500, .N = 64, .K = 4098, .rounds_c = true};
    CHECK(gemm_plan(p, kAvx2Bf16).kept_sums_size() == 500 * 64);
    p.K = 4096;
    CHECK(gemm_plan(p, kAvx2Bf16).kept_sums_size() == 0);
    p = {.M = 500, .N = 64, .K = 4098};
    CHECK(gemm_plan(p, kAvx2Bf16).kept_sums_size() == 0);
}

TEST_CASE("gemm_plan: every plan covers C and stays within the caches", "[gemm_plan]") {
    const GemmKernel kernel = GENERATE(kAvx2, kAvx2Bf16, kWidened, kAvx512, kAmx);
    const int64_t MR = kernel.MR, NR = kernel.NR, element = kernel.element_bytes;
    for (const int64_t M : {1, 13, 100, 768, 2304, 50304})
        for (const int64_t N : {1, 33, 768, 50304})
            for (const int64_t K : {1, 63, 768, 3072, 16384, 100000})
                for (const int64_t threads : {1, 2, 64})
                    for (const bool a_transposed : {false, true}) {
                        const GemmPlan plan = gemm_plan(
                            {.M = M, .N = N, .K = K, .threads = threads, .a_transposed = a_transposed}, kernel);
                        INFO(plan.text() << ", " << threads << " threads");
                        if (plan.few_rows) {
                            CHECK(plan.packed_b_size() == 0);
                            CHECK((kernel.widens ? plan.packed_a_size() >= M * K : plan.packed_a_size() == 0));
                            CHECK(plan.thread_panel_size() * 4 == NR * kernel.KB * element);
                            CHECK(plan.thread_sums_size() == M * NR);
                            continue;
                        }
                        // Whole micro-panels, except at the edge of C; whole blocks, except at the end of K
                        CHECK((plan.NC == N || plan.NC % NR == 0));
                        CHECK(plan.MC % MR == 0);
                        CHECK((plan.KC == K || plan.KC % kernel.KB == 0));
                        // gemm()'s sums of one MC x NR block have this place on the stack.
                        CHECK(plan.MC <= kMaxMC);
                        // Packed B takes 4 MiB, padding aside, or a micro-panel per thread.
                        CHECK((plan.NC * plan.KC * element <= 4 << 20 || plan.NC <= threads * NR));
                        CHECK(plan.packed_b_size() * 4 >= plan.NC * plan.KC * element);
                        // A (MC, KC) takes half of L2, or is one micro-panel; blocks differ by less than one.
                        CHECK((plan.MC * plan.KC * element <= (kernel.tiles ? 1 << 20 : 1 << 19) || plan.MC == MR));
                        const int64_t blocks = (M + plan.MC - 1) / plan.MC;
                        CHECK(blocks * plan.MC - M < blocks * MR);
                        CHECK(plan.packs_a == (plan.packed_a_size() > 0));
                        if (plan.packs_a) CHECK(plan.packed_a_size() * 4 >= M * plan.KC * element);
                    }
}
