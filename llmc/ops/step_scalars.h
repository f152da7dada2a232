/*
What a training step adds up and decides where the data is (StepScalars in llmc/base/op_types.h).
*/
#pragma once
#include <cstdint>
#include "llmc/base/op_types.h"  // StepScalars

template <class Device>
struct StepScalarsOps {
    void (*add_mean_loss)(Device&, StepScalars* s, const float* losses, int64_t n, double weight);
    void (*decide_step)(Device&, StepScalars* s, double grad_clip);
};
