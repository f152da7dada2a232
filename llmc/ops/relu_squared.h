/*
Squared ReLU, the activation of nanochat and modded-nanogpt (So et al., 2021, arXiv:2109.08668):

  out = max(inp, 0)^2          dinp = 2 max(inp, 0) dout
Elementwise over n values of T; backward overwrites dinp, which may be dout. Each result is rounded once, since doubling
is exact.
*/
#pragma once
#include <cstdint>

template <class Device, class T>
struct ReluSquaredOps {
    void (*relu_squared_forward)(Device&, T* out, const T* inp, int64_t n);
    void (*relu_squared_backward)(Device&, T* dinp, const T* dout, const T* inp, int64_t n);
};
