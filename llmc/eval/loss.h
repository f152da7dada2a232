/*
Validation loss: the mean over the learned targets at the beginning of a data set, in nats per token. Also in bits per
byte of text, which can be compared between tokenizers. It is computed over the targets t that stand for text, of b_t
bytes each:

  bits per byte = sum of losses_t / (ln 2  sum of b_t)

Every call uses the same tokens, at any batch size and number of ranks: the last batch is filled with rows whose targets
are not learned.
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <vector>
#include "llmc/base/exact_sum.h"  // ExactSum
#include "llmc/comm/ranks.h"      // Ranks
#include "llmc/data/loader.h"     // DataLoader
#include "llmc/eval/batches.h"    // each_batch
#include "llmc/model/gpt.h"       // Gpt

struct Evaluation {
    double loss = NAN;
    double bits_per_byte = NAN;  // NaN without a tokenizer
    bool is_stopped = false;     // ended early: there is no result
    int64_t targets = 0;         // those that are learned; 0: there is no loss
};

// Evaluates the first `tokens` / T rows of T tokens, but at least one; 0: the whole data set. B: rows at a time.
// Collective: the ranks divide the batches, and all return the same result, with the bits of a single rank.
// `token_bytes`: the length of each token's text, 0 for special tokens; empty if not known. `stop`: see batches.h.
template <class Device, class Type>
Evaluation evaluate(Gpt<Device, Type>& model, DataLoader& data, Ranks& ranks, int64_t B, int64_t T, int64_t tokens,
                    const std::vector<int32_t>& token_bytes = {}, const StopAsked& stop = {}) {
    const int64_t all = data.num_windows();
    const int64_t rows = std::max<int64_t>(1, tokens == 0 ? all : std::min(all, tokens / T));
    const int64_t batches = (rows + B - 1) / B;
    data.restore({});
    struct Sums {
        ExactSum loss, text_loss;  // of means over batches; of the losses of text tokens
        int64_t targets = 0, bytes = 0;
    } sums;
    typename Device::template ToDevice<int32_t> tokens_to_device(model.device, B * T),
        targets_to_device(model.device, B * T);
    std::vector<int32_t> targets;
    std::vector<float> losses(token_bytes.empty() ? 0 : size_t(B * T));
    const bool is_complete = each_batch(ranks, batches, stop, [&](int64_t i) {
        const Batch& batch = data.next();
        targets = batch.targets;
        std::fill(targets.begin() + std::min(B, rows - i * B) * T, targets.end(), -1);
        model.forward(tokens_to_device.send(batch.tokens.data(), B * T), B, T);
        sums.loss.add(model.loss(targets_to_device.send(targets.data(), B * T)));
        for (const int32_t target : targets) sums.targets += target >= 0;
        if (token_bytes.empty()) return;
        copy_to_host(model.device, losses.data(), model.acts.losses, B * T);
        for (size_t t = 0; t < losses.size(); t++) {
            const int32_t target = targets[t], bytes = target < 0 ? 0 : token_bytes[size_t(target)];
            if (bytes > 0) sums.text_loss.add(losses[t]);
            sums.bytes += bytes;
        }
    });
    if (!is_complete) return {.is_stopped = true};
    sums = ranks.joined_value(sums, "its sums of the loss", [](Sums all, const Sums& theirs) {
        all.loss.add(theirs.loss);
        all.text_loss.add(theirs.text_loss);
        all.targets += theirs.targets;
        all.bytes += theirs.bytes;
        return all;
    });
    // The mean over all learned tokens: means over batches count the targets that are not learned, too.
    const double share = sums.targets > 0 ? double(batches * B * T) / double(sums.targets) : double(NAN);
    Evaluation result{.loss = sums.loss.value() / double(batches) * share, .targets = sums.targets};
    if (sums.bytes > 0) result.bits_per_byte = sums.text_loss.value() / (std::numbers::ln2 * double(sums.bytes));
    return result;
}
