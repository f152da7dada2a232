/*
The models with dropout that dev/fixtures/model_fixtures.py makes fixtures of, and their check on any device.
*/
#pragma once
#include <cstdint>
#include <vector>
#include "test/model/architectures.h"  // architecture_case
#include "test/model/model_testing.h"  // load_weights, kFixtureShape, kModelTolerance

struct DropoutCase {
    const char *fixture, *weights;  // fixtures: of the expected results; of weights, tokens and targets
    int64_t B, T;
    GptShape shape;
    Dropout dropout;
};

inline std::vector<DropoutCase> dropout_cases() {
    const ArchitectureCase& nano = architecture_case("nano_d5");
    return {{"dropout_gpt2", "model", kB, kT, kFixtureShape, {0.2, 7, 11, 5}},
            {"dropout_nanochat", "nano_d5", nano.B, nano.T, nano.shape, {0.4, (uint64_t(1) << 40) + 1, 0, 0}}};
}

template <class Device>
void check_dropout_gradients(Device& device, const DropoutCase& c) {
    const Fixture weights(c.weights), want(c.fixture);
    const int64_t N = c.B * c.T;
    typename Device::template ToDevice<int32_t> to_device(device, 2 * N);
    std::vector<int32_t> ids = weights.ints("tokens"), targets = weights.ints("targets");
    ids.insert(ids.end(), targets.begin(), targets.end());
    const int32_t* tokens = to_device.send(ids.data(), 2 * N);
    Gpt<Device, float> model(device, c.shape, c.B, c.T);
    load_weights(model, weights);
    model.zero_gradients();
    model.dropout = c.dropout;
    model.forward(tokens, c.B, c.T);
    const double loss = model.loss_and_gradient(tokens + N, 1 / float(N)),
                 want_loss = double(want.floats("want.loss")[0]);
    INFO(c.fixture);
    CHECK(std::fabs(loss - want_loss) <= 8 * kEpsF32 * want_loss);
    model.backward(tokens);
    for (const Parameter& p : model.parameters) {
        INFO(p.name);
        const Floats gradient = from_device(device, p, model.gradients.at(p));
        if (!want.has("grad.rows." + p.name)) {
            CHECK(relative_l2(gradient, want.floats("grad." + p.name)) <= kModelTolerance);
            continue;
        }
        const size_t columns = size_t(p.size() / p.shape[0]), rows = gradient.size() / columns;
        Floats of_rows(rows), of_columns(columns);
        for (size_t r = 0; r < rows; r++)
            for (size_t col = 0; col < columns; col++) {
                of_rows[r] += gradient[r * columns + col] * float(1 + col % 3);
                of_columns[col] += gradient[r * columns + col] * float(1 + r % 3);
            }
        CHECK(relative_l2(of_rows, want.floats("grad.rows." + p.name)) <= kModelTolerance);
        CHECK(relative_l2(of_columns, want.floats("grad.columns." + p.name)) <= kModelTolerance);
    }
}
