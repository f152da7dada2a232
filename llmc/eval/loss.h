/*
The mean loss over the beginning of a data set, in nats per token, and the same in bits per byte of its text, which
tokenizers of any kind can be compared by: over the targets t that stand for text, with b_t bytes each,

  bits per byte = sum of losses_t / (ln 2  sum of b_t)

The same batches each time.
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
#include "llmc/model/gpt.h"       // Gpt

struct Evaluation {
    double loss = NAN;
    double bits_per_byte = NAN;  // not known without a tokenizer
};

// Whole batches of B x T up to `tokens` tokens, at least one; 0 means as many as there are. The ranks share the work,
// and all come to the same result, to the same bits as one rank alone. `token_bytes` has the bytes of each token, 0 of
// those that stand for no text; empty: not known.
template <class Device, class Type>
Evaluation evaluate(Gpt<Device, Type>& model, DataLoader& data, Ranks& ranks, int64_t B, int64_t T, int64_t tokens,
                    const std::vector<int32_t>& token_bytes = {}) {
    const int64_t all = data.num_windows() / B;
    const int64_t batches = std::max<int64_t>(1, tokens == 0 ? all : std::min(all, tokens / (B * T)));
    data.restore({});
    struct Sums {
        ExactSum loss, text_loss;  // of means over batches; of tokens
        int64_t bytes = 0;
    } sums;
    typename Device::template ToDevice<int32_t> tokens_to_device(model.device, B * T),
        targets_to_device(model.device, B * T);
    std::vector<float> losses(token_bytes.empty() ? 0 : size_t(B * T));
    const auto own_share = [&] {
        for (int64_t i = ranks.rank; i < batches; i += ranks.world_size) {
            const Batch& batch = data.next();
            model.forward(tokens_to_device.send(batch.tokens.data(), B * T), B, T);
            sums.loss.add(model.loss(targets_to_device.send(batch.targets.data(), B * T)));
            if (token_bytes.empty()) continue;
            copy_to_host(model.device, losses.data(), model.acts.losses, B * T);
            for (size_t t = 0; t < losses.size(); t++) {
                const int32_t bytes = token_bytes[size_t(batch.targets[t])];
                if (bytes > 0) sums.text_loss.add(losses[t]);
                sums.bytes += bytes;
            }
        }
    };
    share_errors(ranks, own_share);  // of the data, which one rank may find
    const std::vector<Sums> of_ranks = ranks.all_gather_values(sums, "its sums of the loss");
    sums = {};
    for (const Sums& theirs : of_ranks) {
        sums.loss.add(theirs.loss);
        sums.text_loss.add(theirs.text_loss);
        sums.bytes += theirs.bytes;
    }
    Evaluation result{.loss = sums.loss.value() / double(batches)};
    if (sums.bytes > 0) result.bits_per_byte = sums.text_loss.value() / (std::numbers::ln2 * double(sums.bytes));
    return result;
}
