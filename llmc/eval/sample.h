/*
Sampling: one token at a time from the softmax of the last position's logits, with temperature, top-k and top-p (nucleus
sampling: of the tokens left by top-k, the most probable ones whose probabilities add up to p; Holtzman et al., 2019,
arXiv:1904.09751).

Each token depends on the T tokens before it. They are recomputed for every token or read from a KV cache
(gpt_decoder.h).
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>
#include "llmc/base/bf16.h"           // bf16
#include "llmc/base/rng.h"            // Rng
#include "llmc/eval/batches.h"        // StopAsked
#include "llmc/eval/sample_config.h"  // SampleConfig
#include "llmc/model/gpt.h"           // Gpt
#include "llmc/model/gpt_decoder.h"   // GptDecoder
#include "llmc/ops/cross_entropy.h"   // Softcap

// Draws an index from logits (V).
int32_t draw(const std::vector<float>& logits, const SampleConfig& config, Rng& rng);

// The first of `stored`, which the head computed, softcapped
void read_logits(std::vector<float>& logits, const float* stored, Softcap softcap);
void read_logits(std::vector<float>& logits, const bf16* stored, Softcap softcap);

// Where the context of a token comes from.
//   recompute   a forward pass over the last T tokens for each token
//   cached      a KV cache while the text has at most T tokens, then as recompute. The logits differ only by the order
//               of sums, and on the CPU not at all.
//   sliding     a KV cache throughout: beyond T the layers' windows slide. Needs rotary positions, else as cached.
enum class Context { recompute, cached, sliding };

// Continues each of the prompts, which must not be empty, with random numbers of its own. each(sample, token) receives
// every new token and returns whether that sample continues. Only tokens below `num_ids` are drawn.
template <class Device, class Type, class Each>
void sample_each(Gpt<Device, Type>& model, const std::vector<std::vector<int32_t>>& prompts, int64_t T, int64_t num_ids,
                 const SampleConfig& config, Context context, std::vector<Rng>& rngs, Each&& each) {
    const GptShape& shape = model.shape;
    const size_t samples = prompts.size();
    int64_t longest = 0;
    for (const std::vector<int32_t>& prompt : prompts) longest = std::max(longest, int64_t(prompt.size()));
    const int64_t all = longest + config.num_tokens;
    const bool slides = context == Context::sliding && shape.architecture.rotary_positions;
    const int64_t max_length = slides ? all : std::min(T, all);  // of the text while the cache is used
    std::optional<GptDecoder<Device, Type>> decoder;
    if (context != Context::recompute && longest <= T)
        decoder.emplace(model, int64_t(samples), std::min(T, all), max_length);

    std::vector<std::vector<int32_t>> texts = prompts;
    std::vector<int32_t> newest(samples);
    std::vector<bool> goes_on(samples, true);
    std::vector<Type> stored(size_t(shape.vocab_size));
    std::vector<float> logits(static_cast<size_t>(num_ids));
    typename Device::template ToDevice<int32_t> to_device(model.device, T);
    for (int i = 0; i < config.num_tokens && std::count(goes_on.begin(), goes_on.end(), true) > 0; i++) {
        const bool from_cache = decoder && longest + i <= max_length;
        const Type *rows = nullptr, *row = nullptr;  // of logits, one per sample, with a stride of Vp; this sample's
        if (from_cache && i > 0) {
            decoder->decode(newest);
            rows = model.logits(0, int64_t(samples));
        }
        for (size_t sample = 0; sample < samples; sample++) {
            if (!goes_on[sample]) continue;
            std::vector<int32_t>& text = texts[sample];
            const auto length = int64_t(text.size());
            if (!from_cache) {
                const int64_t seen = std::min(length, T);
                model.forward(to_device.send(text.data() + length - seen, seen), 1, seen);
                row = model.logits(seen - 1, 1);
            } else if (i > 0) {
                row = rows + int64_t(sample) * shape.padded_vocab_size();
            } else if (sample > 0 && prompts[sample] == prompts[sample - 1]) {
                decoder->copy(int64_t(sample) - 1, int64_t(sample));  // with the same logits
            } else {
                decoder->prefill(int64_t(sample), text);
                row = model.logits(length - 1, 1);
            }
            copy_to_host(model.device, stored.data(), row, shape.vocab_size);
            read_logits(logits, stored.data(), shape.architecture.softcap);
            newest[sample] = draw(logits, config, rngs[sample]);
            text.push_back(newest[sample]);
            goes_on[sample] = each(sample, newest[sample]);
        }
    }
}

// Continues a prompt by config.num_tokens tokens and returns these; fewer if `stop` asks for that.
template <class Device, class Type>
std::vector<int32_t> sample(Gpt<Device, Type>& model, const std::vector<int32_t>& prompt, int64_t T, int64_t num_ids,
                            const SampleConfig& config, Context context, Rng& rng, const StopAsked& stop = {}) {
    std::vector<Rng> rngs = {rng};
    std::vector<int32_t> tokens;
    sample_each(model, {prompt}, T, num_ids, config, context, rngs, [&](size_t, int32_t token) {
        tokens.push_back(token);
        return !(stop && stop());
    });
    rng = rngs[0];
    return tokens;
}
