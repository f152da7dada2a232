// The processor level that this object is compiled for, as a CpuLevel of processor.h. For CPU_ARCH=here make/flags.mk
// reads it for this processor.
#pragma once

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
