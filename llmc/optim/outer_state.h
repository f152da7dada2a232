/*
The outer step of DiLoCo (Douillard et al., 2023, arXiv:2311.08105), for the part of the weights that one rank of an
island owns. All islands start from the same weights, the reference r, and island i trains to weights w_i. It sends w_i
in fp32, or the delta r - w_i in fewer bits. From these, every island computes the same

  g = r - mean of w_i        m = momentum m + g        w = r - learning_rate (g + momentum m)

which is PyTorch's SGD with Nesterov momentum, and continues from w, the new reference. It is computed in double; w and
m are rounded once. So with a learning rate of 1 and no momentum, w is the mean; with one island, w is its own weights.

  OuterState outer(size, config);
  copy the weights to outer.reference()
  const std::string mine = outer.encode(weights);               the bytes for the other islands
  if (outer.apply({from island 0, from island 1, ...})) copy the weights from outer.reference()

In bf16 and int8 (one scale per 64 values) the rounding error of a delta is added to the next delta: error feedback. The
mean is taken over the sent values, also this island's own, in the order of islands, so it has the same bits everywhere.
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
    // Values of int8 that share a scale. Equal to the alignment of shards (kParameterAlignment), so that the same
    // values share a scale however many ranks share a parameter.
    static constexpr int64_t kScaled = 64;

    OuterState(int64_t size, const OuterConfig& config);

    // size() floats each, in host memory. The error exists, and is not zero, only if values are rounded.
    float* reference() { return reference_.data(); }
    float* momentum() { return momentum_.data(); }
    float* error() { return error_.empty() ? nullptr : error_.data(); }
    int64_t size() const { return int64_t(reference_.size()); }

    // Encodes size() weights, and updates the error.
    std::string encode(const float* weights);
    // Computes the step from every island's bytes. False if a value is not finite; the state is then unusable.
    bool apply(const std::vector<std::string>& all);

    static size_t encoded_bytes(int64_t size, OuterType type);
    // Peak bytes of host memory, including those of a step.
    static size_t memory_bytes(int64_t size, int64_t islands, OuterType type);

private:
    const OuterConfig config_;
    std::vector<float> reference_, momentum_, error_;
};
