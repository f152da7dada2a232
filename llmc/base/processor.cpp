// See processor.h. Compiled for the baseline, whatever the rest of the program is compiled for.
#include "llmc/base/processor.h"
#include <unistd.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include "llmc/base/build_id.h"  // build_level
#include "llmc/base/check.h"     // require
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace {

constexpr char kVariable[] = "ANVIL_CPU_ISA";

// Runs before all other code. A program compiled for one level only would otherwise be killed by an instruction that an
// older processor lacks. Nothing is initialized yet: no streams, no exceptions.
__attribute__((constructor(101))) void refuse_older_processors() {
    const CpuLevel has = highest_level(cpuid_facts());
    if (has >= build_level()) return;
    for (const char* part :
         {"error: this program is compiled for processors with ", text_of(build_level()), ", and this one has ",
          text_of(has), ": compile it here, or for all processors with make CPU_ARCH=all\n"})
        if (write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
    _exit(kExitUsage);
}

}  // namespace

const char* name_of(CpuLevel level) {
    constexpr const char* kNames[] = {"baseline", "avx2", "avx512", "avx512_bf16", "amx"};
    return kNames[int(level)];
}

const char* text_of(CpuLevel level) {
#if defined(__ARM_NEON)
    constexpr const char* kBaseline = "NEON";
#else
    constexpr const char* kBaseline = "SSE2";
#endif
    constexpr const char* kTexts[] = {kBaseline, "AVX2", "AVX-512", "AVX-512 with bf16", "AMX"};
    return kTexts[int(level)];
}

CpuidFacts cpuid_facts() {
    CpuidFacts facts = {};
#if defined(__x86_64__)
    uint32_t a, b, c, d;
    if (__get_cpuid(1, &a, &b, &c, &d)) facts.leaf_1_ecx = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        facts.leaf_7_ebx = b, facts.leaf_7_edx = d;
        if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) facts.leaf_7_1_eax = a;
    }
    if (__get_cpuid(0x80000001, &a, &b, &c, &d)) facts.extended_ecx = c;
    if (facts.leaf_1_ecx >> 27 & 1) {  // OSXSAVE: XGETBV is available
        asm("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
        facts.saved_registers = uint64_t(d) << 32 | a;
    }
#endif
    return facts;
}

// The bits are from Intel's manual (volume 2, CPUID), the levels from the x86-64 psABI.
CpuLevel highest_level(const CpuidFacts& facts) {
    const auto has = [](uint64_t word, std::initializer_list<int> bits) {
        return std::all_of(bits.begin(), bits.end(), [&](int bit) { return word >> bit & 1; });
    };
    const bool avx2 = has(facts.leaf_1_ecx, {12, 22, 27, 28, 29}) &&            // FMA, MOVBE, OSXSAVE, AVX, F16C
                      has(facts.extended_ecx, {5}) &&                           // LZCNT
                      has(facts.leaf_7_ebx, {3, 5, 8}) &&                       // BMI1, AVX2, BMI2
                      has(facts.saved_registers, {1, 2});                       // 128-bit and 256-bit registers
    const bool avx512 = avx2 && has(facts.leaf_7_ebx, {16, 17, 28, 30, 31}) &&  // F, DQ, CD, BW, VL
                        has(facts.saved_registers, {5, 6, 7});                  // masks, 512 bits, registers 16 to 31
    const bool bf16 = avx512 && has(facts.leaf_7_1_eax, {5});
    const bool amx = bf16 && has(facts.leaf_7_edx, {22, 24}) &&  // bf16, tiles
                     has(facts.saved_registers, {17, 18});       // tile configuration and tile data
    return CpuLevel(avx2 + avx512 + bf16 + amx);
}

size_t choose_copy(const std::vector<CpuLevel>& copies, const char* asked, CpuLevel highest) {
    std::string there;
    std::vector<CpuLevel> usable;
    for (const CpuLevel level : kCpuLevels) {
        const CpuLevel copy = level == CpuLevel::amx ? CpuLevel::avx512_bf16 : level;
        if (level > highest || std::find(copies.begin(), copies.end(), copy) == copies.end()) continue;
        usable.push_back(level);
        there += (there.empty() ? "" : ", ") + std::string(name_of(level));
    }
    require(!usable.empty(), "this program is compiled for no processor with %s: compile it here", text_of(highest));
    CpuLevel chosen = usable.back();
    if (asked && *asked) {
        const auto found = std::find_if(usable.begin(), usable.end(),
                                        [&](CpuLevel level) { return !std::strcmp(name_of(level), asked); });
        require(found != usable.end(), "%s=%s: expected one of %s, which this program and this processor have",
                kVariable, asked, there.c_str());
        chosen = *found;
    }
    chosen = std::min(chosen, CpuLevel::avx512_bf16);
    return size_t(std::find(copies.begin(), copies.end(), chosen) - copies.begin());
}

bool may_use_amx() {
    static const bool may = [] {
        const char* asked = std::getenv(kVariable);
        return highest_level(cpuid_facts()) == CpuLevel::amx &&
               (!asked || !*asked || !std::strcmp(asked, name_of(CpuLevel::amx)));
    }();
    return may;
}
