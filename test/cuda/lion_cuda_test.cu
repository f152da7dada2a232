// Lion's kernel against the CPU's function: the same bits, with and without bf16 weights; and a step that is skipped.
#include "llmc/cuda/lion.cuh"
#include <deque>
#include "llmc/cpu/lion.h"
#include "test/cuda_testing.h"  // OnDevice, rounded_value

constexpr LionHyper kHyper{.learning_rate = 3e-4, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 1};

template <class T>
static void lion_update(Cuda& cuda, T* param, float* master, float* m, const float* grad, int64_t n,
                        const LionHyper& hyper, const StepScalars* s) {
    const LionTensor<T> tensor{param, master, m, grad, n, hyper};
    lion_update(cuda, &tensor, 1, s);
}

// Fewer than a pack, a pack and a rest, and more than all blocks of a GPU take at once.
static size_t some_size(const Cuda& cuda) {
    const size_t i = GENERATE(size_t(0), size_t(1), size_t(2), size_t(3));
    return std::vector{size_t(3), size_t(8), size_t(1029),
                       size_t(kLionBlocksPerSm * cuda.num_sms * kLionThreads * 8 + 2055)}[i];
}

TEMPLATE_TEST_CASE("lion_update on the device has the CPU's bits", "[lion]" ON_DEVICE, float, bf16) {
    using T = TestType;
    Cuda cuda;
    const size_t n = some_size(cuda);
    INFO(n << " elements");
    const Floats start = randn(n, 1);
    Cpu cpu;
    Floats want = start, want_m(n, 0);
    OnDevice<float> master(cuda, start), m(cuda, Floats(n, 0));
    OnDevice<bf16> param(cuda, n);
    for (const int64_t step : {1, 2, 3}) {
        const StepScalars s{.grad_scale = step == 2 ? 0.37 : 1, .updates = step, .applied = 1};
        const OnDevice<StepScalars> d_s(cuda, std::vector{s});
        Floats grad = randn(n, uint64_t(step), 0.3f);
        if (step == 1) grad[1] = 0;  // no direction
        const OnDevice<float> d_grad(cuda, grad);
        lion_update(cpu, want.data(), nullptr, want_m.data(), grad.data(), int64_t(n), kHyper, &s);
        if constexpr (std::is_same_v<T, float>)
            lion_update<T>(cuda, master.data, nullptr, m.data, d_grad.data, int64_t(n), kHyper, d_s.data);
        else
            lion_update<T>(cuda, param.data, master.data, m.data, d_grad.data, int64_t(n), kHyper, d_s.data);
    }
    check_equal("master", master.get(), want);
    check_equal("m", m.get(), want_m);
    if constexpr (std::is_same_v<T, bf16>) check_equal("param", param.get(), rounded<bf16>(want));
}

TEMPLATE_TEST_CASE("lion_update on the device rounds a momentum in bf16 to the CPU's bits", "[lion]" ON_DEVICE, float,
                   bf16) {
    using T = TestType;
    constexpr bool kHasMaster = !std::is_same_v<T, float>;
    Cuda cuda;
    Cpu cpu;
    for (const uint64_t first : {0, 5}) {
        const size_t n = 1029;
        INFO("elements from " << first);
        const MomentRounding rounding{moments_key(1, "wte.weight"), first};
        Guarded<float> weight(randn(n, 1));
        Guarded<bf16> want_m(Floats(n, 0));
        OnDevice<float> d_weight(cuda, weight.get());
        OnDevice<bf16> m(cuda, Floats(n, 0));
        OnDevice<T> param(cuda, n);
        for (const int64_t step : {1, 2, 3}) {
            const StepScalars s{.grad_scale = step == 2 ? 0.37 : 1, .updates = step, .applied = 1};
            const OnDevice<StepScalars> d_s(cuda, std::vector{s});
            const Floats grad = randn(n, uint64_t(step), 0.3f);
            const OnDevice<float> d_grad(cuda, grad);
            const LionTensor<float, bf16> want{weight.data(), nullptr, want_m.data(), grad.data(),
                                               int64_t(n),    kHyper,  rounding};
            lion_update(cpu, &want, 1, &s);
            LionTensor<T, bf16> tensor{param.data, d_weight.data, m.data, d_grad.data, int64_t(n), kHyper, rounding};
            if constexpr (!kHasMaster) tensor.param = d_weight.data, tensor.master = nullptr;
            lion_update(cuda, &tensor, 1, d_s.data);
        }
        check_equal("master", d_weight.get(), weight.get());
        check_equal("m", m.get(), want_m.get());
        if constexpr (kHasMaster) check_equal("param", param.get(), rounded<bf16>(weight.get()));
    }
}

TEST_CASE("lion_update of several tensors gives each its own numbers", "[lion]" ON_DEVICE) {
    Cuda cuda;
    Cpu cpu;
    const StepScalars s{.grad_scale = 0.37, .updates = 3, .applied = 1};
    const OnDevice<StepScalars> d_s(cuda, std::vector{s});
    std::deque<OnDevice<float>> arrays;
    std::vector<LionTensor<float>> tensors;
    std::vector<Floats> want;
    for (const size_t n : {size_t(2049), size_t(0), size_t(7), size_t(1024)}) {
        const auto i = uint64_t(tensors.size());
        const LionHyper hyper{1e-3 * double(i + 1), 0.9 - 0.1 * double(i), 0.99 - 0.1 * double(i), 0.1 * double(i)};
        Floats weight = randn(n, 3 * i), m = randn(n, 3 * i + 1);
        const Floats grad = randn(n, 3 * i + 2);
        for (const Floats& values : {weight, m, grad}) arrays.emplace_back(cuda, values);
        tensors.push_back(
            {arrays[3 * i].data, nullptr, arrays[3 * i + 1].data, arrays[3 * i + 2].data, int64_t(n), hyper});
        lion_update(cpu, weight.data(), nullptr, m.data(), grad.data(), int64_t(n), hyper, &s);
        want.push_back(weight), want.push_back(m);
    }
    lion_update(cuda, tensors.data(), int64_t(tensors.size()), d_s.data);
    for (size_t i = 0; i < tensors.size(); i++) {
        INFO("tensor " << i);
        check_equal("weight", arrays[3 * i].get(), want[2 * i]);
        check_equal("m", arrays[3 * i + 1].get(), want[2 * i + 1]);
    }
}

TEST_CASE("lion_update on the device leaves everything as it is when the step is skipped", "[lion]" ON_DEVICE) {
    const size_t n = 1029;
    Cuda cuda;
    const OnDevice<StepScalars> s(cuda, std::vector{StepScalars{.loss = NAN, .updates = 3, .applied = 0}});
    const Floats param = rounded<bf16>(randn(n, 5)), start = randn(n, 1), start_m = randn(n, 2);
    const OnDevice<float> grad(cuda, Floats(n, NAN));
    OnDevice<float> master(cuda, start), m(cuda, start_m);
    OnDevice<bf16> d_param(cuda, param);
    lion_update(cuda, d_param.data, master.data, m.data, grad.data, int64_t(n), kHyper, s.data);
    lion_update<float>(cuda, master.data, nullptr, m.data, grad.data, int64_t(n), kHyper, s.data);
    CHECK(same_bits(d_param.get(), param));
    CHECK(same_bits(master.get(), start));
    CHECK(same_bits(m.get(), start_m));
}

TEST_CASE("lion_update on the device: a NaN in the gradient is one in weight and momentum", "[lion]" ON_DEVICE) {
    Cuda cuda;
    const OnDevice<StepScalars> s(cuda, std::vector{StepScalars{.updates = 1, .applied = 1}});
    OnDevice<float> param(cuda, Floats(8, 1)), m(cuda, Floats(8, 0));
    Floats values(8, 1);
    values[5] = NAN;
    const OnDevice<float> grad(cuda, values);
    lion_update<float>(cuda, param.data, nullptr, m.data, grad.data, 8, kHyper, s.data);
    for (size_t i = 0; i < 8; i++) {
        CHECK(std::isnan(param.get()[i]) == (i == 5));
        CHECK(std::isnan(m.get()[i]) == (i == 5));
    }
}

TEST_CASE("lion_update on the device needs master weights exactly for rounded weights", "[lion]" ON_DEVICE) {
    Cuda cuda;
    OnDevice<float> x(cuda, 8);
    OnDevice<bf16> param(cuda, 8);
    const OnDevice<StepScalars> s(cuda, 1);
    CHECK(contains(error_of([&] { lion_update(cuda, param.data, nullptr, x.data, x.data, 8, kHyper, s.data); }),
                   "master"));
    CHECK(contains(error_of([&] { lion_update(cuda, x.data, x.data, x.data, x.data, 8, kHyper, s.data); }), "master"));
}
