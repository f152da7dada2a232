/*
Residual mix: adds two streams with learned factors. nanochat mixes the input of the first block into that of each
block, and subtracts a part of the middle of the network from its end:

  out = a inp + b_sign b inp0
  dinp = a dout,   dinp0 (+)= b_sign b dout,   da += sum of dout inp,   db += b_sign sum of dout inp0

  inp, inp0, out (n) T     a, b: one parameter each, T in device memory; forward: null for a factor of one; backward:
  a may be null, b not     da, db float
out may be inp, and dinp may be dout. If a is null and dinp == dout, dinp is unchanged and inp is not read. dinp0 is
overwritten, or accumulated into with add_to_dinp0. The fused form is the end of a block, the mix and the next norm:

  residual = inp1 + inp2,   mixed = a residual + b inp0,   out = rmsnorm(mixed), without weight   (N, C), rstd (N) float

residual_add is the mix with both factors one:   out = inp1 + inp2     (n); out may be inp1
*/
#pragma once
#include <cstdint>

template <class Device, class T>
struct ResidualMixOps {
    void (*residual_mix_forward)(Device&, T* out, const T* inp, const T* inp0, const T* a, const T* b, float b_sign,
                                 int64_t n);
    void (*residual_mix_backward)(Device&, T* dinp, T* dinp0, float* da, float* db, const T* dout, const T* inp,
                                  const T* inp0, const T* a, const T* b, float b_sign, bool add_to_dinp0, int64_t n);
    void (*residual_mix_rmsnorm_forward)(Device&, T* residual, T* mixed, T* out, float* rstd, const T* inp1,
                                         const T* inp2, const T* inp0, const T* a, const T* b, int64_t N, int64_t C,
                                         float eps);

    void residual_add(Device& device, T* out, const T* inp1, const T* inp2, int64_t n) const {
        residual_mix_forward(device, out, inp1, inp2, nullptr, nullptr, 1.f, n);
    }
};
