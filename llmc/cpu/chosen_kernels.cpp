// Selects the kernel table that a process uses. ANVIL_ALL_KERNELS lists the names of all compiled tables, in ascending
// order of their levels.
#include <cstdlib>
#include <vector>
#include "llmc/cpu/kernels.h"

#define ANVIL_DECLARE(name) extern const CpuKernels name;
#define ANVIL_ADDRESS(name) &name,
ANVIL_ALL_KERNELS(ANVIL_DECLARE)

const CpuKernels& cpu_kernels() {
    static const CpuKernels* const chosen = [] {
        const std::vector<const CpuKernels*> all = {ANVIL_ALL_KERNELS(ANVIL_ADDRESS)};
        std::vector<CpuLevel> levels;
        for (const CpuKernels* kernels : all) levels.push_back(kernels->level);
        return all[choose_copy(levels, std::getenv("ANVIL_CPU_ISA"), highest_level(cpuid_facts()))];
    }();
    return *chosen;
}
