/*
Finds where documents begin in packed rows (llmc/ops/document_starts.h):

  starts[b,t] = the largest s <= t with s = 0 or tokens[b,s] = first_token

  tokens (B, T) int32     starts (B, T) int32

Work      a block scans a row, kStartsThreads tokens per round. A lane finds the last start up to its token by a ballot
          of its warp, else takes the last one in the warps before it, else that of earlier rounds. Integers only
Bytes     8 B T
Accuracy  exact
Requires  nothing
*/
#pragma once
#include <cstdint>
#include "llmc/cuda/device.cuh"  // launch
#include "llmc/ops/op_cost.h"    // elements_cost

inline constexpr int kStartsThreads = 1024, kStartsWarps = kStartsThreads / kWarp;

template <int kUnused = 0>
__global__ void __launch_bounds__(kStartsThreads)
    document_starts_kernel(int32_t* starts, const int32_t* tokens, int32_t first_token, int64_t T) {
    SMEM_STATIC(int, last, [kStartsWarps]);  // the last start of a document among each warp's tokens; -1: none
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    starts += blockIdx.x * T, tokens += blockIdx.x * T;
    int before = 0;  // the start of the document that continues into this round
    for (int64_t t0 = 0; t0 < T; t0 += kStartsThreads) {
        const int64_t t = t0 + threadIdx.x;
        const uint32_t begins = __ballot_sync(kAllLanes, t < T && tokens[t] == first_token);
        const uint32_t own = begins & (kAllLanes >> (kWarp - 1 - lane));  // those up to this lane
        const int end = int(t0) + (warp + 1) * kWarp - 1;                 // the warp's last token
        if (lane == 0) last[warp] = begins ? end - __clz(int(begins)) : -1;
        __syncthreads();
        int earlier = before;
        for (int w = 0; w < kStartsWarps; w++) {
            if (w < warp) earlier = max(earlier, last[w]);
            before = max(before, last[w]);
        }
        if (t < T) starts[t] = own ? end - __clz(int(own)) : earlier;
        __syncthreads();  // all threads have read `last`
    }
}

inline void document_starts(Cuda& cuda, int32_t* starts, const int32_t* tokens, int32_t first_token, int64_t B,
                            int64_t T) {
    const OpScope op(cuda, __func__, elements_cost<int32_t>(2, 0, B * T));
    launch(cuda, "document_starts", document_starts_kernel<>, unsigned(B), kStartsThreads, 0, starts, tokens,
           first_token, T);
}
