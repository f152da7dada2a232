// Every op on the CPU, for code that is written for any device: include this one and instantiate with Cpu.
#pragma once
#include "llmc/cpu/adamw.h"
#include "llmc/cpu/attention.h"
#include "llmc/cpu/cross_entropy.h"
#include "llmc/cpu/embedding.h"
#include "llmc/cpu/gelu.h"
#include "llmc/cpu/global_norm.h"
#include "llmc/cpu/layernorm.h"
#include "llmc/cpu/matmul.h"
#include "llmc/cpu/relu_squared.h"
#include "llmc/cpu/rmsnorm.h"
#include "llmc/cpu/rotary.h"
#include "llmc/cpu/swiglu.h"
