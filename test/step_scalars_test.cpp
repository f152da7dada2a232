// What an optimizer step decides: the mean loss in double, when gradients are clipped, and when the step is skipped.
#include "llmc/cpu/step_scalars.h"
#include "test/op_testing.h"  // on_any_threads
#include "test/testing.h"

TEST_CASE("add_mean_loss adds weighted means in double", "[step_scalars]") {
    const Floats losses = randn(1000, 1), others = randn(1000, 2);
    double sum = 0, other_sum = 0;
    for (size_t i = 0; i < 1000; i++) sum += double(losses[i]), other_sum += double(others[i]);
    for (const int threads : {1, 2, 3}) {
        Cpu cpu(threads);
        StepScalars s;
        add_mean_loss(cpu, &s, losses.data(), 1000, 0.25);
        CHECK(s.loss == 0.25 * (sum / 1000));
        CHECK(s.loss == 0.25 * mean(cpu, losses.data(), 1000));
        add_mean_loss(cpu, &s, others.data(), 1000, 0.75);
        CHECK(s.loss == 0.25 * (sum / 1000) + 0.75 * (other_sum / 1000));
    }
}

TEST_CASE("decide_step scales a gradient down to the limit, and no other", "[step_scalars]") {
    Cpu cpu(1);
    const auto decided = [&](double norm_squared, double clip) {
        StepScalars s{.loss = 1.5, .norm_squared = norm_squared, .norm = -1, .grad_scale = -1, .updates = 6};
        decide_step(cpu, &s, clip);
        CHECK((s.applied == 1 && s.updates == 7));
        CHECK((s.loss == 1.5 && s.norm_squared == norm_squared));
        CHECK(s.norm == std::sqrt(norm_squared));
        return s.grad_scale;
    };
    CHECK(decided(9, 0) == 1);
    CHECK(decided(9, 3) == 1);
    CHECK(decided(9, 4) == 1);
    CHECK(decided(9, 1.5) == 1.5 / (3 + 1e-6));  // as torch.nn.utils.clip_grad_norm_
    CHECK(decided(0, 1) == 1);
}

TEST_CASE("decide_step skips a step whose loss or norm is not finite", "[step_scalars]") {
    Cpu cpu(1);
    for (const double bad : {double(NAN), double(INFINITY), -double(INFINITY)})
        for (const bool in_loss : {true, false}) {
            StepScalars s{.loss = in_loss ? bad : 2, .norm_squared = in_loss ? 4 : bad, .updates = 6, .applied = 1};
            decide_step(cpu, &s, 1);
            CHECK((s.applied == 0 && s.updates == 6));
        }
}
