// See sharding.h.
#include "llmc/optim/sharding.h"
#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <utility>
#include "llmc/base/check.h"  // require, ensure, format

namespace {

// A parameter in a bucket.
struct Placed {
    size_t parameter;
    int64_t at;  // elements behind the bucket's beginning
};

// A bucket that will be put where its turn is.
struct Waiting {
    std::vector<Placed> placed;
    int64_t shard, ready_after;
};

// Whole matrices on their way to one rank.
struct Hand {
    int64_t elements = 0, work = 0;
    std::vector<size_t> units;
};

// What one bucket of whole matrices holds: units are the parameters of `layers` layers, layer by layer.
struct Deal {
    int64_t layers, shard, work;  // the largest hand's
    std::vector<Hand> hands;      // one a rank; none if the layers lie in halves
};

double flops_of_matrix(int64_t rows, int64_t cols) {
    const int64_t m = std::min(rows, cols), n = std::max(rows, cols);
    return 10 * double(m) * double(m) * double(2 * n + m);
}

// In 2^10 FLOPs, or 1 for the smallest. Integers, so that every machine plans the same, however its compiler rounds.
int64_t work_of(int64_t rows, int64_t cols) {
    return std::max<int64_t>(1, int64_t(flops_of_matrix(rows, cols) / 1024));
}
int64_t work_of(const Parameter& p) {
    int64_t work = 0;
    for (const int64_t rows : p.matrix_rows) work += work_of(rows, p.shape[1]);
    return work;
}

// The time that a choice of buckets takes, in ps. Only ratios matter, which are those of one server of H100s: an
// element is 4 bytes of gradient out and 2 of weight back, at 300 GB/s; Newton-Schulz runs at 400 TFLOP/s; two
// collectives a bucket have 20 us of latency each. All elements are exchanged, padding too, behind the work of the
// backward pass, but the last bucket has none left to hide behind and counts twice.
int64_t cost_of(const std::vector<Deal>& deals, int world_size) {
    constexpr int64_t kElement = 20, k100Work = 256, kBucket = 40'000'000;
    int64_t cost = 0;
    for (const Deal& deal : deals) cost += world_size * deal.shard * kElement + deal.work / 100 * k100Work + kBucket;
    return cost + world_size * deals.back().shard * kElement;
}

class Planner {
public:
    Planner(const ParameterList& list, const ShardingOptions& options)
        : list_(list), options_(options), ranks_(size_t(options.world_size)) {
        plan_.world_size = options.world_size;
        plan_.buffer_size = 0;
        plan_.offsets.assign(list.parameters.size(), -1);
        plan_.pieces.resize(ranks_);
        plan_.state_size.assign(ranks_, 0);
        plan_.muon_state_size.assign(ranks_, 0);
    }

    ShardingPlan make() {
        const int64_t L = list_.model.num_layers;
        std::vector<std::vector<size_t>> matrices = matrices_of_layers(), others(static_cast<size_t>(L));
        std::vector<size_t> behind, ends;  // behind the last layer; the embeddings
        for (size_t i = 0; i < list_.parameters.size(); i++) {
            const Parameter& p = list_.parameters[i];
            if (p.layer < 0)
                ends.push_back(i);
            else if (p.layer >= L)
                behind.push_back(i);
            else if (const auto& of_layer = matrices[size_t(p.layer)];
                     std::find(of_layer.begin(), of_layer.end(), i) == of_layer.end())
                others[size_t(p.layer)].push_back(i);
        }
        std::reverse(matrices.begin(), matrices.end()), std::reverse(others.begin(), others.end());  // as in backward
        place_matrices(matrices);

        std::vector<size_t> bucket = behind;
        int64_t of_behind = 0;
        for (const size_t i : behind) of_behind += list_.parameters[i].size();
        if (of_behind > options_.bucket_elements) place_by_element(std::exchange(bucket, {}));  // a head of its own
        int64_t elements = 0;
        for (const std::vector<size_t>& layer : others) {
            int64_t size = 0;
            for (const size_t i : layer) size += list_.parameters[i].size();
            if (elements > 0 && elements + size > options_.bucket_elements)
                place_by_element(std::exchange(bucket, {})), elements = 0;
            bucket.insert(bucket.end(), layer.begin(), layer.end());
            elements += size;
        }
        place_by_element(bucket);
        place_by_element(ends);

        // Buckets go in the order of backward.
        std::stable_sort(waiting_.begin(), waiting_.end(),
                         [](const Waiting& a, const Waiting& b) { return a.ready_after > b.ready_after; });
        for (const Waiting& waiting : waiting_) append(waiting);
        return std::move(plan_);
    }

private:
    const ParameterList& list_;
    const ShardingOptions options_;
    const size_t ranks_;
    ShardingPlan plan_;
    std::vector<Waiting> waiting_;

    bool is_muon(size_t i) const { return options_.muon && !list_.parameters[i].matrix_rows.empty(); }

    // Of each layer, the parameters that go into buckets of whole matrices: those that every layer has, because a
    // bucket is made of layers that are alike, and that are no gates, which would upset its halves.
    std::vector<std::vector<size_t>> matrices_of_layers() const {
        constexpr int64_t kGate = 64;  // this many times smaller than the layer's largest
        using Kind = std::pair<Shape, std::vector<int64_t>>;
        const auto kind_of = [&](size_t i) { return Kind{list_.parameters[i].shape, list_.parameters[i].matrix_rows}; };
        std::vector<std::vector<size_t>> layers(size_t(list_.model.num_layers));
        for (size_t i = 0; i < list_.parameters.size(); i++)
            if (const int64_t layer = list_.parameters[i].layer;
                is_muon(i) && layer >= 0 && layer < int64_t(layers.size()))
                layers[size_t(layer)].push_back(i);

        std::map<Kind, int64_t> in_all;  // how many of a kind every layer has
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
        int64_t lowest = std::numeric_limits<int64_t>::max();
        for (const Placed& p : placed) lowest = std::min(lowest, list_.parameters[p.parameter].layer);
        waiting_.push_back({placed, shard, lowest});
    }

    // Parameters are cut where shards end, Muon's between their matrices.
    void append(const Waiting& waiting) {
        const auto& [placed, shard, ready_after] = waiting;
        Bucket bucket{.offset = plan_.buffer_size,
                      .shard = shard,
                      .ready_after = ready_after,
                      // The lowest layer is the last one that backward completes, and the first one that forward reads.
                      .needed_by = ready_after,
                      .padding = int64_t(ranks_) * shard};
        for (const auto& [i, at] : placed) {
            const Parameter& p = list_.parameters[i];
            plan_.offsets[i] = bucket.offset + at;
            bucket.padding -= p.size();
            size_t matrix = 0;
            for (int64_t begin = 0, end; begin < p.size(); begin = end) {
                const int64_t rank = (at + begin) / shard, shard_end = (rank + 1) * shard - at;
                const int64_t rows = is_muon(i) ? p.matrix_rows[matrix++] : 0;
                end = rows > 0 ? begin + rows * p.shape[1] : std::min(p.size(), shard_end);
                ensure(end <= shard_end);
                ShardPiece piece{.parameter = i,
                                 .begin = begin,
                                 .end = end,
                                 .bucket = plan_.buckets.size(),
                                 .state_offset = plan_.state_size[size_t(rank)]};
                if (rows > 0) piece.muon = true, piece.rows = rows, piece.cols = p.shape[1];
                plan_.pieces[size_t(rank)].push_back(piece);
                plan_.state_size[size_t(rank)] += aligned_elements(piece.size());
                if (piece.muon) plan_.muon_state_size[size_t(rank)] += aligned_elements(piece.size());
            }
        }
        plan_.buffer_size += int64_t(ranks_) * shard;
        plan_.buckets.push_back(bucket);
    }

    // Muon's parameters lie each in one shard: where one would be cut, the next that may be cut goes first, or if there
    // is none a gap is left.
    void place_by_element(const std::vector<size_t>& parameters) {
        const int64_t W = int64_t(ranks_);
        int64_t elements = 0, largest_whole = 0;
        for (const size_t i : parameters) {
            const int64_t size = aligned_elements(list_.parameters[i].size());
            elements += size;
            if (is_muon(i)) largest_whole = std::max(largest_whole, size);
        }
        // A gap is smaller than the largest of these, and there is one a shard at most: with that much more all fit.
        const int64_t more = aligned_elements(std::max<int64_t>(1, largest_whole / 16));
        int64_t shard = std::max(largest_whole, aligned_elements((elements + W - 1) / W));
        std::vector<Placed> placed;
        for (; elements > 0; shard += more) {
            placed.clear();
            int64_t at = 0;
            for (std::vector<size_t> left = parameters; !left.empty();) {
                const auto next = std::find_if(left.begin(), left.end(), [&](size_t i) {
                    return !is_muon(i) || at / shard == (at + list_.parameters[i].size() - 1) / shard;
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

    // The parameters of a layer in an order in which the middle falls between two matrices, with as much before it as
    // behind it: of elements, and of work. The parameter of most matrices is the one that is cut. Empty: there is no
    // such order, or shards would not be aligned.
    std::vector<size_t> in_halves(const std::vector<size_t>& layer) const {
        const auto parameter = [&](size_t i) -> const Parameter& { return list_.parameters[i]; };
        int64_t elements = 0, work = 0;
        for (const size_t i : layer) {
            for (const int64_t rows : parameter(i).matrix_rows)
                if (rows * parameter(i).shape[1] % kParameterAlignment != 0) return {};
            elements += parameter(i).size(), work += work_of(parameter(i));
        }
        const size_t cut = *std::max_element(layer.begin(), layer.end(), [&](size_t a, size_t b) {
            return parameter(a).matrix_rows.size() < parameter(b).matrix_rows.size();
        });
        for (size_t left = 0; left < size_t(1) << layer.size(); left++) {  // a bit a parameter: it lies before `cut`
            std::vector<size_t> before, behind;
            int64_t left_elements = 0, left_work = 0;
            for (size_t k = 0; k < layer.size(); k++) {
                if (layer[k] == cut) continue;
                const bool is_left = left >> k & 1;
                (is_left ? before : behind).push_back(layer[k]);
                if (is_left) left_elements += parameter(layer[k]).size(), left_work += work_of(parameter(layer[k]));
            }
            const Parameter& p = parameter(cut);
            for (size_t n = 0;; n++) {  // matrices of it on the left
                if (2 * left_elements == elements && 2 * left_work == work) {
                    before.push_back(cut);
                    before.insert(before.end(), behind.begin(), behind.end());
                    return before;
                }
                if (n == p.matrix_rows.size()) break;
                left_elements += p.matrix_rows[n] * p.shape[1], left_work += work_of(p.matrix_rows[n], p.shape[1]);
            }
        }
        return {};
    }

    // Deals the matrices of `layers` layers, all like `layer`.
    Deal dealt(const std::vector<size_t>& layer, int64_t layers, int64_t Hand::*load) const {
        std::vector<Hand> units;
        for (size_t i = 0; i < size_t(layers) * layer.size(); i++) {
            const Parameter& p = list_.parameters[layer[i % layer.size()]];
            units.push_back({.elements = aligned_elements(p.size()), .work = work_of(p), .units = {i}});
        }
        std::stable_sort(units.begin(), units.end(), [&](const Hand& a, const Hand& b) { return a.*load > b.*load; });
        Deal deal{.layers = layers, .shard = 0, .work = 0, .hands = std::vector<Hand>(ranks_)};
        using Loaded = std::pair<int64_t, size_t>;
        std::priority_queue<Loaded, std::vector<Loaded>, std::greater<>> least;
        for (size_t r = 0; r < ranks_; r++) least.push({0, r});
        for (const Hand& unit : units) {
            const size_t to = least.top().second;
            least.pop();
            Hand& hand = deal.hands[to];
            hand.elements += unit.elements, hand.work += unit.work;
            hand.units.push_back(unit.units[0]);
            least.push({hand.*load, to});
        }
        for (const Hand& hand : deal.hands)
            deal.shard = std::max(deal.shard, hand.elements), deal.work = std::max(deal.work, hand.work);
        return deal;
    }

    // Which layers share a bucket, and who gets what.
    std::vector<Deal> best_deals(const std::vector<size_t>& layer, int64_t L, bool halves) const {
        const int64_t half_bucket = halves && ranks_ % 2 == 0 ? int64_t(ranks_) / 2 : 0;  // layers
        int64_t elements = 0, work = 0;
        for (const size_t i : layer)
            elements += aligned_elements(list_.parameters[i].size()), work += work_of(list_.parameters[i]);
        const auto deal_of = [&](int64_t layers) {
            if (layers == half_bucket) return Deal{layers, elements / 2, work / 2, {}};
            const std::vector<Deal> both = {dealt(layer, layers, &Hand::work), dealt(layer, layers, &Hand::elements)};
            return both[cost_of({both[1]}, int(ranks_)) < cost_of({both[0]}, int(ranks_))];
        };
        if (half_bucket > 0 && L % half_bucket == 0)
            return std::vector<Deal>(size_t(L / half_bucket), deal_of(half_bucket));

        std::vector<Deal> best;
        int64_t lowest = std::numeric_limits<int64_t>::max();
        const auto offer = [&](const std::vector<Deal>& deals) {
            const int64_t cost = cost_of(deals, int(ranks_));
            if (cost < lowest) lowest = cost, best = deals;
        };
        // Buckets as equal as can be, the larger ones first ...
        for (int64_t buckets = L; buckets > 0; buckets--) {
            const int64_t small = L / buckets, num_large = L % buckets;
            std::vector<Deal> deals;
            if (num_large > 0) deals.assign(size_t(num_large), deal_of(small + 1));
            deals.resize(size_t(buckets), deal_of(small));
            offer(deals);
        }
        // ... or in halves as long as there are layers enough, and one bucket of the rest.
        for (int64_t n = half_bucket > 0 ? L / half_bucket : 0; n > 0; n--) {
            std::vector<Deal> deals(size_t(n), deal_of(half_bucket));
            deals.push_back(deal_of(L - n * half_bucket));
            offer(deals);
        }
        return best;
    }

    void place_matrices(const std::vector<std::vector<size_t>>& layers) {
        if (layers[0].empty()) return;
        const auto sizes = [&](const std::vector<size_t>& layer) {
            std::vector<std::pair<Shape, std::vector<int64_t>>> all;
            for (const size_t i : layer) all.push_back({list_.parameters[i].shape, list_.parameters[i].matrix_rows});
            return all;
        };
        for (const std::vector<size_t>& layer : layers) ensure(sizes(layer) == sizes(layers[0]));
        const bool halves = !in_halves(layers[0]).empty();
        std::vector<int64_t> done(ranks_, 0);  // work so far
        size_t first = 0;                      // layer, in the order of backward
        for (const Deal& deal : best_deals(layers[0], int64_t(layers.size()), halves)) {
            std::vector<Placed> placed;
            const auto put = [&](size_t i, int64_t at) {
                placed.push_back({i, at});
                return at + aligned_elements(list_.parameters[i].size());
            };
            if (deal.hands.empty()) {
                int64_t at = 0;
                for (size_t l = first; l < first + size_t(deal.layers); l++)
                    for (const size_t i : in_halves(layers[l])) at = put(i, at);
            } else {
                // The heaviest hand goes to the rank that has had least so far.
                std::vector<Hand> hands = deal.hands;
                std::stable_sort(hands.begin(), hands.end(),
                                 [](const Hand& a, const Hand& b) { return a.work > b.work; });
                std::vector<size_t> rank(ranks_);
                for (size_t r = 0; r < ranks_; r++) rank[r] = r;
                std::stable_sort(rank.begin(), rank.end(), [&](size_t a, size_t b) { return done[a] < done[b]; });
                for (size_t h = 0; h < ranks_; h++) {
                    int64_t at = int64_t(rank[h]) * deal.shard;
                    for (const size_t unit : hands[h].units)
                        at = put(layers[first + unit / layers[0].size()][unit % layers[0].size()], at);
                    done[rank[h]] += hands[h].work;
                }
                std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) { return a.at < b.at; });
            }
            place(placed, deal.shard);
            first += size_t(deal.layers);
        }
    }
};

}  // namespace

double ShardingPlan::newton_schulz_flops(int rank) const {
    double sum = 0;
    for (const ShardPiece& piece : pieces[size_t(rank)])
        if (piece.muon) sum += flops_of_matrix(piece.rows, piece.cols);
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

int64_t ShardingPlan::state_bytes(int rank, bool masters) const {
    const int64_t all = state_size[size_t(rank)], muon = muon_state_size[size_t(rank)];
    return int64_t(sizeof(float)) * ((masters ? 2 : 1) * muon + (masters ? 3 : 2) * (all - muon));
}

std::string ShardingPlan::table(bool masters) const {
    constexpr int kMostRows = 16;
    struct Row {
        double state, matrices, flops;
    };
    std::vector<Row> rows;
    for (int r = 0; r < world_size; r++) {
        const std::vector<ShardPiece>& mine = pieces[size_t(r)];
        const auto matrices =
            std::count_if(mine.begin(), mine.end(), [](const ShardPiece& piece) { return piece.muon; });
        rows.push_back({double(state_bytes(r, masters)), double(matrices), newton_schulz_flops(r)});
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

ShardingPlan plan_sharding(const ParameterList& list, const ShardingOptions& options) {
    require(options.world_size > 0, "sharding over %d ranks: expected at least 1", options.world_size);
    return Planner(list, options).make();
}
