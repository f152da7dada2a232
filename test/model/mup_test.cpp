// muP: initial values and rates by width, the standard parametrization at the base width, and the coordinate check.
#include <map>
#include "llmc/cpu/kernels.h"
#include "llmc/eval/activation_sizes.h"
#include "llmc/optim/optimizer.h"
#include "test/model/model_testing.h"

namespace {

GptShape shape_of(int channels, int base, const std::string& architecture = "gpt2", int head_channels = 0) {
    ModelConfig config;
    config.architecture = architecture, config.channels = channels, config.mup_base_width = base;
    config.num_layers = 2, config.num_heads = 4, config.seq_len = 32, config.vocab_size = 64;
    config.head_channels = head_channels;
    return config.shape(0);
}

// The deviation of an initial value, or the constant.
double size_of(const Init& init) { return init.kind == Init::Kind::uniform ? init.b / std::sqrt(3.) : init.a; }

bool is_near(double got, double want) { return std::fabs(got - want) <= 4 * 0x1p-52 * std::fabs(want); }

// The sizes of activations of a model that has learned one batch for some steps. Not inlined: g++ 12 fails on SIMD code
// inside Catch2's test cases.
[[gnu::noinline]] std::map<std::string, double> sizes_after(const GptShape& shape, int steps, double learning_rate) {
    constexpr int64_t B = 4, T = 16;
    Cpu cpu;
    Gpt<Cpu> model(cpu, shape, B, T);
    model.initialize_weights(1);
    OptimizerConfig rules;
    for (GroupRule& rule : rules.groups) rule.learning_rate = learning_rate;
    Optimizer<Cpu> optimizer(cpu, model.parameters, rules);
    Rng rng(1, Stream::tests);
    std::vector<int32_t> tokens, targets;
    for (int64_t i = 0; i < B * T; i++) tokens.push_back(int32_t(rng.below(uint64_t(shape.vocab_size))));
    for (const int32_t token : tokens) targets.push_back((token * 7 + 3) % int32_t(shape.vocab_size));
    for (int step = 0; step < steps; step++) {
        model.zero_gradients();
        model.forward(tokens.data(), B, T);
        model.loss_and_gradient(targets.data(), 1 / float(B * T));
        model.backward(tokens.data());
        const StepScalars scalars{.updates = step + 1, .applied = 1};
        optimizer.update(model.weights, model.gradients, rules.rates(1), &scalars);
    }
    model.forward(tokens.data(), B, T);
    return activation_sizes(model);
}

}  // namespace

TEST_CASE("muP at its base width is the standard parametrization", "[mup]") {
    for (const std::string& architecture : architecture_names()) {
        INFO(architecture);
        const GptShape mup = shape_of(64, 64, architecture), standard = shape_of(64, 0, architecture);
        CHECK(mup.architecture == standard.architecture);
        const ParameterList with(mup), without(standard);
        for (size_t i = 0; i < with.parameters.size(); i++) {
            const Parameter &p = with.parameters[i], &q = without.parameters[i];
            INFO(p.name);
            CHECK((p.init.kind == q.init.kind && p.init.a == q.init.a && p.init.b == q.init.b));
            CHECK((p.rate == 1 && q.rate == 1));
        }
    }
}

TEST_CASE("muP scales initial values and rates as table 3 of Tensor Programs V", "[mup]") {
    constexpr double m = 4;
    for (const std::string& architecture : architecture_names()) {
        const GptShape base = shape_of(64, 64, architecture), wide = shape_of(256, 64, architecture);
        const bool tied = base.architecture.tied_head, by_fan_in = base.architecture.init.by_fan_in;
        const ParameterList narrow(base), list(wide);
        for (size_t i = 0; i < list.parameters.size(); i++) {
            const Parameter& p = list.parameters[i];
            INFO(architecture << ": " << p.name);
            const bool is_gate = p.name.ends_with("ve_gate.weight");  // 12 inputs at any width
            const bool is_hidden = p.group == ParameterGroup::matrices && !is_gate;
            const bool is_output = p.group == ParameterGroup::head || (tied && p.name.starts_with("ln_f."));
            CHECK(p.rate == (is_hidden || is_output ? 1 / m : 1));
            CHECK(is_near(size_of(p.init), size_of(narrow.parameters[i].init) / (is_hidden   ? std::sqrt(m)
                                                                                 : is_output ? m
                                                                                             : 1)));
            // By the number of inputs it is the same with and without muP, except for the value embeddings.
            if (is_hidden && by_fan_in)
                CHECK(size_of(p.init) == size_of(ParameterList(shape_of(256, 0, architecture)).parameters[i].init));
        }
        const double given = find_architecture(architecture).score_scale;
        CHECK(base.architecture.score_scale == given);
        CHECK(wide.architecture.score_scale ==
              (given > 0 ? given : std::sqrt(1 / m / 64)));  // 1 / 64, times 4 = sqrt(16)
    }
    CHECK(shape_of(256, 64).architecture.score_scale == 4. / 64);
    CHECK(shape_of(256, 64, "gpt2", 64).architecture.score_scale == 0);  // heads of one size
    CHECK(shape_of(16, 64).architecture.score_scale == 1);               // 2 / sqrt(4): narrower than the base
}

// The size of what an update adds to an activation grows by the width in the standard parametrization, and not in muP.
// sqrt(8) is half way between, on a logarithmic axis.
TEST_CASE("coordinate check: sizes of activations do not depend on the width in muP, and grow without",
          "[mup][plain]") {
    const auto growth = [](const std::string& architecture, bool mup) {
        auto narrow = sizes_after(shape_of(64, mup ? 64 : 0, architecture), 5, 0.01);
        std::map<std::string, double> most;
        for (const int channels : {128, 256, 512})
            for (const auto& [name, size] : sizes_after(shape_of(channels, mup ? 64 : 0, architecture), 5, 0.01)) {
                const double ratio = size / narrow[name];
                if (std::fabs(std::log(ratio)) > std::fabs(std::log(most.insert({name, 1}).first->second)))
                    most[name] = ratio;
            }
        return most;
    };
    const double bound = std::sqrt(8.);
    for (const std::string architecture : {"gpt2", "llama"}) {
        auto mup = growth(architecture, true), standard = growth(architecture, false);
        REQUIRE(mup.size() == 5);
        for (const auto& [name, ratio] : mup) {
            INFO(architecture << ", " << name << ": " << ratio << " times in muP, " << standard[name] << " without");
            CHECK((ratio < bound && ratio > 1 / bound));
        }
        for (const char* name : {"attention", "mlp", "residual", "logits"}) {
            INFO(architecture << ", " << name << ": " << mup[name] << " times in muP, " << standard[name]
                              << " without");
            CHECK(standard[name] > bound);
        }
    }
}
