/*
What this processor can do, as levels; each level includes the instructions of those below it. The CPU's kernels are
compiled once for each (llmc/cpu/kernels.h), and a run takes the best that the processor can run. ANVIL_CPU_ISA=avx2 in
the environment takes lower ones, which compute the same bits.
*/
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

enum class CpuLevel {
    baseline,     // every processor of its kind: SSE2, or NEON on Arm
    avx2,         // x86-64-v3
    avx512,       // x86-64-v4
    avx512_bf16,  // and products in bf16
    amx,          // and tiles, which have no copy of their own: matrix products ask may_use_amx()
};
inline constexpr CpuLevel kCpuLevels[] = {CpuLevel::baseline, CpuLevel::avx2, CpuLevel::avx512, CpuLevel::avx512_bf16,
                                          CpuLevel::amx};

const char* name_of(CpuLevel level);  // "avx512_bf16"
const char* text_of(CpuLevel level);  // "AVX-512 with bf16"

// What an x86-64 processor answers, and which registers the system saves. On others zeros, which is the baseline.
struct CpuidFacts {
    uint32_t leaf_1_ecx, leaf_7_ebx, leaf_7_edx, leaf_7_1_eax, extended_ecx;
    uint64_t saved_registers;  // XCR0
};
CpuidFacts cpuid_facts();
CpuLevel highest_level(const CpuidFacts& facts);

// Of copies in ascending order, the one to run: the best that a processor of level `highest` can, and none above
// `asked`, the content of ANVIL_CPU_ISA (null or "": not set). An Error if that asks for what is not there.
size_t choose_copy(const std::vector<CpuLevel>& copies, const char* asked, CpuLevel highest);

// Whether the processor has tiles (AMX) and ANVIL_CPU_ISA allows them. Every call gives the same answer.
bool may_use_amx();

// The instructions that code compiled for this level uses.
inline CpuLevel level_in_use(CpuLevel compiled) {
    return compiled == CpuLevel::avx512_bf16 && may_use_amx() ? CpuLevel::amx : compiled;
}
