/*
Loads of as many floats as a Pack<T> has elements, for kernels that read f32 beside T: two 16-byte accesses for bf16.

  float g[Pack<T>::size];
  load_floats(g, grad + i);      16-byte aligned, as everywhere
*/
#pragma once
#include "llmc/cuda/device.cuh"  // Pack, load16, store16

template <int P>
DEVICE void load_floats(float (&to)[P], const float* from) {
    for (int k = 0; k < P; k += Pack<float>::size) {
        const Pack<float> pack = load16(from + k);
        for (int i = 0; i < pack.size; i++) to[k + i] = pack[i];
    }
}

template <int P>
DEVICE void store_floats(float* to, const float (&from)[P]) {
    for (int k = 0; k < P; k += Pack<float>::size) {
        Pack<float> pack;
        for (int i = 0; i < pack.size; i++) pack[i] = from[k + i];
        store16(to + k, pack);
    }
}
