// The decisions of an optimizer step: the exactly summed loss, when gradients are clipped, and when the step is
// skipped.
#include "llmc/cpu/step_scalars.h"
#include "test/op_testing.h"  // on_any_threads
#include "test/testing.h"

static StepScalars with_sums(double loss, double squares, uint64_t targets = 10) {
    StepScalars s{.loss = -1, .norm = -1, .grad_scale = -1, .updates = 6, .applied = 7};
    s.sums.loss.add(loss);
    s.sums.squares.add(squares);
    s.sums.targets = targets;
    return s;
}

TEST_CASE("add_mean_loss adds weighted means in double", "[step_scalars]") {
    const Floats losses = randn(1000, 1), others = randn(1000, 2);
    Ints targets(1000, 0);
    targets[500] = -1;
    double sum = 0, other_sum = 0;
    for (size_t i = 0; i < 1000; i++) sum += double(losses[i]), other_sum += double(others[i]);
    for (const int threads : {1, 2, 3}) {
        Cpu cpu(threads);
        StepScalars s;
        add_mean_loss(cpu, &s, losses.data(), targets.data(), 1000, 0.25);
        CHECK(s.sums.targets == 999);
        CHECK(s.sums.loss.value() == 0.25 * (sum / 1000));
        CHECK(s.sums.loss.value() == 0.25 * mean(cpu, losses.data(), 1000));
        add_mean_loss(cpu, &s, others.data(), targets.data(), 1000, 0.75);
        CHECK(s.sums.targets == 1998);
        CHECK(s.sums.loss.value() == 0.25 * (sum / 1000) + 0.75 * (other_sum / 1000));
        CHECK(s.sums.squares.value() == 0);
    }
}

TEST_CASE("the loss of micro-batches does not depend on their order or on who computed them", "[step_scalars]") {
    Cpu cpu(1);
    const int64_t n = 40, micro_batches = 7;
    const Floats losses = randn(size_t(n * micro_batches), 1);
    Ints targets(size_t(n * micro_batches), 3);
    for (size_t i = 0; i < targets.size(); i += 3) targets[i] = -100;
    StepScalars in_order;
    for (int64_t i = 0; i < micro_batches; i++)
        add_mean_loss(cpu, &in_order, losses.data() + i * n, targets.data() + i * n, n, 1. / double(micro_batches));
    for (uint64_t seed = 0; seed < 10; seed++) {
        const Permutation order(uint64_t(micro_batches), seed);
        StepScalars ranks[2];
        for (int64_t i = 0; i < micro_batches; i++) {
            const int64_t first = int64_t(order(uint64_t(i))) * n;
            add_mean_loss(cpu, &ranks[i % 2], losses.data() + first, targets.data() + first, n,
                          1. / double(micro_batches));
        }
        uint64_t words[2][sizeof(StepSums) / 8], want[sizeof(StepSums) / 8];
        for (const int rank : {0, 1}) std::memcpy(words[rank], &ranks[rank].sums, sizeof(StepSums));
        std::memcpy(want, &in_order.sums, sizeof(StepSums));
        for (size_t w = 0; w < std::size(want); w++) CHECK(words[0][w] + words[1][w] == want[w]);
    }
}

TEST_CASE("decide_step scales a gradient down to the limit, and no other", "[step_scalars]") {
    Cpu cpu(1);
    const auto decided = [&](double squares, double clip) {
        StepScalars s = with_sums(1.5, squares);
        const StepSums before = s.sums;
        decide_step(cpu, &s, clip, 10);
        CHECK((s.applied == 1 && s.updates == 7));
        CHECK(s.loss == 1.5);
        CHECK(s.norm == std::sqrt(squares));
        CHECK(std::memcmp(&s.sums, &before, sizeof before) == 0);
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
            StepScalars s = in_loss ? with_sums(bad, 4) : with_sums(2, bad);
            decide_step(cpu, &s, 1, 10);
            CHECK((s.applied == 0 && s.updates == 6));
            CHECK(std::isnan(s.loss) == in_loss);
            CHECK(std::isnan(s.norm) == !in_loss);
        }
}

TEST_CASE("decide_step makes means over the targets that count", "[step_scalars]") {
    Cpu cpu(1);
    StepScalars s = with_sums(0.75, 0.25, 4);  // sums of 3 and a norm of 2, as means over 4, stored as means over 16
    decide_step(cpu, &s, 0, 16);
    CHECK((s.loss == 3 && s.norm == 2 && s.grad_scale == 4 && s.applied == 1));
    s = with_sums(0.75, 0.25, 4);
    decide_step(cpu, &s, 1, 16);
    CHECK(s.grad_scale == 4 * (1 / (2 + 1e-6)));
    s = with_sums(0, 0, 0);
    decide_step(cpu, &s, 1, 16);
    CHECK((s.applied == 0 && s.updates == 6 && std::isnan(s.loss)));
}
