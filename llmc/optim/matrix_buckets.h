/*
Buckets of whole matrices (sharding.h): how many consecutive layers form a bucket, and which rank gets which of their
matrices. All layers have matrices of the same shapes, so one layer's parameters determine the plan of all.

  for (const MatrixBucket& bucket : plan_matrix_buckets(list, layer, num_layers, num_ranks)) ...
*/
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>
#include <vector>
#include "llmc/model/parameters.h"  // ParameterList

/*
Scheduling on identical machines: items of known loads are put into bins, so that the load of the fullest bin is as
small as possible. LPT, longest processing time first (Graham, 1969, SIAM J. Appl. Math. 17): the items in descending
order of load, each into the least loaded bin. The fullest bin has at most 4/3 of the load of the best assignment.

  const std::vector<Bin> bins = lpt(items, 8, &Load::work);
*/
struct Load {
    int64_t elements = 0, work = 0;  // memory and time; LPT balances one of them
};

struct Bin {
    Load load;
    std::vector<size_t> items;  // in the order in which they were assigned
};

// Ties between items and between bins go to the first.
inline std::vector<Bin> lpt(const std::vector<Load>& items, size_t num_bins, int64_t Load::*load) {
    std::vector<size_t> order(items.size());
    std::iota(order.begin(), order.end(), size_t(0));
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return items[a].*load > items[b].*load; });
    std::vector<Bin> bins(num_bins);
    using LoadedBin = std::pair<int64_t, size_t>;
    std::priority_queue<LoadedBin, std::vector<LoadedBin>, std::greater<>> least_loaded;
    for (size_t b = 0; b < num_bins; b++) least_loaded.push({0, b});
    for (const size_t item : order) {
        const size_t to = least_loaded.top().second;
        least_loaded.pop();
        Bin& bin = bins[to];
        bin.load.elements += items[item].elements, bin.load.work += items[item].work;
        bin.items.push_back(item);
        least_loaded.push({bin.load.*load, to});
    }
    return bins;
}

// The cost of a matrix to its owner: FLOPs of five Newton-Schulz iterations, 4 m^2 n + 2 m^3 each for m <= n.
double newton_schulz_flops(int64_t rows, int64_t cols);

struct MatrixBucket {
    int64_t layers;         // number of layers in it
    int64_t shard, work;    // elements and work of the fullest shard
    std::vector<Bin> bins;  // one per rank; item i is parameter i % n of layer i / n, n parameters per layer. Empty:
                            // the layers lie one after the other, each in the order of split_in_halves()
};

// `layer`: the parameters of one layer, as indices in the list.
std::vector<MatrixBucket> plan_matrix_buckets(const ParameterList& list, const std::vector<size_t>& layer,
                                              int64_t num_layers, size_t num_ranks);

// The parameters of a layer in an order whose middle falls between two matrices, with equal elements and equal work
// before and after it. Empty if there is no such order, or if shards would not be aligned.
std::vector<size_t> split_in_halves(const ParameterList& list, const std::vector<size_t>& layer);
