/*
Sampling: a token at a time from the softmax of the last position's logits, sharpened by a temperature and cut to the
top k and to the nucleus, the likeliest tokens that make up the part p of what is left (Holtzman et al., 2019,
arXiv:1904.09751).

What a token is drawn from is the last T tokens: computed anew for each one, or from kept keys and values (kv_cache.h).
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>
#include "llmc/base/bf16.h"       // to_float
#include "llmc/base/rng.h"        // Rng
#include "llmc/model/gpt.h"       // Gpt
#include "llmc/model/kv_cache.h"  // KvCache

struct SampleConfig {
    int num_tokens = 256;
    double temperature = 0.8;  // 0: always the likeliest token
    int top_k = 0;             // 0: all
    double top_p = 1;          // above 0; 1: all
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
    const auto weight = [&](int32_t id) { return std::exp(double(logits[size_t(id)] - largest) / config.temperature); };
    if (config.top_p < 1) {
        const auto less_likely = [&](int32_t a, int32_t b) { return likelier(b, a); };
        double all = 0, part = 0;
        for (int32_t id : order) all += weight(id);
        std::vector<int32_t> nucleus;
        std::make_heap(order.begin(), order.end(), less_likely);
        while (nucleus.empty() || (part < config.top_p * all && !order.empty())) {
            std::pop_heap(order.begin(), order.end(), less_likely);
            nucleus.push_back(order.back()), order.pop_back();
            part += weight(nucleus.back());
        }
        order = nucleus;
    }
    std::vector<double> sums;
    double sum = 0;
    for (int32_t id : order) sums.push_back(sum += weight(id));
    const double point = rng.uniform() * sum;
    const auto chosen = std::upper_bound(sums.begin(), sums.end(), point);
    return order[size_t(std::min<ptrdiff_t>(chosen - sums.begin(), ptrdiff_t(order.size()) - 1))];
}

// How tokens come by those before them.
//   recomputed   each one computes the last T anew
//   kept         from kept keys and values while the text is no longer than T, with the same logits but for the order
//   of
//                sums, which on the CPU is the same too; then recomputed
//   sliding      with rotary positions, kept for ever: beyond T the layers' windows slide on (kv_cache.h)
enum class Context { recomputed, kept, sliding };

// Continues a prompt, which must not be empty, once for each of rngs: each(sample, token) hears of every new token, and
// says whether that sample is to go on. Tokens below `num_ids` are drawn.
template <class Device, class Type, class Each>
void sample_each(Gpt<Device, Type>& model, const std::vector<int32_t>& prompt, int64_t T, int64_t num_ids,
                 const SampleConfig& config, Context context, std::vector<Rng>& rngs, Each&& each) {
    const GptShape& shape = model.shape;
    const size_t samples = rngs.size();
    const int64_t all = int64_t(prompt.size()) + config.num_tokens;
    // What the cache takes: tokens up to `most`, the prompt in one pass of at most T.
    const bool slides = context == Context::sliding && shape.architecture.rotary_positions;
    const int64_t most = slides ? all : std::min(T, all);
    std::optional<KvCache<Device, Type>> cache;
    if (context != Context::recomputed && int64_t(prompt.size()) <= T)
        cache.emplace(model.device, shape, model.windows, int64_t(samples), std::min(T, all), most);

    std::vector<std::vector<int32_t>> texts(samples, prompt);
    std::vector<int32_t> newest(samples);
    std::vector<bool> goes_on(samples, true);
    std::vector<Type> stored(size_t(shape.vocab_size));
    std::vector<float> logits(static_cast<size_t>(num_ids));
    typename Device::template ToDevice<int32_t> to_device(model.device, T);
    for (int i = 0; i < config.num_tokens && std::count(goes_on.begin(), goes_on.end(), true) > 0; i++) {
        const int64_t length = int64_t(prompt.size()) + i;
        const bool from_cache = cache && length <= most;
        const Type* rows = nullptr;  // of logits, Vp apart
        if (from_cache && i == 0) {
            model.prefill(*cache, 0, prompt);
            for (size_t sample = 1; sample < samples; sample++) cache->copy_row(0, int64_t(sample));
        } else if (from_cache) {
            model.decode(*cache, newest);
            rows = model.logits(0, int64_t(samples));
        }
        for (size_t sample = 0; sample < samples; sample++) {
            if (!goes_on[sample]) continue;
            std::vector<int32_t>& text = texts[sample];
            const Type* row = nullptr;
            if (!from_cache) {
                const int64_t seen = std::min(length, T);
                model.forward(to_device.send(text.data() + length - seen, seen), 1, seen);
                row = model.logits(seen - 1, 1);
            } else if (i == 0) {
                row = model.logits(length - 1, 1);
            } else {
                row = rows + int64_t(sample) * shape.padded_vocab_size();
            }
            copy_to_host(model.device, stored.data(), row, shape.vocab_size);
            for (size_t v = 0; v < logits.size(); v++)
                logits[v] = capped(to_float(stored[v]), shape.architecture.softcap);
            newest[sample] = draw(logits, config, rngs[sample]);
            text.push_back(newest[sample]);
            goes_on[sample] = each(sample, newest[sample]);
        }
    }
}

// Continues a prompt by config.num_tokens; returns the new ones.
template <class Device, class Type>
std::vector<int32_t> sample(Gpt<Device, Type>& model, const std::vector<int32_t>& prompt, int64_t T,
                            const SampleConfig& config, Context context, Rng& rng) {
    std::vector<Rng> rngs = {rng};
    std::vector<int32_t> tokens;
    sample_each(model, prompt, T, model.shape.vocab_size, config, context, rngs, [&](size_t, int32_t token) {
        tokens.push_back(token);
        return true;
    });
    rng = rngs[0];
    return tokens;
}
