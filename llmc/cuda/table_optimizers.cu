// The entries of the table of kernels (cuda_kernels.h): optimizers, and what decides about a step.
#include "llmc/cuda/adamw.cuh"
#include "llmc/cuda/cuda_kernels.h"  // CUDA_OPS
#include "llmc/cuda/global_norm.cuh"
#include "llmc/cuda/muon.cuh"
#include "llmc/cuda/step_scalars.cuh"
#include "llmc/cuda/weight_average.cuh"
#include "llmc/cuda/weight_hash.cuh"

CUDA_OPS(AdamwOps, .adamw_update = adamw_update, .adamw_update_bf16 = adamw_update)
CUDA_OPS_OF(GlobalNormOps<Cuda>, .add_squares = add_squares)
CUDA_OPS(MuonOps, .muon_row = muon_row<T>, .muon_momentum = muon_momentum, .muon_momentum_bf16 = muon_momentum_bf16,
         .muon_normalize = muon_normalize, .muon_squares = muon_squares, .muon_scales = muon_scales,
         .muon_lifts = muon_lifts, .muon_update = muon_update)
CUDA_OPS_OF(StepScalarsOps<Cuda>, .add_mean_loss = add_mean_loss, .decide_step = decide_step)
CUDA_OPS_OF(WeightAverageOps<Cuda>, .average_weights = average_weights)
CUDA_OPS(WeightHashOps, .add_hash = add_hash)
