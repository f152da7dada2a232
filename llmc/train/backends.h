/*
All backends; open_backend() chooses one. The GPU's functions are in every program: in a build without CUDA,
cuda_backend_absent.cpp reports that.
*/
#pragma once
#include <memory>
#include <string>
#include "llmc/train/backend.h"    // Backend
#include "llmc/train/run_flags.h"  // RunFlags
#include "llmc/train/doctor.h"     // GpuFacts

std::unique_ptr<Backend> cpu_backend_fp32(int num_threads);
std::unique_ptr<Backend> cpu_backend_bf16(int num_threads);

// On the host's GPU with this number.
std::unique_ptr<Backend> cuda_backend_fp32(int gpu, const RunFlags& config);
std::unique_ptr<Backend> cuda_backend_bf16(int gpu, const RunFlags& config);

// Whether this program is built with CUDA.
bool has_cuda();
// Why this build or machine has no GPU at all, or none with this number; "" if it has.
std::string why_no_cuda(int gpu = 0);
// How many GPUs CUDA shows this process.
int num_cuda_gpus();
// How these reach each other (llmc/comm/topology.h); "": it is not known, or there are less than two.
std::string cuda_gpu_links();
// What `doctor` asks of a GPU.
GpuFacts look_at_gpu(int gpu);
