/*
Every op of the model and the optimizer, declared once: a table of functions for a device and an element type T, the
type of weights and activations. The header of each family defines what its ops compute, with shapes, types and sources.
The implementations are in llmc/cpu and llmc/cuda, in files of the same names.

  ops<T>(device).layernorm_forward(device, out, mean, rstd, inp, weight, bias, N, C, eps);

The model, the optimizer and the trainer call ops only through this table, so they are compiled once, independently of
the instruction sets that kernels are compiled for (llmc/cpu/kernels.h).
*/
#pragma once
#include "llmc/ops/adamw.h"
#include "llmc/ops/attention.h"
#include "llmc/ops/attention_decode.h"
#include "llmc/ops/buffers.h"
#include "llmc/ops/cross_entropy.h"
#include "llmc/ops/document_starts.h"
#include "llmc/ops/dropout.h"
#include "llmc/ops/embedding.h"
#include "llmc/ops/gelu.h"
#include "llmc/ops/global_norm.h"
#include "llmc/ops/layernorm.h"
#include "llmc/ops/matmul.h"
#include "llmc/ops/matmul_fp8.h"
#include "llmc/ops/muon.h"
#include "llmc/ops/newton_schulz.h"
#include "llmc/ops/qk_rmsnorm.h"
#include "llmc/ops/quantize.h"
#include "llmc/ops/relu_squared.h"
#include "llmc/ops/residual_mix.h"
#include "llmc/ops/rmsnorm.h"
#include "llmc/ops/rotary.h"
#include "llmc/ops/smear.h"
#include "llmc/ops/step_scalars.h"
#include "llmc/ops/swiglu.h"
#include "llmc/ops/value_embedding.h"
#include "llmc/ops/weight_average.h"
#include "llmc/ops/weight_hash.h"

// All families in one table.
template <class... Families>
struct OpTable : Families... {};

template <class Device, class T>
using Ops =
    OpTable<AdamwOps<Device, T>, AttentionOps<Device, T>, AttentionDecodeOps<Device, T>, BufferOps<Device>,
            CrossEntropyOps<Device, T>, DocumentStartsOps<Device>, DropoutOps<Device, T>, EmbeddingOps<Device, T>,
            GeluOps<Device, T>, GlobalNormOps<Device>, LayernormOps<Device, T>, MatmulOps<Device, T>,
            MatmulFp8Ops<Device, T>, MuonOps<Device, T>, NewtonSchulzOps<Device, T>, QkRmsnormOps<Device, T>,
            QuantizeOps<Device, T>, ReluSquaredOps<Device, T>, ResidualMixOps<Device, T>, RmsnormOps<Device, T>,
            RotaryOps<Device, T>, SmearOps<Device, T>, StepScalarsOps<Device>, SwigluOps<Device, T>,
            ValueEmbeddingOps<Device, T>, WeightAverageOps<Device>, WeightHashOps<Device, T>>;
