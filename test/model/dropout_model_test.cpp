// Models with dropout: against PyTorch with the same masks, with activation checkpointing, and in several batches.
#include "llmc/cpu/kernels.h"
#include "test/model/dropout_cases.h"
#include "test/testing.h"

TEST_CASE("loss and every gradient under dropout agree with PyTorch", "[dropout_model]") {
    Cpu cpu;
    for (const DropoutCase& c : dropout_cases()) check_dropout_gradients<Cpu>(cpu, c);
}

TEST_CASE("with dropout, what is recomputed has the same bits", "[dropout_model]") {
    Cpu cpu;
    for (const DropoutCase& c : dropout_cases()) {
        const auto gradients = [&](ActivationPolicy policy) {
            Gpt<Cpu> model(cpu, c.shape, c.B, c.T, policy);
            load_weights(model, Fixture(c.weights));
            model.dropout = c.dropout;
            return learn(cpu, model, c.B, c.T);
        };
        const auto want = gradients(Recompute::none);
        CHECK(gradients(Recompute::norms) == want);
        CHECK(gradients(Recompute::block) == want);
        CHECK(gradients(Recomputation(Recompute::block, 1)) == want);
    }
}

TEST_CASE("a row drops the same elements in any micro-batch", "[dropout_model]") {
    Cpu cpu;
    const DropoutCase c = dropout_cases()[0];
    const std::vector<int32_t> tokens = Fixture(c.weights).ints("tokens"), targets = Fixture(c.weights).ints("targets");
    Gpt<Cpu> model(cpu, c.shape, c.B, c.T);
    load_weights(model, Fixture(c.weights));
    model.dropout = c.dropout;
    model.forward(tokens.data(), c.B, c.T);
    model.loss(targets.data());
    const Floats together(model.acts.losses, model.acts.losses + c.B * c.T);
    for (int64_t row = 0; row < c.B; row++) {
        model.dropout.first_row = c.dropout.first_row + row;
        model.forward(tokens.data() + row * c.T, 1, c.T);
        model.loss(targets.data() + row * c.T);
        CHECK(Floats(model.acts.losses, model.acts.losses + c.T) ==
              Floats(together.begin() + row * c.T, together.begin() + (row + 1) * c.T));
    }
    // And not the same in another row or step.
    for (const Dropout other : {Dropout{0.2, 7, 11, 6}, Dropout{0.2, 7, 12, 5}, Dropout{0.2, 8, 11, 5}, Dropout{}}) {
        model.dropout = other;
        model.forward(tokens.data(), 1, c.T);
        model.loss(targets.data());
        CHECK(Floats(model.acts.losses, model.acts.losses + c.T) != Floats(together.begin(), together.begin() + c.T));
    }
}
