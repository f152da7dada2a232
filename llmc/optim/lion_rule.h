// Lion (Chen et al., 2023, arXiv:2302.06675), sharded by element: llmc/ops/lion.h.
#pragma once
#include <vector>
#include "llmc/optim/update_rule.h"  // UpdateRule, UpdateBatch

struct LionRule : RuleWithoutWorkspace {
    // The paper (section 5) uses a learning rate 3 to 10 times smaller than AdamW's, and a weight decay larger by the
    // same factor.
    inline static const UpdateRule value{.name = "lion",
                                         .title = "Lion",
                                         .smaller_rate = 10,
                                         .beta2 = 0.99,
                                         .state = {{"m"}},
                                         .batch_elements = kAnyElements};

    template <class Device, class T>
    static void update(const UpdateBatch<Device, T>& batch) {
        const auto by = [&](auto update, const auto& tensors) {
            update(batch.device, tensors.data(), int64_t(tensors.size()), batch.scalars);
        };
        if (batch.config.bf16_moments)
            by(batch.op.lion_update_bf16, tensors<bf16>(batch));
        else
            by(batch.op.lion_update, tensors<float>(batch));
    }

private:
    template <class M, class Device, class T>
    static std::vector<LionTensor<T, M>> tensors(const UpdateBatch<Device, T>& batch) {
        std::vector<LionTensor<T, M>> tensors;
        for (const UpdatePiece<T>& piece : batch.pieces) {
            const GroupRule& rule = batch.config.rule(piece.group);
            tensors.push_back({.param = piece.weight,
                               .master = piece.master_weight,
                               .m = piece.template state_as<M>(0),
                               .grad = piece.gradient,
                               .n = piece.size,
                               .hyper = {.learning_rate = batch.rates.groups[size_t(piece.group)],
                                         .beta1 = rule.beta1,
                                         .beta2 = rule.beta2,
                                         .weight_decay = rule.weight_decay},
                               .rounding = piece.rounding});
        }
        return tensors;
    }
};
