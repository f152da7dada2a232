// AdamW (Loshchilov and Hutter, 2019, arXiv:1711.05101), sharded by element: llmc/ops/adamw.h.
#pragma once
#include "llmc/optim/update_rule.h"  // UpdateRule, UpdateBatch

struct AdamWRule : RuleWithoutWorkspace {
    // The first and the second moment.
    inline static const UpdateRule value{.name = "adamw", .title = "AdamW", .has_eps = true, .state = {{"m"}, {"v"}}};

    template <class Device, class T>
    static void update(const UpdateBatch<Device, T>& batch) {
        for (const UpdatePiece<T>& piece : batch.pieces) {
            const GroupRule& rule = batch.config.rule(piece.group);
            batch.op.adamw_update(batch.device, piece.weight, piece.master_weight, piece.state[0], piece.state[1],
                                  piece.gradient, piece.size,
                                  AdamWHyper{.learning_rate = batch.rates.groups[size_t(piece.group)],
                                             .beta1 = rule.beta1,
                                             .beta2 = rule.beta2,
                                             .eps = rule.eps,
                                             .weight_decay = rule.weight_decay},
                                  batch.scalars);
        }
    }
};
