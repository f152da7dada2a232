/*
The models on the emulated GPU, compiled once, by test/models.cu: a test of them compiles in half the time. nvcc finds
nothing here: it wants a kernel's code in the file that launches it.
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
