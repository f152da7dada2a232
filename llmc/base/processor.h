/*
The levels of processors; each level includes the instructions of the levels below it. The CPU's kernels are compiled
once for each level (llmc/cpu/kernels.h), and a run uses the best level that the processor supports. The environment
variable ANVIL_CPU_ISA=avx2 selects a lower level, which computes the same bits.
*/
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

// The level that this object is compiled for, as a CpuLevel. For CPU_ARCH=here make/flags.mk reads it for this
// processor.
#if !(defined(__AVX2__) && defined(__BMI__) && defined(__BMI2__) && defined(__F16C__) && defined(__FMA__) && \
      defined(__LZCNT__) && defined(__MOVBE__))
#define ANVIL_CPU_LEVEL baseline
#elif !(defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512CD__) && defined(__AVX512DQ__) && \
        defined(__AVX512VL__))
#define ANVIL_CPU_LEVEL avx2
#elif !defined(__AVX512BF16__)
#define ANVIL_CPU_LEVEL avx512
#else
#define ANVIL_CPU_LEVEL avx512_bf16
#endif

enum class CpuLevel {
    baseline,     // every processor of its architecture: SSE2, or NEON on Arm
    avx2,         // x86-64-v3
    avx512,       // x86-64-v4
    avx512_bf16,  // AVX-512 and dot products in bf16
    amx,          // AMX tiles, too. Has no copy of the kernels: GEMMs ask may_use_amx()
};
inline constexpr CpuLevel kCpuLevels[] = {CpuLevel::baseline, CpuLevel::avx2, CpuLevel::avx512, CpuLevel::avx512_bf16,
                                          CpuLevel::amx};

const char* name_of(CpuLevel level);  // "avx512_bf16"
const char* text_of(CpuLevel level);  // "AVX-512 with bf16"

// The answers of CPUID on an x86-64 processor, and the registers that the operating system saves. On other processors
// all are 0, which means the baseline.
struct CpuidFacts {
    uint32_t leaf_1_ecx, leaf_7_ebx, leaf_7_edx, leaf_7_1_eax, extended_ecx;
    uint64_t saved_registers;  // XCR0
};
CpuidFacts cpuid_facts();
CpuLevel highest_level(const CpuidFacts& facts);

// The index of the copy to run, of `copies` in ascending order: the one for `asked`, the content of ANVIL_CPU_ISA, or
// if that is null or "", the best one that a processor of level `highest` supports. Throws an Error if `asked` names a
// level that the program or the processor lacks.
size_t choose_copy(const std::vector<CpuLevel>& copies, const char* asked, CpuLevel highest);

// Whether the processor has AMX tiles and ANVIL_CPU_ISA allows them. Every call gives the same answer.
bool may_use_amx();

// The level of the instructions that code compiled for `compiled` uses.
inline CpuLevel level_in_use(CpuLevel compiled) {
    return compiled == CpuLevel::avx512_bf16 && may_use_amx() ? CpuLevel::amx : compiled;
}
