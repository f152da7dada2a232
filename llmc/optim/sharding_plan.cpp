// The figures of a plan, and the plan of one rank that owns everything: see sharding.h.
#include <algorithm>
#include "llmc/base/check.h"            // format
#include "llmc/optim/matrix_buckets.h"  // newton_schulz_flops
#include "llmc/optim/sharding.h"

double ShardingPlan::newton_schulz_flops(int rank) const {
    double sum = 0;
    for (const ShardPiece& piece : pieces[size_t(rank)])
        if (piece.is_matrix()) sum += ::newton_schulz_flops(piece.rows, piece.cols);
    return sum;
}

int64_t ShardingPlan::padding() const {
    int64_t sum = 0;
    for (const Bucket& bucket : buckets) sum += bucket.padding;
    return sum;
}

double ShardingPlan::imbalance() const {
    const auto most_over_mean = [&](auto&& load) {
        double sum = 0, most = 0;
        for (int r = 0; r < world_size; r++) sum += load(r), most = std::max(most, load(r));
        return sum > 0 ? most * world_size / sum : 0;
    };
    const double by_work = most_over_mean([&](int r) { return newton_schulz_flops(r); });
    return by_work > 0 ? by_work : most_over_mean([&](int r) { return double(state_size[size_t(r)]); });
}

std::string ShardingPlan::table(const std::vector<int64_t>& state_bytes) const {
    constexpr int kMostRows = 16;
    struct Row {
        double state, matrices, flops;
    };
    std::vector<Row> rows;
    for (int r = 0; r < world_size; r++) {
        const std::vector<ShardPiece>& mine = pieces[size_t(r)];
        const auto matrices =
            std::count_if(mine.begin(), mine.end(), [](const ShardPiece& piece) { return piece.is_matrix(); });
        rows.push_back({double(state_bytes[size_t(r)]), double(matrices), newton_schulz_flops(r)});
    }
    std::string text =
        format("sharding over %d rank%s, %zu buckets\n  %-8s %12s %10s %22s\n", world_size, world_size == 1 ? "" : "s",
               buckets.size(), "rank", "state MiB", "matrices", "Newton-Schulz GFLOP");
    const auto line = [&](const std::string& name, const Row& row) {
        text += format("  %-8s %12.2f %10.4g %22.3f\n", name.c_str(), row.state / (1 << 20), row.matrices,
                       row.flops * 1e-9);
    };
    if (world_size <= kMostRows) {
        for (int r = 0; r < world_size; r++) line(std::to_string(r), rows[size_t(r)]);
    } else {
        Row least = rows[0], most = rows[0], sum{0, 0, 0};
        for (double Row::*column : {&Row::state, &Row::matrices, &Row::flops})
            for (const Row& row : rows) {
                least.*column = std::min(least.*column, row.*column);
                most.*column = std::max(most.*column, row.*column);
                sum.*column += row.*column / world_size;
            }
        line("least", least), line("mean", sum), line("most", most);
    }
    text += format("padding: %ld of %ld elements (%.2f%%); the largest rank over the mean: %.3f", padding(),
                   buffer_size, 100 * double(padding()) / double(buffer_size), imbalance());
    return text;
}

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
