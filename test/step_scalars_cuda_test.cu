// What an optimizer step decides, on the device: the CPU's decisions, bit for bit.
#include "llmc/cuda/step_scalars.cuh"
#include "llmc/cpu/step_scalars.h"
#include "test/cuda_testing.h"  // OnDevice

static bool same_decision(const StepScalars& a, const StepScalars& b) {
    const auto same = [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); };
    return same(a.loss, b.loss) && same(a.norm_squared, b.norm_squared) && same(a.norm, b.norm) &&
           same(a.grad_scale, b.grad_scale) && a.updates == b.updates && a.applied == b.applied;
}

TEST_CASE("add_mean_loss on the device agrees with the CPU", "[step_scalars]" ON_DEVICE) {
    const size_t n = GENERATE(size_t(1), size_t(33), size_t(1024), size_t(5000));
    INFO(n << " losses");
    const Floats losses = randn(n, 1);
    Cpu cpu;
    StepScalars want{.loss = 3};
    add_mean_loss(cpu, &want, losses.data(), int64_t(n), 0.125);
    Cuda cuda;
    const OnDevice<float> d_losses(cuda, losses);
    double first = 0;
    for (const int run : {0, 1}) {
        OnDevice<StepScalars> d_s(cuda, std::vector{StepScalars{.loss = 3}});
        add_mean_loss(cuda, d_s.data, d_losses.data, int64_t(n), 0.125);
        const StepScalars got = d_s.values()[0];
        CHECK(std::fabs(got.loss - want.loss) <= 0x1p-52 * double(n));  // n additions of numbers near 1, then divided
        CHECK((got.updates == 0 && got.applied == 0 && got.grad_scale == 1));
        if (run == 0) first = got.loss;
        CHECK(got.loss == first);
    }
}

TEST_CASE("add_mean_loss of whole numbers is exact on the device", "[step_scalars]" ON_DEVICE) {
    const int64_t n = 4096;
    const Floats losses = whole_numbers(n, 1, 1000);
    double sum = 0;
    for (const float loss : losses) sum += double(loss);
    Cuda cuda;
    const OnDevice<float> d_losses(cuda, losses);
    OnDevice<StepScalars> d_s(cuda, std::vector{StepScalars{.loss = 5}});
    add_mean_loss(cuda, d_s.data, d_losses.data, n, 0.5);
    CHECK(d_s.values()[0].loss == 5 + 0.5 * (sum / double(n)));
}

TEST_CASE("decide_step on the device is the CPU's", "[step_scalars]" ON_DEVICE) {
    const double nan = NAN, infinity = INFINITY;
    Cpu cpu;
    Cuda cuda;
    for (const double loss : {2., -1., nan, infinity, -infinity})
        for (const double norm_squared : {0., 1e-30, 2.25, 7., 1e300, nan, infinity})
            for (const double clip : {0., 1., 1.5}) {
                StepScalars s{.loss = loss, .norm_squared = norm_squared, .norm = -1, .updates = 41, .applied = 7};
                OnDevice<StepScalars> d_s(cuda, std::vector{s});
                decide_step(cuda, d_s.data, clip);
                decide_step(cpu, &s, clip);
                INFO("loss " << loss << ", norm squared " << norm_squared << ", clip " << clip);
                CHECK(same_decision(d_s.values()[0], s));
            }
}
