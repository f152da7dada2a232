/*
Buckets of whole matrices (sharding.h): how many consecutive layers form a bucket, and which rank gets which of their
matrices. All layers have matrices of the same shapes, so one layer's parameters determine the plan of all.

  for (const MatrixBucket& bucket : plan_matrix_buckets(list, layer, num_layers, num_ranks)) ...
*/
#pragma once
#include <cstdint>
#include <vector>
#include "llmc/model/parameters.h"  // ParameterList
#include "llmc/optim/lpt.h"         // Bin

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
