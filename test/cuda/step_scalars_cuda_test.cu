// The decisions of an optimizer step on the device are the CPU's, bit for bit.
#include "llmc/cuda/step_scalars.cuh"
#include "llmc/cpu/step_scalars.h"
#include "test/cuda_testing.h"  // OnDevice

static StepScalars with_sums(double loss, double squares, uint64_t targets = 16) {
    StepScalars s{.loss = -1, .norm = -1, .updates = 41, .applied = 7};
    s.sums.loss.add(loss);
    s.sums.squares.add(squares);
    s.sums.targets = targets;
    return s;
}

static bool same_decision(const StepScalars& a, const StepScalars& b) {
    const auto same = [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); };
    return std::memcmp(&a.sums, &b.sums, sizeof a.sums) == 0 && same(a.loss, b.loss) && same(a.norm, b.norm) &&
           same(a.grad_scale, b.grad_scale) && a.updates == b.updates && a.applied == b.applied;
}

TEST_CASE("add_mean_loss on the device agrees with the CPU", "[step_scalars]" ON_DEVICE) {
    const size_t n = GENERATE(size_t(1), size_t(33), size_t(1024), size_t(5000));
    INFO(n << " losses");
    const Floats losses = randn(n, 1);
    Ints targets(n, 2);
    for (size_t i = 0; i < n; i += 5) targets[i] = -1;
    Cpu cpu;
    StepScalars want = with_sums(3, 2);
    add_mean_loss(cpu, &want, losses.data(), targets.data(), int64_t(n), 0.125);
    Cuda cuda;
    const OnDevice<float> d_losses(cuda, losses);
    const OnDevice<int32_t> d_targets(cuda, targets);
    double first = 0;
    for (const int run : {0, 1}) {
        OnDevice<StepScalars> d_s(cuda, std::vector{with_sums(3, 2)});
        add_mean_loss(cuda, d_s.data, d_losses.data, d_targets.data, int64_t(n), 0.125);
        const StepScalars got = d_s.values()[0];
        const double loss = got.sums.loss.value();
        // n additions of numbers near 1, then divided
        CHECK(std::fabs(loss - want.sums.loss.value()) <= 0x1p-52 * double(n));
        CHECK((got.sums.squares.value() == 2 && got.loss == -1));
        CHECK(got.sums.targets == 16 + n - (n + 4) / 5);
        CHECK(got.sums.targets == want.sums.targets);
        CHECK((got.updates == 41 && got.applied == 7 && got.grad_scale == 1));
        if (run == 0) first = loss;
        CHECK(loss == first);
    }
}

TEST_CASE("add_mean_loss of whole numbers is exact on the device", "[step_scalars]" ON_DEVICE) {
    const int64_t n = 4096;
    const Floats losses = whole_numbers(n, 1, 1000);
    double sum = 0;
    for (const float loss : losses) sum += double(loss);
    Cuda cuda;
    const OnDevice<float> d_losses(cuda, losses);
    const OnDevice<int32_t> d_targets(cuda, Ints(size_t(n), 1));
    OnDevice<StepScalars> d_s(cuda, std::vector{with_sums(5, 0)});
    add_mean_loss(cuda, d_s.data, d_losses.data, d_targets.data, n, 0.5);
    CHECK(d_s.values()[0].sums.loss.value() == 5 + 0.5 * (sum / double(n)));
}

TEST_CASE("decide_step on the device is the CPU's", "[step_scalars]" ON_DEVICE) {
    const double nan = NAN, infinity = INFINITY;
    Cpu cpu;
    Cuda cuda;
    for (const double loss : {2., -1., -1e-30, nan, infinity, -infinity})
        for (const double squares : {0., 1e-30, 2.25, 7., 1e80, nan, infinity})
            for (const double clip : {0., 1., 1.5})
                for (const uint64_t targets : {16, 5, 0}) {
                    StepScalars s = with_sums(loss, squares, targets);
                    s.sums.squares.add(std::fabs(squares) * 0x1p-60);  // more than a double holds
                    OnDevice<StepScalars> d_s(cuda, std::vector{s});
                    decide_step(cuda, d_s.data, clip, 16);
                    decide_step(cpu, &s, clip, 16);
                    INFO("loss " << loss << ", squares " << squares << ", clip " << clip << ", targets " << targets);
                    CHECK(same_decision(d_s.values()[0], s));
                }
}
