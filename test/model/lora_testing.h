/*
Models with adapters against dense ones, into whose weights the adapters are merged, on any device.
*/
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>
#include "llmc/model/gpt.h"            // Gpt
#include "test/model/architectures.h"  // small_shape
#include "test/model/model_testing.h"  // from_device
#include "test/op_testing.h"           // Floats, randn

inline GptShape with_lora(GptShape shape, bool is_split, double dropout = 0) {
    shape.lora = {
        .rank = 8, .alpha = 12, .dropout = dropout, .targets = {true, true, true, true}, .is_split = is_split};
    return shape;
}

// Weights for both models: of A and B, too, so that neither is zero.
inline Floats lora_test_values(const Parameter& p) {
    uint64_t seed = 1;
    for (const char letter : p.name) seed = mix64(seed ^ uint64_t(letter));
    Floats values = randn(size_t(p.size()), seed, 0.1f);
    if (p.group == ParameterGroup::vectors && p.name.ends_with("weight"))
        for (float& x : values) x += 1;
    std::fill(values.begin() + p.exported_rows * (p.size() / p.shape[0]), values.end(), 0.f);
    return values;
}

struct LoraLearned {
    double loss = 0;
    std::map<std::string, Floats> gradients;  // of what learns
    int64_t gradient_elements = 0;
};

// Two micro-batches of random tokens. The dense model has the adapters merged into its weights. `more` is added to the
// parameters of these names.
template <class T, class Device>
LoraLearned learn_beside(Device& device, const GptShape& adapted, bool is_dense, ActivationPolicy policy, int64_t B,
                         int64_t T_, const Dropout& dropout = {}, const std::map<std::string, Floats>& more = {}) {
    GptShape shape = adapted;
    if (is_dense) shape.lora = {};
    Gpt<Device, T> model(device, shape, B, T_, policy);
    std::map<std::string, Floats> all;
    const ParameterList adapters(adapted);
    for (const Parameter& p : adapters) all[p.name] = lora_test_values(p);
    for (const auto& [name, values] : more) all[name] = plus(all[name], values);
    const double scale = adapted.lora.alpha / double(adapted.lora.rank);
    for (const Parameter& p : adapters) {
        if (!is_dense || !p.is_adapter || p.name.ends_with(kLoraA)) continue;
        const std::string layer = p.name.substr(0, p.name.rfind('.'));
        const Floats &a = all[layer + kLoraA], &b = all[p.name];
        Floats& weight = all[layer + ".weight"];
        const int64_t r = adapted.lora.rank, cols = int64_t(weight.size()) / p.shape[0];
        for (int64_t row = 0, first = 0, part = 0; row < p.shape[0]; row++) {
            if (row == first + p.matrix_rows[size_t(part)]) first = row, part++;
            for (int64_t c = 0; c < cols; c++)
                for (int64_t k = 0; k < r; k++)
                    weight[size_t(row * cols + c)] +=
                        float(scale * double(b[size_t(row * r + k)]) * double(a[size_t((part * r + k) * cols + c)]));
        }
    }
    for (const Parameter& p : model.parameters) model.set_weight(p, all[p.name].data());
    typename Device::template ToDevice<int32_t> to_device(device, 2 * B * T_);
    Rng rng(1, Stream::tests);
    std::vector<int32_t> ids(size_t(2 * B * T_));
    LoraLearned learned;
    learned.gradient_elements = model.gradients.size;
    model.dropout = dropout;
    model.zero_gradients();
    model.begin_step();
    for (int micro = 0; micro < 2; micro++) {
        for (int32_t& id : ids) id = int32_t(rng.below(uint64_t(model.shape.vocab_size)));
        const int32_t* tokens = to_device.send(ids.data(), 2 * B * T_);
        model.forward(tokens, B, T_);
        learned.loss += model.loss_and_gradient(tokens + B * T_, 1 / float(B * T_));
        model.backward(tokens);
    }
    model.end_step();
    for (const Parameter& p : model.parameters)
        if (!p.is_frozen) learned.gradients[p.name] = from_device(device, p, model.gradients.at(p));
    return learned;
}

// The gradients of A and B are those of the dense weight, multiplied by the other matrix and the scale.
inline void check_lora_gradients(const GptShape& shape, const LoraLearned& adapted, const LoraLearned& dense,
                                 double tolerance) {
    CHECK(std::fabs(adapted.loss - dense.loss) <= tolerance * dense.loss);
    const double scale = shape.lora.alpha / double(shape.lora.rank);
    const int64_t r = shape.lora.rank;
    size_t checked = 0;
    for (const Parameter& p : ParameterList(shape)) {
        if (!p.is_adapter) continue;
        INFO(p.name);
        const std::string layer = p.name.substr(0, p.name.rfind('.'));
        const Floats& g = dense.gradients.at(layer + ".weight");
        const bool is_a = p.name.ends_with(kLoraA);
        const auto other = [&](const char* which) {
            for (const Parameter& q : ParameterList(shape))
                if (q.name == layer + which) return q;
            return p;
        };
        const Parameter of_a = other(kLoraA), of_b = other(kLoraB);
        const Floats a = lora_test_values(of_a), b = lora_test_values(of_b);
        const int64_t rows = of_b.shape[0], cols = of_a.shape[1];
        std::vector<double> sums(size_t(p.size()), 0);
        for (int64_t row = 0, first = 0, part = 0; row < rows; row++) {
            if (row == first + of_b.matrix_rows[size_t(part)]) first = row, part++;
            for (int64_t k = 0; k < r; k++)
                for (int64_t c = 0; c < cols; c++) {
                    const double of_weight = scale * double(g[size_t(row * cols + c)]);
                    const size_t at_a = size_t((part * r + k) * cols + c), at_b = size_t(row * r + k);
                    sums[is_a ? at_a : at_b] += of_weight * double(is_a ? b[at_b] : a[at_a]);
                }
        }
        const Floats want(sums.begin(), sums.end());
        CHECK(relative_l2(adapted.gradients.at(p.name), want) <= tolerance);
        checked++;
    }
    CHECK(checked == size_t(8 * shape.num_layers));
}

// Beside a base in FP8, with adapters that are zero (A is not, but B), so that the whole model in FP8 is the dense one:
// the loss is its loss, bit for bit. The gradient of B is that of the weight, projected, but for the roundings of what
// the GEMM for the latter multiplies: to e4m3 and e5m2, by 2^-4 and 2^-3 at most.
template <class T, class Device>
void check_fp8_base(Device& device, GptShape shape, Recompute recompute, int64_t B, int64_t T_) {
    shape.lora.fp8_base = true;
    std::map<std::string, Floats> zeros;
    for (const Parameter& p : ParameterList(shape))
        if (p.name.ends_with(kLoraB))
            for (const float x : lora_test_values(p)) zeros[p.name].push_back(-x);
    const LoraLearned adapted = learn_beside<T>(device, shape, false, {recompute, true}, B, T_, {}, zeros),
                      dense = learn_beside<T>(device, shape, true, {recompute, true}, B, T_, {}, zeros);
    CHECK(adapted.loss == dense.loss);
    const double scale = shape.lora.alpha / double(shape.lora.rank);
    const int64_t r = shape.lora.rank;
    for (const Parameter& p : ParameterList(shape)) {
        if (!p.name.ends_with(kLoraB)) continue;
        INFO(p.name);
        const std::string layer = p.name.substr(0, p.name.rfind('.'));
        Parameter of_a = p;
        for (const Parameter& q : ParameterList(shape))
            if (q.name == layer + kLoraA) of_a = q;
        const Floats &a = lora_test_values(of_a), &g = dense.gradients.at(layer + ".weight");
        Floats want;
        for (int64_t row = 0, first = 0, part = 0; row < p.shape[0]; row++) {
            if (row == first + p.matrix_rows[size_t(part)]) first = row, part++;
            for (int64_t k = 0; k < r; k++) {
                double sum = 0;
                for (int64_t c = 0; c < of_a.shape[1]; c++)
                    sum += double(g[size_t(row * of_a.shape[1] + c)]) *
                           double(a[size_t((part * r + k) * of_a.shape[1] + c)]);
                want.push_back(float(scale * sum));
            }
        }
        CHECK(relative_l2(adapted.gradients.at(p.name), want) <= 0.125 + 0.0625);
        for (const float x : adapted.gradients.at(layer + kLoraA)) REQUIRE(x == 0);
    }
}

struct LoraCase {
    const char* name;
    int64_t B, T;
    GptShape shape;
};
//                                     layers, heads, channels, longest sequence, vocabulary, key/value heads, MLP
inline const std::vector<LoraCase> kLoraCases = {
    {"gpt2", 2, 16, with_lora({2, 4, 32, 16, 61}, false)},
    {"llama", 2, 16, with_lora(small_shape("llama", {2, 4, 32, 16, 61, 2, 40}), true)},
    {"llama, stacked", 2, 16, with_lora(small_shape("llama", {2, 4, 32, 16, 61, 2, 40}), false)},
    {"nanochat", 2, 16, with_lora(small_shape("nanochat", {4, 2, 32, 16, 61, 1, 48}, "SSSL", 3), false)},
};
// Large enough for FP8; of "llama, narrow" the second layer of the MLP is not.
inline const std::vector<LoraCase> kFp8LoraCases = {
    {"gpt2", 2, 16, with_lora({2, 2, 128, 16, 61, 2, 144}, false)},
    {"llama", 2, 16, with_lora(small_shape("llama", {2, 2, 128, 16, 61, 1, 128}), true)},
    {"llama, narrow", 2, 16, with_lora(small_shape("llama", {2, 2, 128, 16, 61, 1, 64}), true)},
    {"nanochat", 2, 16, with_lora(small_shape("nanochat", {3, 2, 128, 16, 61, 1, 128}, "SSL", 3), false)},
};
