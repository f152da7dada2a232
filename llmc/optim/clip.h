/*
Clipping by the global norm (Pascanu et al., 2013, arXiv:1211.5063), as torch.nn.utils.clip_grad_norm_ does it.
*/
#pragma once
#include <cmath>
#include "llmc/model/parameters.h"  // Buffer

// The L2 norm over all gradients; not finite if any of them is not.
template <class Device>
double gradient_norm(Device& device, const Buffer<Device, float>& gradients) {
    double squared = 0;
    global_norm_squared(device, &squared, gradients.data, gradients.size);  // the gaps between parameters are zero
    return std::sqrt(squared);
}

// What to multiply the gradients by. A limit of 0 means none.
inline double clip_scale(double norm, double limit) { return limit > 0 && norm > limit ? limit / (norm + 1e-6) : 1; }
