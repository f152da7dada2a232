// The machine that executes PTX (dev/ptx): what it computes, and that it finds what PTX leaves undefined. No nvcc.
#include <cstring>
#include <string>
#include <vector>
#include "test/testing.h"

#ifdef ANVIL_EMULATED

#include "dev/ptx/machine.h"

namespace {

std::vector<uint32_t> memory;  // of one launch

std::pair<const char*, const char*> allocation_of(const void* address) {
    const char* const begin = reinterpret_cast<const char*>(memory.data());
    const char* const end = begin + memory.size() * 4;
    const bool is_inside = address >= begin && address < end;
    return is_inside ? std::pair(begin, end) : std::pair<const char*, const char*>();
}

// Runs a kernel whose parameter is the address of memory, in %rd1, with the thread's number in %r1, four times of it in
// %rd2, and %rd3 = %rd1 + %rd2. Returns the error, or "".
std::string run_ptx(const std::string& body, ptx::Extent grid = {}, ptx::Extent block = {32},
                    ptx::Order order = ptx::Order::first) {
    memory.assign(256, 0xFFFFFFFF);
    ptx::Module module(
        ".visible .entry test(\n\t.param .u64 out\n)\n{\n.reg .pred %p<9>;\n.reg .b32 %r<40>;\n.reg .f32 %f<20>;\n"
        ".reg .b64 %rd<20>;\n.shared .align 16 .b8 array[256];\n"
        "ld.param.u64 %rd1, [out];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd3, %rd1, %rd2;\n"
        "shl.b32 %r2, %r1, 2;\nmov.u32 %r3, array;\nadd.s32 %r4, %r3, %r2;\n" +
        body + "\nret;\n\n}\n");
    try {
        ptx::Launch launch{.kernel = &module.kernel("test"),
                           .grid = grid,
                           .block = block,
                           .dynamic_bytes = 0,
                           .parameters = std::vector<char>(8),
                           .allocation_of = allocation_of,
                           .order = order};
        const uint32_t* const out = memory.data();
        std::memcpy(launch.parameters.data(), &out, 8);
        ptx::run(launch);
    } catch (const ptx::Fault& fault) {
        return fault.what();
    }
    return "";
}
float float_at(size_t i) {
    float x;
    std::memcpy(&x, &memory[i], 4);
    return x;
}

}  // namespace

TEST_CASE("the PTX machine computes what PTX says", "[ptx]") {
    SECTION("branches, loops and lanes that come together") {
        // Each thread counts up to its number; odd ones then add 100.
        REQUIRE(
            run_ptx("mov.u32 %r5, 0;\n$L1:\nsetp.ge.u32 %p1, %r5, %r1;\n@%p1 bra $L2;\nadd.s32 %r5, %r5, 1;\n"
                    "bra.uni $L1;\n$L2:\nand.b32 %r6, %r1, 1;\nsetp.eq.s32 %p2, %r6, 0;\n@%p2 bra $L3;\n"
                    "add.s32 %r5, %r5, 100;\n$L3:\nshfl.sync.bfly.b32 %r7|%p3, %r5, 1, 31, -1;\nst.global.u32 [%rd3], "
                    "%r7;") == "");
        for (uint32_t i = 0; i < 32; i++) CHECK(memory[i] == (i ^ 1) + (i % 2 ? 0 : 100));
    }
    SECTION("rounding, NaN and what is flushed") {
        REQUIRE(run_ptx("mov.f32 %f1, 0f3F800001;\nfma.rn.f32 %f2, %f1, %f1, 0fBF800000;\nst.global.f32 [%rd1], %f2;\n"
                        "ex2.approx.ftz.f32 %f3, 0fC2FE0000;\nst.global.f32 [%rd1+4], %f3;\n"
                        "max.f32 %f4, 0f7FC00000, 0f40000000;\nst.global.f32 [%rd1+8], %f4;\n"
                        "add.rz.f32 %f5, 0f3F800000, 0f33FFFFFF;\nst.global.f32 [%rd1+12], %f5;\n"
                        "add.rn.f32 %f6, 0f3F800000, 0f33FFFFFF;\nst.global.f32 [%rd1+16], %f6;\n"
                        "cvt.rn.bf16x2.f32 %r5, 0f3F808000, 0f3F818000;\nst.global.u32 [%rd1+20], %r5;",
                        {}, {1}) == "");
        CHECK(float_at(0) == 0x1p-22f + 0x1p-46f);  // the product is not rounded
        CHECK(float_at(1) == 0);                    // 2^-127
        CHECK(float_at(2) == 2);
        CHECK((float_at(3) == 1 && float_at(4) == 1 + 0x1p-23f));
        CHECK(memory[5] == 0x3F803F82);  // both halfway: to the even one
    }
    SECTION("blocks hand over by release and acquire, whichever runs first") {
        const std::string hand_over =
            "mov.u32 %r5, %ctaid.x;\nsetp.ne.s32 %p1, %r5, 0;\n@%p1 bra $L1;\n"
            "st.global.u32 [%rd1+64], 7;\nst.release.gpu.s32 [%rd1], 1;\nbra.uni $L2;\n"
            "$L1:\nld.acquire.gpu.s32 %r6, [%rd1];\nsetp.ne.s32 %p2, %r6, 1;\n@%p2 bra $L1;\n"
            "ld.global.u32 %r7, [%rd1+64];\nst.global.u32 [%rd1+128], %r7;\n$L2:\n";
        for (const ptx::Order order : {ptx::Order::first, ptx::Order::last, ptx::Order::random}) {
            REQUIRE(run_ptx(hand_over, {2}, {1}, order) == "");
            CHECK(memory[32] == 7);
        }
        std::string relaxed = hand_over;
        relaxed.replace(relaxed.find("st.release.gpu.s32"), 18, "st.global.u32");
        CHECK(contains(run_ptx(relaxed, {2}, {1}), "nothing orders the two"));
    }
}

TEST_CASE("the PTX machine finds what PTX leaves undefined", "[ptx]") {
    const auto [body, threads, error] = GENERATE(table<std::string, int, std::string>({
        {"st.global.u32 [%rd3], %r9;", 32, "reads a register before it is written"},
        {"add.s32 %r8, %r9, 1;\nsetp.eq.s32 %p1, %r8, 0;\n@%p1 bra $L1;\n$L1:", 32, "before it is written"},
        {"st.global.u32 [%rd3+1024], %r1;", 32, "outside of every allocation"},
        {"ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd3];", 32, "not aligned"},
        {"ld.shared.u32 %r5, [%r4];", 32, "before it is written"},
        {"st.shared.u32 [%r4+256], %r1;", 32, "outside of every array"},
        {"st.shared.u32 [%r4], %r1;\nxor.b32 %r5, %r4, 4;\nld.shared.u32 %r6, [%r5];", 32, "nothing orders the two"},
        {"st.shared.u32 [%r3], %r1;", 64, "nothing orders the two"},
        {"st.global.u32 [%rd1], %r1;", 64, "nothing orders the two"},
        {"setp.lt.u32 %p1, %r1, 7;\n@%p1 shfl.sync.bfly.b32 %r5|%p2, %r1, 1, 31, 255;", 32,
         "lanes 00000080 are missing"},
        {"setp.lt.u32 %p1, %r1, 7;\n@%p1 bra $L1;\nbar.sync 0;\nbra.uni $L2;\n$L1:\nbar.sync 1;\n$L2:", 32,
         "wait here"},
        {"setp.lt.u32 %p1, %r1, 32;\n@%p1 bra $L1;\nbar.sync 0;\n$L1:", 64, "all wait for each other"},
        {"mbarrier.init.shared::cta.b64 [%r3], 2;\n$L1:\nmbarrier.try_wait.parity.shared::cta.b64 %p1, [%r3], 0;\n"
         "@!%p1 bra $L1;",
         1, "all wait for each other"},
        {"cp.async.cg.shared.global [%r3], [%rd1], 16;\ncp.async.commit_group;\nld.shared.u32 %r5, [%r3];", 1,
         "which a copy in flight writes"},
        {"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd1], 16, [%r4];", 1,
         "there is no mbarrier"},
        {"frobnicate.u32 %r5, %r1;", 32, "does not know: frobnicate.u32 %r5, %r1"},
        {"trap;", 32, "a trap"},
    }));
    INFO(body);
    CHECK(contains(run_ptx(body, {}, {uint32_t(threads)}), error));
}

TEST_CASE("the PTX machine accepts what barriers order", "[ptx]") {
    const auto [body, threads] = GENERATE(table<std::string, int>({
        {"st.shared.u32 [%r4], %r1;\nbar.sync 0;\nxor.b32 %r5, %r2, 128;\nadd.s32 %r6, %r3, %r5;\nld.shared.u32 %r7, "
         "[%r6];",
         64},
        {"st.shared.u32 [%r4], %r1;\nbar.warp.sync -1;\nxor.b32 %r5, %r2, 4;\nadd.s32 %r6, %r3, %r5;\nld.shared.u32 "
         "%r7, [%r6];",
         32},
        {"cp.async.cg.shared.global [%r3], [%rd1], 16;\ncp.async.commit_group;\ncp.async.wait_group 0;\n"
         "ld.shared.u32 %r5, [%r3];",
         1},
        {"atom.global.add.u32 %r5, [%rd1], 1;", 64},
        {"selp.u32 %r5, %r1, %r9, %p1;\nsetp.ge.u32 %p1, %r1, 0;\nselp.u32 %r5, %r1, %r9, %p1;\nst.global.u32 [%rd3], "
         "%r5;",
         32},
    }));
    INFO(body);
    for (const ptx::Order order : {ptx::Order::first, ptx::Order::last, ptx::Order::random})
        CHECK(run_ptx(body, {}, {uint32_t(threads)}, order) == "");
}

#endif
