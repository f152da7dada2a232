// AdamW (Loshchilov and Hutter, 2019, arXiv:1711.05101), sharded by element: llmc/ops/adamw.h.
#pragma once
#include <vector>
#include "llmc/optim/update_rule.h"  // UpdateRule, UpdateBatch

struct AdamWRule : RuleWithoutWorkspace {
    // The first and the second moment.
    inline static const UpdateRule value{.name = "adamw",
                                         .title = "AdamW",
                                         .has_eps = true,
                                         .state = {{"m"}, {"v"}, kAverage},
                                         .batch_elements = kAnyElements};

    template <class Device, class T>
    static void update(const UpdateBatch<Device, T>& batch) {
        const auto by = [&](auto update, const auto& tensors) {
            update(batch.device, tensors.data(), int64_t(tensors.size()), batch.scalars);
        };
        if (batch.config.bf16_moments)
            by(batch.op.adamw_update_bf16, tensors<bf16>(batch));
        else
            by(batch.op.adamw_update, tensors<float>(batch));
    }

private:
    template <class M, class Device, class T>
    static std::vector<AdamWTensor<T, M>> tensors(const UpdateBatch<Device, T>& batch) {
        std::vector<AdamWTensor<T, M>> tensors;
        for (const UpdatePiece<T>& piece : batch.pieces) {
            const GroupRule& rule = batch.config.rule(piece.group);
            tensors.push_back({.param = piece.weight,
                               .master = piece.master_weight,
                               .m = piece.template state_as<M>(0),
                               .v = piece.template state_as<M>(1),
                               .grad = piece.gradient,
                               .n = piece.size,
                               .hyper = {.learning_rate = batch.rates.groups[size_t(piece.group)] * piece.rate,
                                         .beta1 = rule.beta1,
                                         .beta2 = rule.beta2,
                                         .eps = rule.eps,
                                         .weight_decay = rule.weight_decay / piece.rate},
                               .rounding = piece.rounding});
        }
        return tensors;
    }
};
