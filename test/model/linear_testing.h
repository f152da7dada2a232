/*
The models with FP8 layers that dev/fixtures/model_fixtures.py makes fixtures of, and one training step of such a model.
*/
#pragma once
#include <cstdint>
#include <vector>
#include "llmc/model/gpt.h"            // Gpt
#include "llmc/model/mlp.h"            // mlp_up, mlp_down, mlp_backward
#include "test/fixture.h"              // Fixture
#include "test/model/architectures.h"  // small_shape
#include "test/model/model_testing.h"  // from_device
#include "test/op_testing.h"           // bell

// All linear layers are computed in FP8, except for the second MLP layer of fp8_llama.
//                          layers, heads, channels, longest sequence, vocabulary, key/value heads, MLP
inline const std::vector<ArchitectureCase> kFp8Cases = {
    {"fp8_gpt2", 1, 16, {2, 2, 128, 16, 61, 2, 128}},
    {"fp8_nanochat", 2, 8, small_shape("nanochat", {3, 2, 128, 8, 61, 1, 128}, "SSL", 3)},
    {"fp8_llama", 2, 8, small_shape("llama", {2, 2, 128, 8, 61, 1, 64})},
    {"fp8_llama_wide", 2, 8, small_shape("llama", {2, 2, 128, 8, 61, 1, 128})},
};

// In MX, whose blocks take 32 tokens: the layers of attention.
inline const ArchitectureCase kMxCase = {"mx_gpt2", 2, 16, {1, 2, 128, 16, 61, 2, 64}};

// The weights that model_in_fp8() of dev/fixtures/model_fixtures.py makes.
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

template <class Device, class T>
void set_made_weights(Gpt<Device, T>& model, const ArchitectureCase& c) {
    const Fixture fixture(c.fixture);
    model.initialize_weights(7);
    for (const Parameter& p : model.parameters) model.set_weight(p, made_weights(p, fixture).data());
}

// A step of two equal micro-batches, each with half the weight.
template <class Device, class T>
Learned step_of(Device& device, Gpt<Device, T>& model, const ArchitectureCase& c) {
    const Fixture fixture(c.fixture);
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

// Loss and gradients of a step of a fixture's model, with the fixture's weights or those of a new model.
template <class T, class Device>
Learned learn(Device& device, const ArchitectureCase& c, ActivationPolicy policy, bool is_new = false) {
    Gpt<Device, T> model(device, c.shape, c.B, c.T, policy);
    if (is_new)
        model.initialize_weights(7);
    else
        set_made_weights(model, c);
    return step_of(device, model, c);
}

// Runs the same step twice. The first computes scales from its tensors and notes their maxima, which the second uses as
// delayed scales. Both must have the same bits, which scales of another tensor or step would change.
template <class T, class Device>
void check_delayed_scales(Device& device, const ArchitectureCase& c, Recompute recompute) {
    INFO(c.fixture << ", recompute " << int(recompute));
    Gpt<Device, T> model(device, c.shape, c.B, c.T, {recompute, true, 0, 1});
    set_made_weights(model, c);
    Arena arena(device, "notes", 1 << 12);
    float* const seen = arena.take<float>(model.acts.amax.tensors);
    auto* const saturated = arena.take<uint64_t>(1);
    fill_zero(device, seen, model.acts.amax.tensors), fill_zero(device, saturated, 1);
    model.linear.amax_notes = {seen, saturated};
    const Learned current = step_of(device, model, c);
    model.op.update_amax(device, model.acts.amax, seen, 1);
    model.linear.count_amax_step();
    REQUIRE(model.linear.has_delayed_scales());
    const Learned delayed = step_of(device, model, c);
    CHECK(delayed.loss == current.loss);
    for (size_t i = 0; i < current.gradients.size(); i++) {
        INFO(model.parameters.parameters[i].name);
        CHECK(same_bits(delayed.gradients[i], current.gradients[i]));
    }
    uint64_t count = 1;
    copy_to_host(device, &count, saturated, 1);
    CHECK(count == 0);
}

// Checks that a fused SwiGLU MLP with both layers in FP8 computes and notes the same bits as its ops one by one.
template <class T, class Device>
void check_swiglu_mlp(Device& device, bool is_delayed, bool has_biases) {
    constexpr int64_t N = 32, C = 32, F = 48;
    INFO((is_delayed ? "delayed scales" : "scales of their own") << (has_biases ? ", biases" : ""));
    const auto results = [&](bool fused) {
        Arena arena(device, "mlp", 1 << 20);
        const auto give = [&]<class U>(U, const Floats& values) {
            std::vector<U> host;
            for (const float x : values) host.push_back(rounded_value<U>(x));
            U* data = arena.take<U>(int64_t(host.size()));
            copy_to_device(device, data, host.data(), int64_t(host.size()));
            return data;
        };
        std::vector<Floats> all;
        const auto get = [&]<class U>(const U* data, int64_t n) {
            std::vector<U> host(static_cast<size_t>(n));
            copy_to_host(device, host.data(), data, n);
            all.emplace_back();
            for (const U x : host) all.back().push_back(float(to_float(x)));
        };
        const auto state = [&](int64_t in, int64_t out) {
            return Fp8LinearState{arena.take<e4m3>(in * out), arena.take<e4m3>(in * out), arena.take<e4m3>(N * in),
                                  arena.take<float>(1), arena.take<float>(1)};
        };
        const Fp8LinearState of_up = state(C, 2 * F), of_down = state(F, C);
        const Fp8Scratch scratch = {arena.take<uint8_t>(N * 2 * F), arena.take<uint8_t>(N * 2 * F),
                                    arena.take<float>(1),           arena.take<float>(1),
                                    arena.take<float>(1),           arena.take<float>(1)};
        float* const noted = give(0.f, Floats(4, 0));
        auto* const saturated = arena.take<uint64_t>(1);
        fill_zero(device, saturated, 1);
        const auto delayed = [&](int64_t i, float amax) -> Fp8Operand {
            if (!is_delayed) return {};
            return {give(0.f, {amax}), {noted + i, saturated}};
        };
        LinearLayer<T> up{.N = N, .C = C, .OC = 2 * F, .fp8 = &of_up, .scratch = scratch};
        LinearLayer<T> down{.N = N, .C = F, .OC = C, .fp8 = &of_down, .scratch = scratch};
        up.weight = give(T(), randn(size_t(2 * F * C), 1, 0.2f)),
        down.weight = give(T(), randn(size_t(C * F), 2, 0.2f));
        up.dweight = give(0.f, randn(size_t(2 * F * C), 3)), down.dweight = give(0.f, randn(size_t(C * F), 4));
        if (has_biases) up.dbias = give(0.f, randn(size_t(2 * F), 5));
        up.fp8_inp = delayed(0, 2), up.fp8_dout = delayed(1, 0.2f);
        down.fp8_inp = delayed(2, 0.5f), down.fp8_dout = delayed(3, 2);
        T *const inp = give(T(), randn(size_t(N * C), 6)), *const dout = give(T(), randn(size_t(N * C), 7));
        T *const hidden = arena.take<T>(N * 2 * F), *const activated = arena.take<T>(N * F);
        T *const d_activated = arena.take<T>(N * F), *const d_hidden = arena.take<T>(N * 2 * F);
        T *const out = arena.take<T>(N * C), *const dinp = arena.take<T>(N * C);
        linear_quantize_weight(device, up), linear_quantize_weight(device, down);
        if (fused) {
            if (!is_delayed) up.fp8_dout.amax = scratch.dout_amax;
            down.fp8_inp.activation = Activation::swiglu;
            if (is_delayed && !has_biases) up.fp8_dout.activation = Activation::swiglu;
            constexpr MlpKind kSwiglu = MlpKind::swiglu;
            mlp_up(device, activated, hidden, inp, up, down, kSwiglu);
            mlp_down(device, out, activated, hidden, down);
            mlp_backward(device, dinp, d_activated, dout, inp, activated, hidden, up, down, kSwiglu);
        } else {
            linear_forward(device, hidden, inp, up);
            ops<T>(device).swiglu_forward(device, activated, hidden, N, F);
            linear_forward(device, out, activated, down);
            linear_backward(device, d_activated, dout, activated, down);
            ops<T>(device).swiglu_backward(device, d_hidden, d_activated, hidden, N, F);
            linear_backward(device, dinp, d_hidden, inp, up);
        }
        get(out, N * C), get(dinp, N * C), get(up.dweight, 2 * F * C), get(down.dweight, C * F), get(noted, 4);
        if (has_biases) get(up.dbias, 2 * F);
        uint64_t count = 0;
        copy_to_host(device, &count, saturated, 1);
        all.push_back({float(count)});
        CHECK((count > 0) == is_delayed);
        return all;
    };
    const auto got = results(true), want = results(false);
    for (size_t i = 0; i < want.size(); i++) {
        INFO("result " << i);
        CHECK(same_bits(got[i], want[i]));
    }
}

// Compares with PyTorch: loss and gradients, those of matrices by weighted sums of their rows and of their columns.
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
