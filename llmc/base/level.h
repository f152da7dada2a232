/*
The namespace of all that is written for the CPU: named after the instructions that this object is compiled for, so that
one program can hold a copy for each (the Makefile's LEVELS) and the linker never takes one for another. It is inline:
code that is compiled once, as tests are, need not know of it.

  inline namespace ANVIL_CPU_LEVEL {      in every header of llmc/cpu, behind its includes
  }

Which copy runs is decided at the start: processor.h, where CpuLevel has the same names.
*/
#pragma once

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#if defined(__AVX512BF16__)
#define ANVIL_CPU_LEVEL avx512_bf16
#else
#define ANVIL_CPU_LEVEL avx512
#endif
#elif defined(__AVX2__) && defined(__FMA__)
#define ANVIL_CPU_LEVEL avx2
#else
#define ANVIL_CPU_LEVEL baseline
#endif
