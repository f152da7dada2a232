/*
The outer step of DiLoCo (Douillard et al., 2023, arXiv:2311.08105), of the part of the weights that one rank of an
island owns. All islands start from the same weights, the reference r; each has come to weights w_i of its own. What it
sends is w_i, in fp32, or its delta r - w_i in fewer bits. From what all have sent every island computes the same

  g = r - mean of w_i        m = momentum m + g        w = r - learning_rate (g + momentum m)

which is PyTorch's SGD with Nesterov momentum, and goes on from there: w is the new reference. In doubles, of which w
and m are rounded once; so with a learning rate of 1 and no momentum w is the mean, and of one island its own weights.

  OuterState outer(size, config);
  copy the weights to outer.reference()
  const std::string mine = outer.encode(weights);               what the other islands get
  if (outer.apply({from island 0, from island 1, ...})) copy the weights from outer.reference()

In bf16 and int8 (a scale for each 64 values) what rounding has taken from a delta is added to the next one: error
feedback. The mean is taken in the order of islands, of what was sent, this island's own included: the same bits
everywhere.
*/
#pragma once
#include <cstdint>
#include <string>
#include <vector>

enum class OuterType { fp32, bf16, int8 };

struct OuterConfig {
    double learning_rate = 0.7, momentum = 0.9;
    OuterType type = OuterType::fp32;
};

class OuterState {
public:
    // Values of int8 that share a scale. As many as shards begin at multiples of (kParameterAlignment), so that a
    // scale's values are the same ones however many ranks share a parameter.
    static constexpr int64_t kScaled = 64;

    OuterState(int64_t size, const OuterConfig& config);

    // size() floats each, in host memory. The error is there, and not zero, only if something is rounded.
    float* reference() { return reference_.data(); }
    float* momentum() { return momentum_.data(); }
    float* error() { return error_.empty() ? nullptr : error_.data(); }
    int64_t size() const { return int64_t(reference_.size()); }

    // Changes the error. `weights`: size() of them.
    std::string encode(const float* weights);
    // False if something is not finite; the state is of no use then.
    bool apply(const std::vector<std::string>& all);

    static size_t encoded_bytes(int64_t size, OuterType type);
    // Of host memory, with what is there during a step.
    static size_t memory_bytes(int64_t size, int64_t islands, OuterType type);

private:
    const OuterConfig config_;
    std::vector<float> reference_, momentum_, error_;
};
