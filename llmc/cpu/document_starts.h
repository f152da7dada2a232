/*
Starts of documents in packed rows, on the CPU: llmc/ops/document_starts.h.
*/
#pragma once
#include <cstdint>
#include "llmc/cpu/device.h"  // Cpu, parallel_for

inline void document_starts(Cpu& cpu, int32_t* starts, const int32_t* tokens, int32_t first_token, int64_t B,
                            int64_t T) {
    const OpScope op(cpu, __func__);
    parallel_for(cpu, B, [=](int64_t b) {
        int32_t start = 0;
        for (int64_t t = 0; t < T; t++) {
            if (tokens[b * T + t] == first_token) start = int32_t(t);
            starts[b * T + t] = start;
        }
    });
}
