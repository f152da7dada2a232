// ISA levels, and the selected copy of the CPU kernels: all have the same bits.
#include "llmc/base/processor.h"
#include <cstdlib>
#include <sstream>
#include "test/program.h"

namespace {

// A processor with all there is. The tests take bits away.
constexpr CpuidFacts kNewest = {
    .leaf_1_ecx = 1u << 12 | 1u << 22 | 1u << 27 | 1u << 28 | 1u << 29,
    .leaf_7_ebx = 1u << 3 | 1u << 5 | 1u << 8 | 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31,
    .leaf_7_edx = 1u << 22 | 1u << 24,
    .leaf_7_1_eax = 1u << 5,
    .extended_ecx = 1u << 5,
    .saved_registers = 0x600E6};

// The error of choose_copy for `asked`.
std::string refusal(const std::vector<CpuLevel>& copies, const char* asked, CpuLevel highest) {
    try {
        choose_copy(copies, asked, highest);
    } catch (const Error& error) {
        CHECK(error.exit_code == kExitUsage);
        return error.what();
    }
    return "";
}

Finished at_level(const std::string& level, const FlagMap& flags) {
    return run("env ANVIL_CPU_ISA=" + level + " " + command_of(flags));
}

// The levels that the program lists here, in ascending order.
std::vector<std::string> levels_of_program(const TinyRuns& runs) {
    const Finished refused = at_level("sse9", runs.flags("never"));
    CHECK(refused.exit_code == kExitUsage);
    const std::string begin = "error: ANVIL_CPU_ISA=sse9: expected one of ", end = ", which this program";
    REQUIRE(refused.err.starts_with(begin));
    REQUIRE(contains(refused.err, end));
    std::string list = refused.err.substr(begin.size(), refused.err.find(end) - begin.size());
    list.erase(std::remove(list.begin(), list.end(), ','), list.end());
    std::istringstream words(list);
    return {std::istream_iterator<std::string>(words), {}};
}

}  // namespace

TEST_CASE("a processor is of the highest level of which it has all", "[processor]") {
    CHECK(highest_level(kNewest) == CpuLevel::amx);
    CHECK(highest_level({}) == CpuLevel::baseline);
    // Each missing feature bit, and the remaining level.
    const auto without = [](uint32_t CpuidFacts::*word, int bit) {
        CpuidFacts facts = kNewest;
        facts.*word &= ~(1u << bit);
        return highest_level(facts);
    };
    for (const int bit : {12, 22, 27, 28, 29}) CHECK(without(&CpuidFacts::leaf_1_ecx, bit) == CpuLevel::baseline);
    for (const int bit : {3, 5, 8}) CHECK(without(&CpuidFacts::leaf_7_ebx, bit) == CpuLevel::baseline);
    CHECK(without(&CpuidFacts::extended_ecx, 5) == CpuLevel::baseline);
    for (const int bit : {16, 17, 28, 30, 31}) CHECK(without(&CpuidFacts::leaf_7_ebx, bit) == CpuLevel::avx2);
    CHECK(without(&CpuidFacts::leaf_7_1_eax, 5) == CpuLevel::avx512);
    for (const int bit : {22, 24}) CHECK(without(&CpuidFacts::leaf_7_edx, bit) == CpuLevel::avx512_bf16);
    // The processor has them, and the system does not save their registers.
    const auto unsaved = [](int bit) {
        CpuidFacts facts = kNewest;
        facts.saved_registers &= ~(uint64_t(1) << bit);
        return highest_level(facts);
    };
    for (const int bit : {1, 2}) CHECK(unsaved(bit) == CpuLevel::baseline);
    for (const int bit : {5, 6, 7}) CHECK(unsaved(bit) == CpuLevel::avx2);
    for (const int bit : {17, 18}) CHECK(unsaved(bit) == CpuLevel::avx512_bf16);
}

TEST_CASE("a processor's answers are those that the compiler's own test gives", "[processor]") {
#if defined(__x86_64__)
    const CpuLevel level = highest_level(cpuid_facts());
    CHECK((level >= CpuLevel::avx2) == (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")));
    CHECK((level >= CpuLevel::avx512) == (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")));
#else
    CHECK(highest_level(cpuid_facts()) == CpuLevel::baseline);
#endif
}

TEST_CASE("the best copy is taken that the processor has and that was asked for", "[processor]") {
    const std::vector<CpuLevel> all = {CpuLevel::baseline, CpuLevel::avx2, CpuLevel::avx512, CpuLevel::avx512_bf16};
    for (size_t i = 0; i < all.size(); i++) {
        CHECK(choose_copy(all, nullptr, all[i]) == i);
        CHECK(choose_copy(all, "", all[i]) == i);
        CHECK(choose_copy(all, name_of(all[i]), CpuLevel::amx) == i);
        CHECK(choose_copy({all[i]}, nullptr, CpuLevel::amx) == 0);
    }
    CHECK(choose_copy(all, nullptr, CpuLevel::amx) == 3);  // tiles are a matter of its products
    CHECK(choose_copy(all, "amx", CpuLevel::amx) == 3);
    CHECK(
        refusal(all, "amx", CpuLevel::avx512_bf16) ==
        "ANVIL_CPU_ISA=amx: expected one of baseline, avx2, avx512, avx512_bf16, which this program and this processor "
        "have");
    CHECK(refusal(all, "avx512", CpuLevel::avx2) ==
          "ANVIL_CPU_ISA=avx512: expected one of baseline, avx2, which this program and this processor have");
    CHECK(contains(refusal({CpuLevel::avx2}, "baseline", CpuLevel::amx), "expected one of avx2, which"));
    CHECK(contains(refusal({CpuLevel::avx512_bf16}, "AVX2", CpuLevel::amx), "expected one of avx512_bf16, amx, which"));
    CHECK(refusal({CpuLevel::avx512}, nullptr, CpuLevel::avx2) ==
          "this program is compiled for no processor with AVX2: compile it here");
    CHECK(level_in_use(CpuLevel::avx512) == CpuLevel::avx512);
}

// Shapes that are no multiple of sixteen, so that the ends of rows are run as well.
// The sample is generated token by token, with products of one row. In bf16 AMX has an order of sums of its own, which
// the number of threads does not change.
TEST_CASE("every level trains and generates with the same bits, and says which it is", "[processor]") {
    const TinyRuns runs;
    const std::vector<std::string> levels = levels_of_program(runs);
    REQUIRE_FALSE(levels.empty());
    for (const std::string dtype : {"fp32", "bf16"})
        for (const std::string architecture : {"gpt2", "nanochat"}) {
            const std::string name = dtype + architecture;
            const auto flags = [&](const std::string& level, const std::string& threads = "2") {
                const std::string run = name + level + (threads == "2" ? "" : threads);
                return runs.flags(run, {{"dtype", dtype},
                                        {"architecture", architecture},
                                        {"channels", "36"},
                                        {"num-heads", "3"},
                                        {"steps", "5"},
                                        {"warmup-steps", "0"},
                                        {"sample-tokens", "20"},
                                        {"threads", threads}});
            };
            const auto result = [&](const std::string& level) { return step_folder(runs.path(name + level), 5); };
            for (const std::string& level : levels) {
                INFO(name << " at " << level);
                const Finished trained = at_level(level, flags(level));
                must_succeed(trained);
                const auto same_name = [&](CpuLevel one) { return level == name_of(one); };
                const CpuLevel meant = *std::find_if(std::begin(kCpuLevels), std::end(kCpuLevels), same_name);
                CHECK(contains(trained.out, format("; device: cpu, 2 threads, %s; ", text_of(meant))));
                std::string same = levels[0];
                if (dtype == "bf16" && meant == CpuLevel::amx) {
                    same = level + "1";
                    must_succeed(at_level(level, flags(level, "1")));
                }
                CHECK(difference(result(level), result(same)) == "");
                const auto sample = [&](const std::string& of) { return records_in(runs.path(name + of), "sample"); };
                REQUIRE(sample(level).size() == 1);
                CHECK(sample(level) == sample(same));
            }
        }
    // The default is the highest level.
    const Finished best = run(command_of(runs.flags("best", {{"steps", "1"}, {"warmup-steps", "0"}})));
    const Finished asked = at_level(levels.back(), runs.flags("asked", {{"steps", "1"}, {"warmup-steps", "0"}}));
    const auto device = [](const Finished& ended) {
        const size_t at = ended.out.find("device: ");
        return ended.out.substr(at, ended.out.find('\n', at) - at);
    };
    CHECK(device(best) == device(asked));
}

TEST_CASE("a level that is not there ends a run of several ranks in words", "[processor]") {
    const TinyRuns runs;
    const Finished refused = at_level("sse9", runs.flags("a", {{"virtual-ranks", "2"}, {"total-batch-size", "128"}}));
    CHECK(refused.exit_code == kExitUsage);
    CHECK(contains(refused.err, "ANVIL_CPU_ISA=sse9"));
    const Finished doctor = run("env ANVIL_CPU_ISA=sse9 " + command_of(runs.flags("a"), "doctor"));
    CHECK(doctor.exit_code == kExitUsage);
    const Finished help = run("env ANVIL_CPU_ISA=sse9 " + program("train_gpt") + " --help");
    CHECK(help.exit_code == kExitOk);
}
