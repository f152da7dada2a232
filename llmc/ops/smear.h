/*
Smear: adds to each token's embedding that of the token before it, times a gate computed from the token's first G
channels (modded-nanogpt's and nanochat's "smear"):

  out[b,0] = inp[b,0],   out[b,t] = inp[b,t] + lambda sigmoid(w . inp[b,t,0:G]) inp[b,t-1]

  inp, out (B, T, C) T     gate_weight w (G) T, G <= C     lambda (1) T     dgate_weight, dlambda float
out must not be inp. Backward, with s_t = sigmoid(w . inp[b,t,0:G]), d_t = sum over C of dout[b,t] inp[b,t-1] for t > 0,
and u_t = d_t lambda s_t (1 - s_t):

  dinp[b,t] = dout[b,t] + lambda s_(t+1) dout[b,t+1],   and + u_t w in the first G channels
  dlambda += sum of d_t s_t,   dgate_weight += sum of u_t inp[b,t,0:G]
*/
#pragma once
#include <cstdint>

// A learned gate, between 0 and 1, as value embeddings have it, too: the sigmoid of a weighted sum of channels.
struct GateOpening {
    float open, slope;  // the sigmoid, and its derivative: open (1 - open)
};

template <class Device, class T>
struct SmearOps {
    void (*smear_forward)(Device&, T* out, const T* inp, const T* gate_weight, const T* lambda, int64_t B, int64_t T_,
                          int64_t C, int64_t G);
    void (*smear_backward)(Device&, T* dinp, float* dgate_weight, float* dlambda, const T* dout, const T* inp,
                           const T* gate_weight, const T* lambda, int64_t B, int64_t T_, int64_t C, int64_t G);
};
