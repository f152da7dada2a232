/*
Compares models in bf16, on any device, with the same models in fp32 on the CPU, with bounds for the effect of rounding
on loss and gradients.

  check_bf16_model(cuda);              GPT-2
  check_bf16_architectures(cuda);      the others; a number skips that many
*/
#pragma once
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>
#include "llmc/cpu/kernels.h"  // Cpu
#include "llmc/model/gpt.h"
#include "test/model/architectures.h"  // small_shape
#include "test/model/model_testing.h"  // learn, without_key_bias
#include "test/op_testing.h"           // relative_l2, rounded

inline const GptShape kBf16Shape{2, 2, 128, 80, 300};  // heads of 64
inline constexpr int64_t kBf16B = 2, kBf16T = 77;

// Every activation is rounded to bf16, with a random error of up to half a unit, kEpsBf16 / 2 of its size. A block has
// eight such roundings in sequence, the residual stream adds one per branch, and the backward pass has as many. These
// are about 2 * (8 + 1) * layers + the ends = 40 independent errors: sqrt(40) / 2 = 3 units of the gradient's norm, if
// all weigh as much as the last. The loss, a mean over all tokens, is off by less than one unit.
template <class Device>
void check_bf16_model(Device& device) {
    Cpu cpu;
    Gpt<Cpu, float> exact(cpu, kBf16Shape, kBf16B, kBf16T);
    Gpt<Device, bf16> model(device, kBf16Shape, kBf16B, kBf16T);
    for (const Parameter& p : model.parameters) {
        Floats values(size_t(p.size()));
        initialize(p, values.data(), 7);
        values = rounded<bf16>(values);
        exact.set_weight(p, values.data());
        model.set_weight(p, values.data());
    }
    const auto [want_loss, want] = learn(cpu, exact, kBf16B, kBf16T);
    const auto [loss, got] = learn(device, model, kBf16B, kBf16T);
    CHECK(std::fabs(loss - want_loss) <= kEpsBf16 * want_loss);
    size_t i = 0;
    for (const Parameter& p : model.parameters) {
        INFO(p.name);
        const Floats want_kept = without_key_bias(p.name, want[i]);  // its gradient is rounding noise
        CHECK(relative_l2(without_key_bias(p.name, got[i]), want_kept) <= 3 * kEpsBf16);
        i++;
    }
}

// Heads of 64 channels, two query heads per key/value head; three layers, the first with a short window.
inline constexpr int64_t kB16 = 2, kT16 = 40;
inline GptShape bf16_shape(const char* architecture) {
    GptShape shape{3, 2, 128, kT16, 300, 1, 192};
    return small_shape(architecture, shape, "SLL", 9);
}

// Random weights that bf16 represents exactly, and that leave nothing at zero or in its linear range: see WEIGHTS of
// dev/fixtures/model_fixtures.py. Like those of a trained model, matrices (1 / sqrt(C)) preserve the size of
// activations.
inline Floats random_weights(const Parameter& p) {
    uint64_t seed = 1;
    for (const char letter : p.name) seed = mix64(seed ^ uint64_t(letter));
    Rng rng(seed, Stream::tests);
    double mean = 0, deviation = 1 / std::sqrt(128.);
    if (p.name == "resid_lambdas") mean = 1.1, deviation = 0.1;
    if (p.name == "x0_lambdas") mean = 0.25, deviation = 0.1;
    if (p.name == "smear_lambda") mean = 0.9, deviation = 0.1;
    if (p.name == "backout_lambda") mean = 0.5, deviation = 0.1;
    if (p.name.starts_with("ln_") || p.name.find(".ln_") != std::string::npos ||
        p.name.find("_norm.") != std::string::npos)
        mean = p.name.ends_with("weight") ? 1 : 0, deviation = 0.2;
    Floats values(size_t(p.size()), 0);
    const int64_t used = p.exported_rows * (p.size() / p.shape[0]);
    for (int64_t i = 0; i < used; i++) values[size_t(i)] = float(mean + deviation * rng.normal());
    return rounded<bf16>(values);
}

template <class Device, class T>
std::pair<double, std::vector<Floats>> learn_from_random_weights(Device& device, Gpt<Device, T>& model) {
    for (const Parameter& p : model.parameters) model.set_weight(p, random_weights(p).data());
    return learn(device, model, kB16, kT16);
}

// The bound is derived as above. A block has up to ten roundings in sequence (mix, norm, q k v, value embedding,
// rotary, attention, projection, norm, hidden layer, activation), the residual stream adds two, and the backward pass
// has as many. Smear, norms, backout and head at the ends are eight. 2 * 12 * 3 layers + 8 = 80 independent errors of
// half a unit.
template <class Device>
void check_bf16_architectures(Device& device, size_t skipped = 0) {
    const double units = std::sqrt(80.) / 2;
    const auto families = with_head_channels(32, qkv_biases(qk_gains(bf16_shape("llama"))));
    const std::pair<const char*, GptShape> cases[] = {{"llama", bf16_shape("llama")},
                                                      {"stage-a", bf16_shape("stage-a")},
                                                      {"families", families},
                                                      {"nanochat", bf16_shape("nanochat")}};
    for (const auto& [architecture, shape] : std::span(cases).subspan(skipped)) {
        Cpu cpu;
        Gpt<Cpu, float> exact(cpu, shape, kB16, kT16);
        Gpt<Device, bf16> model(device, shape, kB16, kT16);
        const auto [want_loss, want] = learn_from_random_weights(cpu, exact);
        const auto [loss, got] = learn_from_random_weights(device, model);
        INFO(architecture);
        CHECK(std::fabs(loss - want_loss) <= kEpsBf16 * want_loss);
        Floats lambdas, want_lambdas;
        for (size_t i = 0; i < got.size(); i++) {
            const Parameter& p = model.parameters.parameters[i];
            if (p.group == ParameterGroup::resid_lambdas || p.group == ParameterGroup::x0_lambdas) {
                lambdas.insert(lambdas.end(), got[i].begin(), got[i].end());
                want_lambdas.insert(want_lambdas.end(), want[i].begin(), want[i].end());
                continue;
            }
            INFO(p.name);
            CHECK(relative_l2(got[i], want[i]) <= units * kEpsBf16);
        }
        // The gradients of a layer's two lambdas are dot products of one gradient with two streams. If that is nearly
        // orthogonal to a stream, the product is small but its error is not. So both are compared together.
        if (!lambdas.empty()) CHECK(relative_l2(lambdas, want_lambdas) <= units * kEpsBf16);
        Gpt<Device, bf16> again(device, shape, kB16, kT16, Recompute::block);
        CHECK((learn_from_random_weights(device, again).second == got));
    }
}
