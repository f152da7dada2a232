/*
All backends; open_backend() chooses one. The GPU's functions are in every program: in a build without CUDA,
cuda_backend_absent.cpp reports that.
*/
#pragma once
#include <memory>
#include <string>
#include "llmc/commands/backend.h"  // Backend
#include "llmc/commands/doctor.h"   // GpuFacts
#include "llmc/run/run_flags.h"     // RunFlags

std::unique_ptr<Backend> cpu_backend(const std::string& dtype, int num_threads);  // fp32, bf16
// On the host's GPU with this number; in bf16 unless --dtype is fp32.
std::unique_ptr<Backend> cuda_backend(int gpu, const RunFlags& flags);

// Whether this program is built with CUDA.
bool has_cuda();
// Why this build or machine has no GPU at all, or none with this number; "" if it has one.
std::string why_no_cuda(int gpu = 0);
// The number of GPUs that CUDA shows to this process.
int num_cuda_gpus();
// The links between these GPUs (gpu_links_text in llmc/comm/host.h); "": not known, or fewer than two GPUs.
std::string cuda_gpu_links();
// The facts about a GPU for the command `doctor`.
GpuFacts look_at_gpu(int gpu);
