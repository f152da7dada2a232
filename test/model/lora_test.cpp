// Adapters of linear layers: their gradients against those of a dense model, and what does not learn.
#include "llmc/model/lora.h"
#include <set>
#include "llmc/cpu/kernels.h"
#include "test/model/lora_testing.h"
#include "test/testing.h"

TEST_CASE("the gradients of A and B are those of the merged weights, projected", "[lora]") {
    for (const LoraCase& c : kLoraCases)
        for (const Recompute recompute : {Recompute::none, Recompute::norms, Recompute::block}) {
            INFO(c.name << ", recompute " << int(recompute));
            Cpu cpu;
            const LoraLearned adapted = learn_beside<float>(cpu, c.shape, false, recompute, c.B, c.T),
                              dense = learn_beside<float>(cpu, c.shape, true, recompute, c.B, c.T);
            check_lora_gradients(c.shape, adapted, dense, kModelTolerance);
            CHECK(adapted.gradient_elements == ParameterList(c.shape).learned_size());
        }
}

// Each layer rounds about sixteen tensors on the way there and back, by half a unit at random: two units.
TEST_CASE("in bf16 an adapter's gradients are those of fp32 but for roundings", "[lora]") {
    for (const LoraCase& c : kLoraCases) {
        INFO(c.name);
        Cpu cpu;
        const LoraLearned got = learn_beside<bf16>(cpu, c.shape, false, Recompute::none, c.B, c.T),
                          want = learn_beside<float>(cpu, c.shape, false, Recompute::none, c.B, c.T);
        CHECK(std::fabs(got.loss - want.loss) <= kEpsBf16 * want.loss);
        for (const auto& [name, values] : want.gradients) {
            INFO(name);
            CHECK(relative_l2(got.gradients.at(name), values) <= 2 * kEpsBf16 * double(c.shape.num_layers));
        }
    }
}

TEST_CASE("dropout of adapters depends on the row and the step, and not on how it is recomputed", "[lora]") {
    const LoraCase& c = kLoraCases[1];
    const GptShape shape = with_lora(c.shape, true, 0.25);
    Cpu cpu;
    const auto learned = [&](Recompute recompute, uint64_t step, int64_t first_row) {
        return learn_beside<float>(cpu, shape, false, recompute, c.B, c.T,
                                   {.p = 0.25, .seed = 3, .step = step, .first_row = first_row});
    };
    const LoraLearned first = learned(Recompute::none, 0, 0), again = learned(Recompute::block, 0, 0);
    CHECK(again.loss == first.loss);
    CHECK(again.gradients == first.gradients);
    CHECK(learned(Recompute::none, 1, 0).loss != first.loss);
    CHECK(learned(Recompute::none, 0, 1).loss != first.loss);
    CHECK(learn_beside<float>(cpu, shape, false, Recompute::none, c.B, c.T).loss != first.loss);
}

TEST_CASE("with dropout, an adapter's gradient is the slope of the loss, and every adapter has its own mask",
          "[lora]") {
    const LoraCase& c = kLoraCases[1];
    const GptShape shape = with_lora(c.shape, true, 0.25);
    const Dropout dropout{.p = 0.25, .seed = 3, .step = 1, .first_row = 2};
    Cpu cpu;
    const auto norm_of = [](const Floats& x) { return rms(x.data(), int64_t(x.size())) * std::sqrt(double(x.size())); };
    const auto learned = [&](const std::map<std::string, Floats>& more) {
        return learn_beside<float>(cpu, shape, false, Recompute::none, c.B, c.T, dropout, more);
    };
    // Of the first layer, before the adapters of all others, along random directions: what is not a multiple of the
    // gradient shows in them.
    const std::string name = "h.0.attn.c_attn.lora_B";
    const Floats gradient = learned({}).gradients.at(name);
    const double h = 0.02, usual = norm_of(gradient) / std::sqrt(double(gradient.size()));  // usual: a slope
    for (uint64_t seed = 1; seed <= 8; seed++) {
        Floats direction = randn(gradient.size(), seed);
        const double length = norm_of(direction);
        double slope = 0;
        for (size_t i = 0; i < gradient.size(); i++) slope += double(gradient[i]) * double(direction[i]) / length;
        const auto loss_at = [&](double distance) {
            Floats step = direction;
            for (float& x : step) x = float(double(x) * distance / length);
            return learned({{name, step}}).loss;
        };
        // The third derivative is left, and a rounding of the loss divided by h.
        CHECK(std::fabs((loss_at(h) - loss_at(-h)) / (2 * h) - slope) <= 0.02 * usual);
    }

    Gpt<Cpu> model(cpu, shape, c.B, c.T);
    model.dropout = dropout;
    model.begin_forward(c.B, c.T);
    std::set<uint64_t> keys;
    for (size_t site = 0; site < 1 + 2 * size_t(shape.num_layers); site++) keys.insert(dropout.key_of(site));
    for (size_t l = 0; l < size_t(shape.num_layers); l++)
        for (const LinearKind kind : kLinearKinds) {
            keys.insert(model.linear(l, kind).lora.mask.key);
            CHECK(model.linear(l, kind).lora.mask.first == uint64_t(2 * c.T * linear_size(shape, kind).C));
        }
    CHECK(keys.size() == 1 + 6 * size_t(shape.num_layers));
}

TEST_CASE("new adapters are PEFT's: A is uniform in one over the root of its inputs, and B zero", "[lora]") {
    const GptShape shape = kLoraCases[1].shape;
    for (const Parameter& p : ParameterList(shape)) {
        CHECK(p.is_frozen == !p.is_adapter);
        if (!p.is_adapter) continue;
        INFO(p.name);
        Floats values(static_cast<size_t>(p.size()));
        initialize(p, values.data(), 7);
        const auto [low, high] = std::minmax_element(values.begin(), values.end());
        const auto bound = float(1 / std::sqrt(double(p.shape[1])));
        if (p.name.ends_with(kLoraB)) {
            CHECK(*low == 0);
            CHECK(*high == 0);
            continue;
        }
        CHECK(*low >= -bound);
        CHECK(*low < -0.9f * bound);
        CHECK(*high <= bound);
        CHECK(*high > 0.9f * bound);
    }
}

TEST_CASE("an adapter larger than its matrix is refused", "[lora]") {
    GptShape shape = kLoraCases[1].shape;
    shape.lora.rank = 16;
    check_lora(shape);
    shape.lora.rank = 17;  // keys have two heads of 8 channels
    CHECK(contains(error_of([&] { check_lora(shape); }),
                   "--lora-rank 17: qkv has a matrix of 16 x 32, so the rank is at most 16"));
    shape.lora.targets[kQkv] = false;
    check_lora(shape);
    shape.lora.rank = 33;
    CHECK(contains(error_of([&] { check_lora(shape); }), "so the rank is at most 32"));
}

TEST_CASE("beside a base in FP8 adapters learn as in a model in FP8", "[lora]") {
    for (const LoraCase& c : kFp8LoraCases)
        for (const Recompute recompute : {Recompute::none, Recompute::norms, Recompute::block}) {
            INFO(c.name << ", recompute " << int(recompute));
            Cpu cpu;
            check_fp8_base<float>(cpu, c.shape, recompute, c.B, c.T);
        }
}

TEST_CASE("a base in FP8 is there once, in a byte a weight, and is computed in any number of rows", "[lora]") {
    const LoraCase& c = kFp8LoraCases[0];
    GptShape shape = c.shape;
    Cpu cpu;
    const Gpt<Cpu> wide(cpu, shape, c.B, c.T);
    shape.lora.fp8_base = true;
    Gpt<Cpu> model(cpu, shape, c.B, c.T, {Recompute::none, true});
    const int64_t matrices = 2 * (128 * 3 * 128 + 128 * 128 + 2 * 128 * 144);
    CHECK(wide.weights.size - model.weights.size == matrices);
    // Beside the codes: the largest one transposed, and the rows of an input.
    const auto more = int64_t(model.acts.bytes()) - int64_t(wide.acts.bytes());
    CHECK(more >= matrices + 3 * 128 * 128 + 32 * 3 * 128);
    CHECK(more < matrices + 3 * 128 * 128 + 32 * 3 * 128 + 24 * int64_t(kAlignment));

    for (const Parameter& p : model.parameters) model.set_weight(p, lora_test_values(p).data());
    const std::vector<int32_t> tokens(32, 7);
    const auto loss_of = [&](int64_t T) {
        model.forward(tokens.data(), 1, T);
        return model.loss(tokens.data());
    };
    // A token that sees itself alone, whatever their number: one row has the loss of sixteen.
    CHECK(loss_of(1) > 0);
    CHECK(std::fabs(loss_of(13) - loss_of(16)) < 0.2);
    CHECK(loss_of(16) == loss_of(16));
}

TEST_CASE("to a layer in FP8 an adapter adds what it adds to any layer", "[lora]") {
    const LoraCase& c = kFp8LoraCases[1];
    GptShape shape = c.shape;
    shape.lora.fp8_base = true;
    Cpu cpu;
    Gpt<Cpu> model(cpu, shape, c.B, c.T, {Recompute::none, true});
    for (const Parameter& p : model.parameters) model.set_weight(p, lora_test_values(p).data());
    model.begin_step();
    model.begin_forward(c.B, c.T);
    LinearLayer<float> layer = model.linear(0, kUp);
    layer.fp8_inp.amax = layer.fp8_dout.amax = nullptr;  // no norm has stored it
    const Floats inp = randn(size_t(layer.N * layer.C), 1), dout = randn(size_t(layer.N * layer.OC), 2);
    const auto passes = [&](bool apart) {
        const LoraLayer<float> lora = layer.lora;
        LinearLayer<float> s = layer;
        if (apart) s.lora = {};
        Floats out(dout.size()), dinp(inp.size());
        linear_forward(cpu, out.data(), inp.data(), s);
        if (apart) lora_forward(cpu, out.data(), inp.data(), lora);
        for (const Write write : {Write::set, Write::add}) {
            s.write = write;
            linear_backward(cpu, dinp.data(), dout.data(), inp.data(), s);
            if (apart) lora_backward(cpu, dinp.data(), dout.data(), inp.data(), lora, write);
        }
        const int64_t rows = lora.shape.width();
        return std::vector{out, dinp, Floats(lora.da, lora.da + rows * layer.C),
                           Floats(lora.db, lora.db + layer.OC * lora.shape.rank)};
    };
    const auto got = passes(false), want = passes(true);
    for (size_t i = 0; i < want.size(); i++) {
        INFO("result " << i);
        CHECK(same_bits(got[i], want[i]));
        CHECK(rms(got[i].data(), int64_t(got[i].size())) > 0);
    }
}
