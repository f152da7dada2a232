// See cpu_program.h.
#include "llmc/train/cpu_program.h"
#include <cstdlib>
#include <vector>

const CpuProgram& cpu_program() {
    static const CpuProgram& chosen = []() -> const CpuProgram& {
        std::vector<const CpuProgram*> copies;
        std::vector<CpuLevel> levels;
        for (const CpuProgram* copy : {&kProgram_baseline, &kProgram_avx2, &kProgram_avx512, &kProgram_avx512_bf16}) {
            if (!copy) continue;  // not linked
            copies.push_back(copy);
            levels.push_back(copy->level);
        }
        return *copies[choose_copy(levels, std::getenv("ANVIL_CPU_ISA"), highest_level(cpuid_facts()))];
    }();
    return chosen;
}
