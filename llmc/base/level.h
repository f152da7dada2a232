// The processor level that this object is compiled for, as a CpuLevel of processor.h.
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
