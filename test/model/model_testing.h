/*
Helpers of the tests of the whole model, on any device.
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>
#include "llmc/model/gpt.h"
#include "llmc/optim/sharding.h"  // plan_sharding
#include "test/fixture.h"         // Fixture
#include "test/testing.h"

inline const GptShape kFixtureShape{3, 4, 48, 32, 301};
inline constexpr int64_t kB = 3, kT = 24, kN = kB * kT;

// Fixtures have V rows of wte. The padding rows stay zero, as after initialization.
template <class Device, class T>
void load_weights(Gpt<Device, T>& model, const Fixture& fixture) {
    for (const Parameter& p : model.parameters) {
        Floats values = fixture.floats(p.name);
        REQUIRE(int64_t(values.size()) == p.exported_rows * p.size() / p.shape[0]);
        values.resize(size_t(p.size()), 0);
        model.set_weight(p, values.data());
    }
}

inline Floats without_padding(const Parameter& p, const float* data) {
    return Floats(data, data + p.exported_rows * p.size() / p.shape[0]);
}

// Relative L2, 84 times 2^-23. Sums of up to a few hundred terms through a dozen ops reach about a tenth of it (the
// drift of PyTorch's own float32 over the twenty steps is 5e-7), and a wrong term exceeds it by far.
inline constexpr double kModelTolerance = 1e-5;

// The key bias adds one number to all scores of a row, which the softmax ignores. Its exact gradient is zero; in
// floating point it is noise, which Adam divides by its own size. So its value after an optimizer step is arbitrary
// (PyTorch's float32 run differs from its float64 run by 2e-3 there), and it is left out of comparisons.
inline Floats without_key_bias(const std::string& name, Floats values) {
    if (name.ends_with("c_attn.bias")) {
        const auto third = ptrdiff_t(values.size() / 3);
        values.erase(values.begin() + third, values.begin() + 2 * third);
    }
    return values;
}

// A parameter's values or gradient from the device, as floats, without padding.
template <class Device, class T>
Floats from_device(Device& device, const Parameter& p, const T* data) {
    std::vector<T> values(static_cast<size_t>(p.exported_rows * p.size() / p.shape[0]));
    copy_to_host(device, values.data(), data, int64_t(values.size()));
    Floats floats;
    for (const T x : values) floats.push_back(to_float(x));
    return floats;
}

// Loss and all gradients of one batch of random tokens.
template <class Device, class T>
std::pair<double, std::vector<Floats>> learn(Device& device, Gpt<Device, T>& model, int64_t B, int64_t T_) {
    Rng rng(1, Stream::tests);
    std::vector<int32_t> ids(size_t(2 * B * T_));
    for (int32_t& id : ids) id = int32_t(rng.below(uint64_t(model.shape.vocab_size)));
    typename Device::template ToDevice<int32_t> to_device(device, 2 * B * T_);
    const int32_t* tokens = to_device.send(ids.data(), 2 * B * T_);
    model.zero_gradients();
    model.forward(tokens, B, T_);
    const double loss = model.loss_and_gradient(tokens + B * T_, 1 / float(B * T_));
    model.backward(tokens);
    std::vector<Floats> gradients;
    for (const Parameter& p : model.parameters) gradients.push_back(from_device(device, p, model.gradients.at(p)));
    return {loss, gradients};
}

// All that --recompute can say of a model with at least two blocks.
inline const Recomputation kRecomputations[] = {
    Recompute::none, Recompute::norms, Recompute::block, {Recompute::block, 1}, {Recompute::block, 2}};
inline std::ostream& operator<<(std::ostream& out, const Recomputation& how) {
    return out << int(how.what) << " of the first " << how.blocks << " blocks";
}

// Checks that zero_gradients() and two micro-batches on a model whose gradient buffer, with its gaps, was all NaN yield
// the same gradients as these micro-batches on a new model.
template <class T, class Device>
void check_gradients_begin_anew(Device& device, const ParameterList& list, int64_t B, int64_t T_,
                                ActivationPolicy policy, double tolerance = 0) {
    const auto gradients = [&](bool is_new) {
        Gpt<Device, T> model(device, list, B, T_, policy, device);
        model.acts.head_rows = std::min(model.acts.head_rows, B * T_ / 2 + 1);
        for (const Parameter& p : model.parameters) {
            Floats values = randn(size_t(p.size()), uint64_t(p.offset), 0.1f);
            std::fill(values.begin() + p.exported_rows * (p.size() / p.shape[0]), values.end(), 0.f);
            model.set_weight(p, values.data());
        }
        Floats all(size_t(model.gradients.size), std::nanf(""));
        if (!is_new) {
            copy_to_device(device, model.gradients.data, all.data(), model.gradients.size);
            model.zero_gradients();
        }
        typename Device::template ToDevice<int32_t> to_device(device, 2 * B * T_);
        Rng rng(1, Stream::tests);
        std::vector<int32_t> ids(size_t(2 * B * T_));
        model.begin_step();
        for (int micro = 0; micro < 2; micro++) {
            for (int32_t& id : ids) id = int32_t(rng.below(uint64_t(model.shape.vocab_size)));
            const int32_t* tokens = to_device.send(ids.data(), 2 * B * T_);
            model.forward(tokens, B, T_);
            model.loss_and_gradient(tokens + B * T_, 1 / float(B * T_));
            model.backward(tokens);
        }
        model.end_step();
        copy_to_host(device, all.data(), model.gradients.data, model.gradients.size);
        return all;
    };
    CHECK(relative_l2(gradients(false), gradients(true)) <= tolerance);
}

// The parameters as two ranks with Muon lay them out in memory, with padding.
inline ParameterList sharded_list(const GptShape& shape) {
    ParameterList list(shape);
    const ShardingPlan plan = plan_sharding(list, {.world_size = 2, .whole_matrices = true});
    list.place(plan.offsets, plan.buffer_size);
    return list;
}
