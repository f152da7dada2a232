/*
The part of a program that runs on the CPU, which alone is compiled more than once: for each level of processors
(llmc/base/level.h). The rest reaches the copies through this table, and the linker finds which of them there are.

  cpu_program().carry_out(world, errand, num_threads, "bf16");     by the best copy that this processor can run
*/
#pragma once
#include <string>
#include "llmc/base/processor.h"     // CpuLevel
#include "llmc/cpu/product_rates.h"  // ProductRates
#include "llmc/train/config.h"       // TrainConfig
#include "llmc/train/start.h"        // Start

struct World;

// What there is to do on a device.
struct Errand {
    const TrainConfig& asked;
    const Start* start = nullptr;  // null for --bench-comm
    double began_s = 0;            // when the program did

    const TrainConfig& config() const { return start ? start->config : asked; }
};

struct CpuProgram {
    CpuLevel level;
    void (*carry_out)(World& world, const Errand& errand, int num_threads, const std::string& dtype);
    ProductRates (*product_rates)();
};

// train_gpt.cu defines that of the level it is compiled for. A constant: what is computed before main() would be so on
// every processor.
extern const CpuProgram kProgram_baseline __attribute__((weak)), kProgram_avx2 __attribute__((weak)),
    kProgram_avx512 __attribute__((weak)), kProgram_avx512_bf16 __attribute__((weak));
#define ANVIL_JOINED(a, b) a##b
#define ANVIL_OF_LEVEL(prefix, level) ANVIL_JOINED(prefix, level)

// An Error if ANVIL_CPU_ISA asks for what is not there.
const CpuProgram& cpu_program();
