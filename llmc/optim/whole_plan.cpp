// See sharding.h.
#include "llmc/optim/sharding.h"

ShardingPlan whole_plan(const ParameterList& list, bool whole_matrices) {
    ShardingPlan plan{.world_size = 1,
                      .shards = 1,
                      .offsets = {},
                      .buffer_size = list.buffer_size,
                      .buckets = {{0, list.buffer_size, -1, -1, list.buffer_size, list.model.num_layers + 1}},
                      .pieces = {{}},
                      .state_size = {0}};
    for (size_t i = 0; i < list.parameters.size(); i++) {
        const Parameter& p = list.parameters[i];
        plan.offsets.push_back(p.offset);
        plan.buckets[0].padding -= p.size();
        const bool whole = whole_matrices && !p.matrix_rows.empty();
        int64_t begin = 0;
        const auto add = [&](int64_t size, int64_t rows, int64_t cols) {
            plan.pieces[0].push_back({.parameter = i,
                                      .begin = begin,
                                      .end = begin + size,
                                      .bucket = 0,
                                      .state_offset = plan.state_size[0],
                                      .rows = rows,
                                      .cols = cols});
            begin += size;
            plan.state_size[0] += aligned_elements(size);
        };
        if (whole)
            for (const int64_t rows : p.matrix_rows) add(rows * p.shape[1], rows, p.shape[1]);
        else
            add(p.size(), 0, 0);
    }
    return plan;
}
