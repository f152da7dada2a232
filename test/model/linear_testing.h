/*
Models with layers in FP8 for tests: those of scripts/model_fixtures.py, and a step of them.
*/
#pragma once
#include <cstdint>
#include <vector>
#include "llmc/model/gpt.h"            // Gpt
#include "test/fixture.h"              // Fixture
#include "test/model/architectures.h"  // small_shape
#include "test/model/model_testing.h"  // from_device
#include "test/op_testing.h"           // bell

// The layers that are computed in FP8: all, or with Llama's all but the MLP's second.
//                          layers, heads, channels, longest sequence, vocabulary, key/value heads, MLP
inline const std::vector<ArchitectureCase> kFp8Cases = {
    {"fp8_gpt2", 1, 16, {2, 2, 128, 16, 61, 2, 128}},
    {"fp8_nanochat", 2, 8, small_shape("nanochat", {3, 2, 128, 8, 61, 1, 128}, "SSL", 3)},
    {"fp8_llama", 2, 8, small_shape("llama", {2, 2, 128, 8, 61, 1, 64})},
};

// As model_in_fp8() of scripts/model_fixtures.py makes them.
inline Floats made_weights(const Parameter& p, const Fixture& f) {
    const int64_t n = p.exported_rows * p.size() / p.shape[0];
    const Floats scale_and_shift = f.floats("scale." + p.name);
    Floats values = bell(uint64_t(f.ints("seed." + p.name)[0]), n, scale_and_shift[0]);
    for (float& value : values) value += scale_and_shift[1];
    values.resize(size_t(p.size()), 0);
    return values;
}

struct Learned {
    double loss;
    std::vector<Floats> gradients;  // in the order of the model's parameters
};

// A model of the fixtures on any device after a step of two micro-batches of half the weight, both the same, with the
// fixtures' weights or those of a new model.
template <class T, class Device>
Learned learn(Device& device, const ArchitectureCase& c, ActivationPolicy policy, bool is_new = false) {
    const Fixture fixture(c.fixture);
    Gpt<Device, T> model(device, c.shape, c.B, c.T, policy);
    model.initialize_weights(7);
    if (!is_new)
        for (const Parameter& p : model.parameters) model.set_weight(p, made_weights(p, fixture).data());
    const std::vector<int32_t> tokens = fixture.ints("tokens"), targets = fixture.ints("targets");
    const auto n = int64_t(tokens.size());
    typename Device::template ToDevice<int32_t> tokens_to_device(device, n), targets_to_device(device, n);
    Learned learned = {};
    model.zero_gradients();
    model.begin_step();
    for (int micro = 0; micro < 2; micro++) {
        const int32_t* on_device = tokens_to_device.send(tokens.data(), n);
        model.forward(on_device, c.B, c.T);
        learned.loss += model.loss_and_gradient(targets_to_device.send(targets.data(), n), 0.5f / float(n)) / 2;
        model.backward(on_device);
    }
    model.end_step();
    for (const Parameter& p : model.parameters)
        learned.gradients.push_back(from_device(device, p, model.gradients.at(p)));
    return learned;
}

// Against PyTorch: matrices by weighted sums of their rows and of their columns.
inline void check_learned(const ArchitectureCase& c, const Learned& got, double loss_tolerance, double tolerance) {
    const Fixture fixture(c.fixture);
    const auto want_loss = double(fixture.floats("want.loss")[0]);
    CHECK(std::fabs(got.loss - want_loss) <= loss_tolerance * want_loss);
    const ParameterList list(c.shape);
    for (size_t i = 0; i < got.gradients.size(); i++) {
        const Parameter& p = list.parameters[i];
        const Floats& gradient = got.gradients[i];
        INFO(p.name);
        if (p.shape.size() == 1) {
            CHECK(relative_l2(gradient, fixture.floats("grad." + p.name)) <= tolerance);
            continue;
        }
        const auto rows = size_t(p.exported_rows), columns = gradient.size() / rows;
        Floats of_rows(rows), of_columns(columns);
        for (size_t r = 0; r < rows; r++)
            for (size_t c = 0; c < columns; c++) {
                of_rows[r] += gradient[r * columns + c] * float(1 + c % 3);
                of_columns[c] += gradient[r * columns + c] * float(1 + r % 3);
            }
        CHECK(relative_l2(of_rows, fixture.floats("grad.rows." + p.name)) <= tolerance);
        CHECK(relative_l2(of_columns, fixture.floats("grad.columns." + p.name)) <= tolerance);
    }
}
