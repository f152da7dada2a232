/*
Sampling: a token at a time from the softmax of the last position's logits, sharpened by a temperature and cut to the
top k. Every token recomputes the whole context, the last T tokens: exact, and fast enough for the samples of a training
run.
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>
#include "llmc/base/bf16.h"  // to_float
#include "llmc/base/rng.h"   // Rng
#include "llmc/model/gpt.h"  // Gpt

struct SampleConfig {
    int num_tokens = 256;
    double temperature = 0.8;  // 0: always the likeliest token
    int top_k = 0;             // 0: all
};

// The index drawn from logits (V).
inline int32_t draw(const std::vector<float>& logits, const SampleConfig& config, Rng& rng) {
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    // Equal logits in the order of their ids, so that the choice does not depend on the sort.
    const auto likelier = [&](int32_t a, int32_t b) {
        return logits[size_t(a)] != logits[size_t(b)] ? logits[size_t(a)] > logits[size_t(b)] : a < b;
    };
    if (config.temperature == 0) return *std::min_element(order.begin(), order.end(), likelier);
    if (config.top_k > 0 && size_t(config.top_k) < order.size()) {
        std::partial_sort(order.begin(), order.begin() + config.top_k, order.end(), likelier);
        order.resize(size_t(config.top_k));
    }
    float largest = logits[size_t(order[0])];
    for (int32_t id : order) largest = std::max(largest, logits[size_t(id)]);
    std::vector<double> sums;
    double sum = 0;
    for (int32_t id : order) sums.push_back(sum += std::exp(double(logits[size_t(id)] - largest) / config.temperature));
    const double point = rng.uniform() * sum;
    const auto chosen = std::upper_bound(sums.begin(), sums.end(), point);
    return order[size_t(std::min<ptrdiff_t>(chosen - sums.begin(), ptrdiff_t(order.size()) - 1))];
}

// Continues `tokens`, which must not be empty, by config.num_tokens; returns the new ones.
template <class Device, class Type>
std::vector<int32_t> sample(Gpt<Device, Type>& model, std::vector<int32_t> tokens, int64_t T,
                            const SampleConfig& config, Rng& rng) {
    const size_t prompt_size = tokens.size();
    std::vector<Type> stored(size_t(model.shape.vocab_size));
    std::vector<float> logits(stored.size());
    typename Device::template ToDevice<int32_t> to_device(model.device, T);
    for (int i = 0; i < config.num_tokens; i++) {
        const int64_t context = std::min<int64_t>(int64_t(tokens.size()), T);
        model.forward(to_device.send(tokens.data() + tokens.size() - context, context), 1, context);
        copy_to_host(model.device, stored.data(), model.logits(context - 1, 1), model.shape.vocab_size);
        for (size_t v = 0; v < logits.size(); v++) logits[v] = to_float(stored[v]);
        tokens.push_back(draw(logits, config, rng));
    }
    return {tokens.begin() + ptrdiff_t(prompt_size), tokens.end()};
}
