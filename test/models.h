/*
Models that test/models.cu instantiates once for the emulated GPU, so that a test of models compiles in half the time.
Empty for nvcc, which needs a kernel's code in the file that launches it.
*/
#pragma once
#ifdef ANVIL_EMULATED
#include "llmc/cpu/kernels.h"
#include "llmc/cuda/cuda_kernels.h"
#include "llmc/model/gpt.h"

extern template struct Gpt<Cpu, float>;
extern template struct Gpt<Cuda, float>;
extern template struct Gpt<Cuda, bf16>;
#endif
