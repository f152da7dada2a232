// See sharding.h.
#include "llmc/optim/sharding.h"
#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>
#include "llmc/base/check.h"            // require, ensure, format
#include "llmc/optim/matrix_buckets.h"  // plan_matrix_buckets, split_in_halves, newton_schulz_flops

namespace {

// A parameter in a bucket.
struct Placed {
    size_t parameter;
    int64_t at;  // elements from the bucket's beginning
};

// A bucket whose position in the buffer is not known yet.
struct UnplacedBucket {
    std::vector<Placed> placed;
    int64_t shard, ready_after, written_after;
};

class Planner {
public:
    Planner(const ParameterList& list, const ShardingOptions& options)
        : list_(list), options_(options), ranks_(size_t(options.shards > 0 ? options.shards : options.world_size)) {
        if (options_.bucket_elements == 0) options_.bucket_elements = usual_bucket_elements(options.world_size);
        plan_.world_size = options.world_size;
        plan_.shards = int(ranks_);
        plan_.buffer_size = 0;
        plan_.offsets.assign(list.parameters.size(), -1);
        plan_.pieces.resize(ranks_);
        plan_.state_size.assign(ranks_, 0);
    }

    ShardingPlan make() {
        const int64_t L = list_.model.num_layers;
        std::vector<std::vector<size_t>> matrices = matrices_of_layers(), others(static_cast<size_t>(L));
        std::vector<size_t> after_last, embeddings;  // parameters after the last layer; parameters before the first one
        for (size_t i = 0; i < list_.parameters.size(); i++) {
            const Parameter& p = list_.parameters[i];
            if (p.is_frozen) continue;
            if (p.layer < 0)
                embeddings.push_back(i);
            else if (p.layer >= L)
                after_last.push_back(i);
            else if (const auto& of_layer = matrices[size_t(p.layer)];
                     std::find(of_layer.begin(), of_layer.end(), i) == of_layer.end())
                others[size_t(p.layer)].push_back(i);
        }
        std::reverse(matrices.begin(), matrices.end()), std::reverse(others.begin(), others.end());  // as in backward
        place_matrices(matrices);

        const auto size_of = [&](const std::vector<size_t>& parameters) {
            int64_t size = 0;
            for (const size_t i : parameters) size += list_.parameters[i].size();
            return size;
        };
        std::vector<size_t> bucket = after_last;
        // A large untied head is a bucket of its own.
        if (size_of(after_last) > options_.bucket_elements) place_by_element(std::exchange(bucket, {}));
        int64_t elements = 0;
        for (const std::vector<size_t>& layer : others) {
            const int64_t size = size_of(layer);
            if (elements > 0 && elements + size > options_.bucket_elements)
                place_by_element(std::exchange(bucket, {})), elements = 0;
            bucket.insert(bucket.end(), layer.begin(), layer.end());
            elements += size;
        }
        place_by_element(bucket);
        place_by_element(embeddings);

        // In the order of backward.
        std::stable_sort(buckets_.begin(), buckets_.end(), [](const UnplacedBucket& a, const UnplacedBucket& b) {
            return a.ready_after > b.ready_after;
        });
        for (const UnplacedBucket& bucket : buckets_) append(bucket);
        for (size_t i = 0; i < list_.parameters.size(); i++)
            if (const Parameter& p = list_.parameters[i]; p.is_frozen)
                plan_.offsets[i] = std::exchange(plan_.buffer_size, plan_.buffer_size + p.buffer_size());
        for (size_t r = ranks_; r < size_t(options_.world_size); r++) {
            plan_.pieces.push_back(plan_.pieces[r - ranks_]);
            plan_.state_size.push_back(plan_.state_size[r - ranks_]);
        }
        return std::move(plan_);
    }

private:
    const ParameterList& list_;
    ShardingOptions options_;
    const size_t ranks_;  // of a group: the number of shards
    ShardingPlan plan_;
    std::vector<UnplacedBucket> buckets_;

    bool is_whole(size_t i) const {
        const Parameter& p = list_.parameters[i];
        return options_.whole_matrices && !p.is_frozen && !p.matrix_rows.empty();
    }

    // For each layer, the parameters that go into buckets of whole matrices. Only kinds that every layer has, because
    // the layers of a bucket must be alike; and no gates, which would make halves unequal.
    std::vector<std::vector<size_t>> matrices_of_layers() const {
        constexpr int64_t kGate = 64;  // a parameter this many times smaller than the layer's largest is a gate
        using Kind = std::pair<Shape, std::vector<int64_t>>;
        const auto kind_of = [&](size_t i) { return Kind{list_.parameters[i].shape, list_.parameters[i].matrix_rows}; };
        std::vector<std::vector<size_t>> layers(size_t(list_.model.num_layers));
        for (size_t i = 0; i < list_.parameters.size(); i++)
            if (const int64_t layer = list_.parameters[i].layer;
                is_whole(i) && layer >= 0 && layer < int64_t(layers.size()))
                layers[size_t(layer)].push_back(i);

        std::map<Kind, int64_t> in_all;  // how many of each kind every layer has
        for (size_t l = 0; l < layers.size(); l++) {
            std::map<Kind, int64_t> here;
            for (const size_t i : layers[l]) here[kind_of(i)]++;
            if (l == 0) in_all = here;
            for (auto& [kind, n] : in_all) n = std::min(n, here[kind]);
        }
        for (std::vector<size_t>& layer : layers) {
            int64_t largest = 0;
            for (const size_t i : layer) largest = std::max(largest, list_.parameters[i].size());
            std::map<Kind, int64_t> left = in_all;
            std::erase_if(layer, [&](size_t i) {
                return left[kind_of(i)]-- <= 0 || list_.parameters[i].size() * kGate <= largest;
            });
        }
        return layers;
    }

    void place(const std::vector<Placed>& placed, int64_t shard) {
        const int64_t from_beginning = list_.model.num_layers + 1;
        int64_t lowest = std::numeric_limits<int64_t>::max(), highest = -1;
        for (const Placed& p : placed) {
            const int64_t layer = list_.parameters[p.parameter].layer;
            lowest = std::min(lowest, layer), highest = std::max(highest, layer);
        }
        // The bias of a layer's last product is a sum that the backward pass of the next layer's norm computes. A
        // parameter that belongs to no layer may be written in all of them.
        buckets_.push_back(
            {placed, shard, lowest, lowest < 0 ? from_beginning : std::min(highest + 2, from_beginning)});
    }

    // Appends the bucket and the pieces of its parameters to the plan, cut where shards end or between matrices.
    void append(const UnplacedBucket& unplaced) {
        const auto& [placed, shard, ready_after, written_after] = unplaced;
        Bucket bucket{.offset = plan_.buffer_size,
                      .shard = shard,
                      .ready_after = ready_after,
                      // Backward completes the lowest layer last, and forward reads it first.
                      .needed_by = ready_after,
                      .padding = int64_t(ranks_) * shard,
                      .written_after = written_after};
        for (const auto& [i, at] : placed) {
            const Parameter& p = list_.parameters[i];
            plan_.offsets[i] = bucket.offset + at;
            bucket.padding -= p.size();
            size_t matrix = 0;
            for (int64_t begin = 0, end; begin < p.size(); begin = end) {
                const int64_t rank = (at + begin) / shard, shard_end = (rank + 1) * shard - at;
                const int64_t rows = is_whole(i) ? p.matrix_rows[matrix++] : 0;
                const int64_t most = options_.piece_elements > 0 ? begin + options_.piece_elements : p.size();
                end = rows > 0 ? begin + rows * p.shape[1] : std::min({p.size(), shard_end, most});
                ensure(end <= shard_end);
                ShardPiece piece{.parameter = i,
                                 .begin = begin,
                                 .end = end,
                                 .bucket = plan_.buckets.size(),
                                 .state_offset = plan_.state_size[size_t(rank)]};
                if (rows > 0) piece.rows = rows, piece.cols = p.shape[1];
                plan_.pieces[size_t(rank)].push_back(piece);
                plan_.state_size[size_t(rank)] += aligned_elements(piece.size());
            }
        }
        plan_.buffer_size += int64_t(ranks_) * shard;
        plan_.buckets.push_back(bucket);
    }

    // A parameter of whole matrices must lie in one shard. Where it would be cut, the next parameter that may be cut is
    // placed first; if there is none, a gap is left.
    void place_by_element(const std::vector<size_t>& parameters) {
        const int64_t W = int64_t(ranks_);
        int64_t elements = 0, largest_whole = 0;
        for (const size_t i : parameters) {
            const int64_t size = aligned_elements(list_.parameters[i].size());
            elements += size;
            if (is_whole(i)) largest_whole = std::max(largest_whole, size);
        }
        // A shard has at most one gap, which is smaller than the largest of these. With that much more space all fit.
        const int64_t more = aligned_elements(std::max<int64_t>(1, largest_whole / 16));
        int64_t shard = std::max(largest_whole, aligned_elements((elements + W - 1) / W));
        std::vector<Placed> placed;
        for (; elements > 0; shard += more) {
            placed.clear();
            int64_t at = 0;
            for (std::vector<size_t> left = parameters; !left.empty();) {
                const auto next = std::find_if(left.begin(), left.end(), [&](size_t i) {
                    return !is_whole(i) || at / shard == (at + list_.parameters[i].size() - 1) / shard;
                });
                if (next == left.end()) {
                    at = (at / shard + 1) * shard;
                    continue;
                }
                placed.push_back({*next, at});
                at += aligned_elements(list_.parameters[*next].size());
                left.erase(next);
            }
            if (at <= W * shard) return place(placed, shard);
        }
    }

    // `layers`: for each layer its parameters of whole matrices, in the order of backward.
    void place_matrices(const std::vector<std::vector<size_t>>& layers) {
        if (layers[0].empty()) return;
        const auto shapes = [&](const std::vector<size_t>& layer) {
            std::vector<std::pair<Shape, std::vector<int64_t>>> all;
            for (const size_t i : layer) all.push_back({list_.parameters[i].shape, list_.parameters[i].matrix_rows});
            return all;
        };
        for (const std::vector<size_t>& layer : layers) ensure(shapes(layer) == shapes(layers[0]));
        std::vector<int64_t> work_so_far(ranks_, 0);
        size_t first = 0;  // the bucket's first layer
        for (const MatrixBucket& bucket : plan_matrix_buckets(list_, layers[0], int64_t(layers.size()), ranks_)) {
            place(bucket.bins.empty() ? halves_in_order(layers, first, size_t(bucket.layers))
                                      : bins_in_order(layers, first, bucket, work_so_far),
                  bucket.shard);
            first += size_t(bucket.layers);
        }
    }

    // Appends `parameters` one after the other.
    void append_to(std::vector<Placed>& placed, const std::vector<size_t>& parameters, int64_t at) const {
        for (const size_t i : parameters) {
            placed.push_back({i, at});
            at += aligned_elements(list_.parameters[i].size());
        }
    }

    std::vector<Placed> halves_in_order(const std::vector<std::vector<size_t>>& layers, size_t first, size_t n) const {
        std::vector<size_t> all;
        for (size_t l = first; l < first + n; l++) {
            const std::vector<size_t> layer = split_in_halves(list_, layers[l]);
            all.insert(all.end(), layer.begin(), layer.end());
        }
        std::vector<Placed> placed;
        append_to(placed, all, 0);
        return placed;
    }

    // The bin with the most work goes to the rank with the least work so far.
    std::vector<Placed> bins_in_order(const std::vector<std::vector<size_t>>& layers, size_t first,
                                      const MatrixBucket& bucket, std::vector<int64_t>& work_so_far) const {
        const size_t per_layer = layers[0].size();
        std::vector<Bin> bins = bucket.bins;
        std::stable_sort(bins.begin(), bins.end(),
                         [](const Bin& a, const Bin& b) { return a.load.work > b.load.work; });
        std::vector<size_t> ranks(ranks_);
        std::iota(ranks.begin(), ranks.end(), size_t(0));
        std::stable_sort(ranks.begin(), ranks.end(),
                         [&](size_t a, size_t b) { return work_so_far[a] < work_so_far[b]; });
        std::vector<Placed> placed;
        for (size_t b = 0; b < ranks_; b++) {
            std::vector<size_t> parameters;
            for (const size_t item : bins[b].items)
                parameters.push_back(layers[first + item / per_layer][item % per_layer]);
            append_to(placed, parameters, int64_t(ranks[b]) * bucket.shard);
            work_so_far[ranks[b]] += bins[b].load.work;
        }
        std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) { return a.at < b.at; });
        return placed;
    }
};

}  // namespace

ShardingPlan plan_sharding(const ParameterList& list, const ShardingOptions& options) {
    require(options.shards <= 0 || options.world_size % options.shards == 0,
            "--shard-ranks %d does not divide the %d ranks", options.shards, options.world_size);
    require(options.world_size > 0, "sharding over %d ranks: expected at least 1", options.world_size);
    return Planner(list, options).make();
}

double ShardingPlan::newton_schulz_flops(int rank) const {
    double sum = 0;
    for (const ShardPiece& piece : pieces[size_t(rank)])
        if (piece.is_matrix()) sum += ::newton_schulz_flops(piece.rows, piece.cols);
    return sum;
}

int64_t ShardingPlan::learned_size() const { return buckets.back().offset + buckets.back().shard * shards; }

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
                      .buckets = {{0, list.learned_size(), -1, -1, list.learned_size(), list.model.num_layers + 1}},
                      .pieces = {{}},
                      .state_size = {0}};
    for (size_t i = 0; i < list.parameters.size(); i++) {
        const Parameter& p = list.parameters[i];
        plan.offsets.push_back(p.offset);
        if (p.is_frozen) continue;
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
