// Adapters of linear layers: their gradients against those of a dense model, and what does not learn.
#include "llmc/model/lora.h"
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
