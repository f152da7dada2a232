// See matrix_buckets.h.
#include "llmc/optim/matrix_buckets.h"
#include <limits>

namespace {

// The work of Newton-Schulz, in units of 2^10 FLOPs, at least 1. Integers, so that the plan does not depend on a
// compiler's rounding.
int64_t work_of(int64_t rows, int64_t cols) {
    return std::max<int64_t>(1, int64_t(newton_schulz_flops(rows, cols) / 1024));
}
int64_t work_of(const Parameter& p) {
    int64_t work = 0;
    for (const int64_t rows : p.matrix_rows) work += work_of(rows, p.shape[1]);
    return work;
}

// The time of a choice of buckets, in ps. Only ratios matter. The constants describe a server of H100s: an element is 4
// bytes of gradient out and 2 bytes of weight back, at 300 GB/s; Newton-Schulz runs at 400 TFLOP/s; a bucket's two
// collectives are rings of 12 us and 2 us per hop. All elements, including padding, are communicated while backward
// runs. Only the last bucket is not hidden, so it counts twice.
int64_t cost_of(const std::vector<MatrixBucket>& buckets, int64_t num_ranks) {
    constexpr int64_t kElement = 20, k100Work = 256, kRing = 12'000'000, kHop = 2'000'000;
    const int64_t latency = 2 * (kRing + num_ranks * kHop);
    int64_t cost = 0;
    for (const MatrixBucket& bucket : buckets)
        cost += num_ranks * bucket.shard * kElement + bucket.work / 100 * k100Work + latency;
    return cost + num_ranks * buckets.back().shard * kElement;
}

// A bucket of `num_layers` layers. Its items are assigned to ranks by LPT, balanced by work or by elements, whichever
// costs less.
MatrixBucket scheduled(const std::vector<Load>& layer, int64_t num_layers, size_t num_ranks) {
    std::vector<Load> items;
    for (int64_t l = 0; l < num_layers; l++) items.insert(items.end(), layer.begin(), layer.end());
    const auto balanced = [&](int64_t Load::*load) {
        MatrixBucket bucket{.layers = num_layers, .shard = 0, .work = 0, .bins = lpt(items, num_ranks, load)};
        for (const Bin& bin : bucket.bins) {
            bucket.shard = std::max(bucket.shard, bin.load.elements);
            bucket.work = std::max(bucket.work, bin.load.work);
        }
        return bucket;
    };
    const MatrixBucket by_work = balanced(&Load::work), by_elements = balanced(&Load::elements);
    const auto cost = [&](const MatrixBucket& bucket) { return cost_of({bucket}, int64_t(num_ranks)); };
    return cost(by_elements) < cost(by_work) ? by_elements : by_work;
}

}  // namespace

double newton_schulz_flops(int64_t rows, int64_t cols) {
    const int64_t m = std::min(rows, cols), n = std::max(rows, cols);
    return 10 * double(m) * double(m) * double(2 * n + m);
}

std::vector<MatrixBucket> plan_matrix_buckets(const ParameterList& list, const std::vector<size_t>& layer,
                                              int64_t num_layers, size_t num_ranks) {
    const auto W = int64_t(num_ranks);
    std::vector<Load> loads;
    Load total;
    for (const size_t i : layer) {
        loads.push_back({aligned_elements(list.parameters[i].size()), work_of(list.parameters[i])});
        total.elements += loads.back().elements, total.work += loads.back().work;
    }
    // The number of layers in a bucket of halves, one half per rank; 0: the layers cannot be split in halves.
    const int64_t of_halves = W % 2 == 0 && !split_in_halves(list, layer).empty() ? W / 2 : 0;
    const auto bucket_of = [&](int64_t layers) {
        if (layers == of_halves)
            return MatrixBucket{.layers = layers, .shard = total.elements / 2, .work = total.work / 2, .bins = {}};
        return scheduled(loads, layers, num_ranks);
    };
    if (of_halves > 0 && num_layers % of_halves == 0)
        return std::vector<MatrixBucket>(size_t(num_layers / of_halves), bucket_of(of_halves));

    std::vector<MatrixBucket> best;
    int64_t lowest = std::numeric_limits<int64_t>::max();
    const auto consider = [&](const std::vector<MatrixBucket>& buckets) {
        const int64_t cost = cost_of(buckets, W);
        if (cost < lowest) lowest = cost, best = buckets;
    };
    // Either buckets that are as equal as possible, the larger ones first ...
    for (int64_t n = num_layers; n > 0; n--) {
        const int64_t small = num_layers / n, num_large = num_layers % n;
        std::vector<MatrixBucket> buckets;
        if (num_large > 0) buckets.assign(size_t(num_large), bucket_of(small + 1));
        buckets.resize(size_t(n), bucket_of(small));
        consider(buckets);
    }
    // ... or buckets of halves and one bucket of the remaining layers.
    for (int64_t n = of_halves > 0 ? num_layers / of_halves : 0; n > 0; n--) {
        std::vector<MatrixBucket> buckets(size_t(n), bucket_of(of_halves));
        buckets.push_back(bucket_of(num_layers - n * of_halves));
        consider(buckets);
    }
    return best;
}

// The parameter with the most matrices is cut; each other parameter lies before or after it. All 2^n ways are tried: a
// layer has four parameters of matrices, so there are 16, and at most some dozens in any known architecture.
std::vector<size_t> split_in_halves(const ParameterList& list, const std::vector<size_t>& layer) {
    const auto parameter = [&](size_t i) -> const Parameter& { return list.parameters[i]; };
    Load total;
    for (const size_t i : layer) {
        for (const int64_t rows : parameter(i).matrix_rows)
            if (rows * parameter(i).shape[1] % kParameterAlignment != 0) return {};
        total.elements += parameter(i).size(), total.work += work_of(parameter(i));
    }
    const size_t cut = *std::max_element(layer.begin(), layer.end(), [&](size_t a, size_t b) {
        return parameter(a).matrix_rows.size() < parameter(b).matrix_rows.size();
    });
    for (size_t way = 0; way < size_t(1) << layer.size(); way++) {  // bit k: layer[k] is before `cut`
        std::vector<size_t> before, after;
        Load left;
        for (size_t k = 0; k < layer.size(); k++) {
            if (layer[k] == cut) continue;
            const bool is_before = way >> k & 1;
            (is_before ? before : after).push_back(layer[k]);
            if (is_before) left.elements += parameter(layer[k]).size(), left.work += work_of(parameter(layer[k]));
        }
        const Parameter& p = parameter(cut);
        for (size_t n = 0;; n++) {  // n: its matrices in the left half
            if (2 * left.elements == total.elements && 2 * left.work == total.work) {
                before.push_back(cut);
                before.insert(before.end(), after.begin(), after.end());
                return before;
            }
            if (n == p.matrix_rows.size()) break;
            left.elements += p.matrix_rows[n] * p.shape[1], left.work += work_of(p.matrix_rows[n], p.shape[1]);
        }
    }
    return {};
}
