/*
The mean loss over the beginning of a data set, in nats per token: the same batches each time.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include "llmc/data/loader.h"  // DataLoader
#include "llmc/model/gpt.h"    // Gpt

// Whole batches of B x T up to `tokens` tokens, at least one; 0 means as many as there are.
template <class Device, class Type>
double evaluate(Gpt<Device, Type>& model, DataLoader& data, int64_t B, int64_t T, int64_t tokens) {
    const int64_t all = data.num_windows() / B;
    const int64_t batches = std::max<int64_t>(1, tokens == 0 ? all : std::min(all, tokens / (B * T)));
    data.restore({});
    double sum = 0;
    typename Device::template ToDevice<int32_t> tokens_to_device(model.device, B * T),
        targets_to_device(model.device, B * T);
    for (int64_t i = 0; i < batches; i++) {
        const Batch& batch = data.next();
        model.forward(tokens_to_device.send(batch.tokens.data(), B * T), B, T);
        sum += model.loss(targets_to_device.send(batch.targets.data(), B * T));
    }
    return sum / double(batches);
}
