/*
The sizes of what a forward pass computed, as root mean squares: whether they depend on the width is the coordinate
check of a parametrization (Yang et al., 2022, arXiv:2203.03466, appendix D; scripts/coordinate_check.py).

  model.forward(tokens, B, T);
  activation_sizes(model)["logits"]

embedding: the first block's input. attention, mlp: what the last block adds to the residual stream. residual: its sum.
logits: of the first rows, before the softcap.
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>
#include "llmc/base/bf16.h"  // to_float
#include "llmc/model/gpt.h"  // Gpt

template <class Device, class T>
std::map<std::string, double> activation_sizes(Gpt<Device, T>& model) {
    const GptShape& s = model.shape;
    const Activations<T>& acts = model.acts;
    const int64_t N = model.B * model.seq_len, C = s.channels, Vp = s.padded_vocab_size();
    const auto values = [&](const T* data, int64_t n) {
        std::vector<T> stored(static_cast<size_t>(n));
        copy_to_host(model.device, stored.data(), data, n);
        std::vector<double> all;
        for (const T x : stored) all.push_back(double(to_float(x)));
        return all;
    };
    const auto rms = [](const std::vector<double>& x) {
        double squares = 0;
        for (const double value : x) squares += value * value;
        return std::sqrt(squares / double(std::max<size_t>(1, x.size())));
    };
    const auto added = [](std::vector<double> after, const std::vector<double>& before) {
        for (size_t i = 0; i < after.size(); i++) after[i] -= before[i];
        return after;
    };
    const auto &first = acts.blocks.front(), &last = acts.blocks.back();
    const bool is_mixed = s.architecture.residual_lambdas, has_backout = s.architecture.backout;
    const std::vector<double> in = values(last.residual_in, N * C), mid = values(last.residual_mid, N * C),
                              out = values(has_backout ? acts.residual_last : acts.residual_out, N * C);
    const int64_t rows = std::min(N, acts.head_rows);
    return {{"embedding", rms(values(is_mixed ? first.residual_before : first.residual_in, N * C))},
            {"attention", rms(added(mid, in))},
            {"mlp", rms(added(out, mid))},
            {"residual", rms(out)},
            // The columns of the padding are 0.
            {"logits", rms(values(model.logits(0, rows), rows * Vp)) * std::sqrt(double(Vp) / double(s.vocab_size))}};
}
