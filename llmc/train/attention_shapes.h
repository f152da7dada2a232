// The attention calls of a training step, for cuDNN's plans and the size of the workspace.
#pragma once
#include <cstdint>
#include <set>
#include <vector>
#include "llmc/cuda/attention/attention_plans.h"  // AttentionKey, key_of
#include "llmc/model/shape.h"                     // GptShape
#include "llmc/ops/attention.h"                   // AttentionShape
#include "llmc/run/run_flags.h"                   // NumbersByStep

// The shapes of the steps' batches: each distinct window of the model once. `lengths`: of steps with as many tokens in
// shorter sequences.
inline std::vector<AttentionShape> attention_shapes(const GptShape& s, int64_t B, int64_t seq_len, bool documents,
                                                    const NumbersByStep& lengths = {}) {
    static constexpr int32_t kSome = 0;  // attention asks whether there are documents, not where
    std::set<AttentionKey> keys;
    std::vector<AttentionShape> shapes;
    const auto add = [&](int64_t T) {
        for (const int64_t window : layer_windows(s.architecture, s.num_layers, s.max_seq_len)) {
            const AttentionShape shape = {.B = B * seq_len / T,
                                          .T = T,
                                          .NH = s.num_heads,
                                          .NKV = s.kv_heads(),
                                          .HS = s.head_size(),
                                          .window = window,
                                          .starts = documents ? &kSome : nullptr};
            if (keys.insert(key_of(shape)).second) shapes.push_back(shape);
        }
    };
    add(seq_len);
    for (const auto& [first, length] : lengths)
        if (seq_len % length == 0) add(length);  // others are refused later
    return shapes;
}
