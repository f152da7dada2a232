/*
The backends that there are; open_backend() chooses. Those of a GPU are in every program: without CUDA in the build,
cuda_backend_absent.cpp says so.
*/
#pragma once
#include <memory>
#include <string>
#include "llmc/train/backend.h"    // Backend
#include "llmc/train/run_flags.h"  // RunFlags
#include "llmc/train/doctor.h"     // GpuFacts

std::unique_ptr<Backend> cpu_backend_fp32(int num_threads);
std::unique_ptr<Backend> cpu_backend_bf16(int num_threads);

// On the host's GPU of that number.
std::unique_ptr<Backend> cuda_backend_fp32(int gpu, const RunFlags& config);
std::unique_ptr<Backend> cuda_backend_bf16(int gpu, const RunFlags& config);

// Is this program built with CUDA?
bool has_cuda();
// Why this build or machine has no GPU at all, or not one of that number; "" if it has.
std::string why_no_cuda(int gpu = 0);
// How many GPUs CUDA shows this process.
int num_cuda_gpus();
// How these reach each other (llmc/comm/topology.h); "": it is not known, or there are less than two.
std::string cuda_gpu_links();
// What `doctor` asks of a GPU.
GpuFacts look_at_gpu(int gpu);
