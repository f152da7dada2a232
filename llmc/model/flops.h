/*
FLOPs of training per token, from the list of parameters:

  6 N + 12 CQ * (keys that a token sees, summed over the layers)

N counts the parameters that multiply activations: all matrices of the blocks and lm_head, no embeddings, norms or
biases, and no padding of the vocabulary. A multiply-add is two FLOPs; backward takes two matmuls for each of forward's,
so a parameter takes 6 per token (Kaplan et al., 2020, arXiv:2001.08361, section 2.1), and 4 if it does not learn.
Attention multiplies each query of CQ channels, over all heads, with its keys and their values (PaLM: Chowdhery et al.,
2022, arXiv:2204.02311, appendix B).
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>
#include "llmc/model/parameters.h"  // ParameterList

// Which keys are counted.
enum class AttentionFlops {
    causal,    // only those that a token sees: T / 2 on average, fewer with a window
    unmasked,  // all T, or the whole window, for every token: the convention of PaLM and nanochat
};

// N of the formula above; of all parameters, or only of those that do not learn.
inline int64_t matmul_parameters(const ParameterList& list, bool only_frozen = false) {
    int64_t sum = 0;
    for (const Parameter& p : list) {
        using enum ParameterGroup;
        const bool is_lm_head = p.group == head || (p.group == embedding && list.model.architecture.tied_head);
        if (only_frozen && !p.is_frozen) continue;
        if (p.group == matrices || is_lm_head) sum += p.exported_rows * (p.size() / p.shape[0]);
    }
    return sum;
}

// FLOPs per token, forward and backward, for sequences of T tokens.
inline double flops_per_token(const ParameterList& list, int64_t T, AttentionFlops count = AttentionFlops::causal) {
    const GptShape& s = list.model;
    double keys = 0;
    for (const int64_t window : layer_windows(s.architecture, s.num_layers, s.max_seq_len)) {
        const auto w = double(window < 0 ? T : std::min(window, T));
        keys += count == AttentionFlops::causal ? w - w * w / (2 * double(T)) : w;
    }
    return 6 * double(matmul_parameters(list)) - 2 * double(matmul_parameters(list, true)) +
           12 * double(s.query_channels()) * keys;
}
