// AdamW's kernel against the CPU's function: the same bits, with and without bf16 weights; and a step that is skipped.
#include "llmc/cuda/adamw.cuh"
#include <deque>
#include "llmc/cpu/adamw.h"
#include "test/cuda_testing.h"  // OnDevice, rounded_value

constexpr AdamWHyper kHyper{.learning_rate = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

template <class T>
static void adamw_update(Cuda& cuda, T* param, float* master, float* m, float* v, const float* grad, int64_t n,
                         const AdamWHyper& hyper, const StepScalars* s) {
    const AdamWTensor<T> tensor{param, master, m, v, grad, n, hyper};
    adamw_update(cuda, &tensor, 1, s);
}

// Fewer than a pack, a pack and a rest, and more than all blocks of a GPU take at once.
static size_t some_size(const Cuda& cuda) {
    const size_t i = GENERATE(size_t(0), size_t(1), size_t(2), size_t(3));
    return std::vector{size_t(3), size_t(8), size_t(1029),
                       size_t(kAdamWBlocksPerSm * cuda.num_sms * kAdamWThreads * 8 + 2055)}[i];
}

TEMPLATE_TEST_CASE("adamw_update on the device has the CPU's bits", "[adamw]" ON_DEVICE, float, bf16) {
    using T = TestType;
    Cuda cuda;
    const size_t n = some_size(cuda);
    INFO(n << " elements");
    const Floats start = randn(n, 1);
    Cpu cpu;
    Floats want = start, want_m(n, 0), want_v(n, 0);
    OnDevice<float> master(cuda, start), m(cuda, Floats(n, 0)), v(cuda, Floats(n, 0));
    OnDevice<bf16> param(cuda, n);
    for (const int64_t step : {1, 2, 1000}) {
        const StepScalars s{.grad_scale = step == 2 ? 0.37 : 1, .updates = step, .applied = 1};
        const OnDevice<StepScalars> d_s(cuda, std::vector{s});
        const Floats grad = randn(n, uint64_t(step), 0.3f);
        const OnDevice<float> d_grad(cuda, grad);
        adamw_update(cpu, want.data(), nullptr, want_m.data(), want_v.data(), grad.data(), int64_t(n), kHyper, &s);
        if constexpr (std::is_same_v<T, float>)
            adamw_update<T>(cuda, master.data, nullptr, m.data, v.data, d_grad.data, int64_t(n), kHyper, d_s.data);
        else
            adamw_update<T>(cuda, param.data, master.data, m.data, v.data, d_grad.data, int64_t(n), kHyper, d_s.data);
    }
    check_equal("master", master.get(), want);
    check_equal("m", m.get(), want_m);
    check_equal("v", v.get(), want_v);
    if constexpr (std::is_same_v<T, bf16>) check_equal("param", param.get(), rounded<bf16>(want));
}

// Pieces of a parameter that begin at an even and at an odd element, of whole packs and of a rest.
TEMPLATE_TEST_CASE("adamw_update on the device rounds moments in bf16 to the CPU's bits", "[adamw]" ON_DEVICE, float,
                   bf16) {
    using T = TestType;
    constexpr bool kHasMaster = !std::is_same_v<T, float>;
    Cuda cuda;
    Cpu cpu;
    for (const uint64_t first : {0, 64, 5}) {
        const size_t n = first == 0 ? 2055 : 67;
        INFO(n << " elements from " << first);
        const MomentRounding rounding{moments_key(1, "wte.weight"), first};
        Guarded<float> weight(randn(n, 1));
        Guarded<bf16> want_m(Floats(n, 0)), want_v(Floats(n, 0));
        OnDevice<float> d_weight(cuda, weight.get());
        OnDevice<bf16> m(cuda, Floats(n, 0)), v(cuda, Floats(n, 0));
        OnDevice<T> param(cuda, n);
        for (const int64_t step : {1, 2, 1000}) {
            const StepScalars s{.grad_scale = step == 2 ? 0.37 : 1, .updates = step, .applied = 1};
            const OnDevice<StepScalars> d_s(cuda, std::vector{s});
            const Floats grad = randn(n, uint64_t(step), 0.3f);
            const OnDevice<float> d_grad(cuda, grad);
            const AdamWTensor<float, bf16> want{weight.data(), nullptr,    want_m.data(), want_v.data(),
                                                grad.data(),   int64_t(n), kHyper,        rounding};
            adamw_update(cpu, &want, 1, &s);
            AdamWTensor<T, bf16> tensor{param.data,  d_weight.data, m.data, v.data,
                                        d_grad.data, int64_t(n),    kHyper, rounding};
            if constexpr (!kHasMaster) tensor.param = d_weight.data, tensor.master = nullptr;
            adamw_update(cuda, &tensor, 1, d_s.data);
        }
        check_equal("master", d_weight.get(), weight.get());
        check_equal("m", m.get(), want_m.get());
        check_equal("v", v.get(), want_v.get());
        if constexpr (kHasMaster) check_equal("param", param.get(), rounded<bf16>(weight.get()));
    }
}

TEST_CASE("adamw_update on the device rounds weights without master weights to the CPU's bits", "[adamw]" ON_DEVICE) {
    Cuda cuda;
    Cpu cpu;
    for (const uint64_t first : {0, 64, 5}) {
        const size_t n = first == 0 ? 2055 : 67;
        INFO(n << " elements from " << first);
        const MomentRounding rounding{moments_key(1, "wte.weight"), first};
        Floats start = randn(n, 1);
        start[1] = INFINITY, start[2] = 0;
        Guarded<bf16> want(rounded<bf16>(start)), want_m(Floats(n, 0)), want_v(Floats(n, 0));
        OnDevice<bf16> param(cuda, want.get()), m(cuda, Floats(n, 0)), v(cuda, Floats(n, 0));
        for (const int64_t step : {1, 2, 1000}) {
            const StepScalars s{.grad_scale = step == 2 ? 0.37 : 1, .updates = step, .applied = step != 2};
            const OnDevice<StepScalars> d_s(cuda, std::vector{s});
            const Floats grad = randn(n, uint64_t(step), 0.3f);
            const OnDevice<float> d_grad(cuda, grad);
            const AdamWTensor<bf16, bf16> on_cpu{want.data(), nullptr,    want_m.data(), want_v.data(),
                                                 grad.data(), int64_t(n), kHyper,        rounding};
            AdamWTensor<bf16, bf16> tensor{param.data,  nullptr,    m.data, v.data,
                                           d_grad.data, int64_t(n), kHyper, rounding};
            adamw_update(cpu, &on_cpu, 1, &s);
            adamw_update(cuda, &tensor, 1, d_s.data);
        }
        check_equal("param", param.get(), want.get());
        check_equal("m", m.get(), want_m.get());
        check_equal("v", v.get(), want_v.get());
    }
}

// More than one launch takes, some of them empty, each with numbers of its own.
TEMPLATE_TEST_CASE("adamw_update of many tensors has the bits of one after the other", "[adamw]" ON_DEVICE, float,
                   bf16) {
    using T = TestType;
    constexpr bool kHasMaster = !std::is_same_v<T, float>;
    constexpr int kCount = 2 * TensorList<AdamWTensor<T>>::kMost + 3;
    const size_t sizes[] = {1, 0, 7, 8, 9, 1000, 2048, 2049, 4097};
    Cuda cuda;
    Cpu cpu;
    const StepScalars s{.grad_scale = 0.37, .updates = 3, .applied = 1};
    const OnDevice<StepScalars> d_s(cuda, std::vector{s});
    std::deque<OnDevice<float>> master_weights, ms, vs, grads;
    std::deque<OnDevice<T>> params;
    std::vector<AdamWTensor<T>> tensors;
    std::vector<Floats> want, want_m, want_v;
    for (int i = 0; i < kCount; i++) {
        const size_t n = sizes[size_t(i) % std::size(sizes)];
        const auto seed = uint64_t(4 * i);
        Floats square = randn(n, seed + 3);
        for (float& x : square) x *= x;
        want.push_back(randn(n, seed)), want_m.push_back(randn(n, seed + 1)), want_v.push_back(square);
        const Floats grad = randn(n, seed + 2);
        master_weights.emplace_back(cuda, want[size_t(i)]), ms.emplace_back(cuda, want_m[size_t(i)]);
        vs.emplace_back(cuda, want_v[size_t(i)]), grads.emplace_back(cuda, grad);
        params.emplace_back(cuda, n);
        const AdamWHyper hyper{.learning_rate = 1e-3 * (i + 1),
                               .beta1 = 0.9 - 0.01 * i,
                               .beta2 = 0.99 - 0.01 * i,
                               .eps = 1e-8 * (i + 1),
                               .weight_decay = 0.01 * i};
        AdamWTensor<T> tensor{.param = params.back().data,
                              .master = nullptr,
                              .m = ms.back().data,
                              .v = vs.back().data,
                              .grad = grads.back().data,
                              .n = int64_t(n),
                              .hyper = hyper};
        if constexpr (kHasMaster)
            tensor.master = master_weights.back().data;
        else
            tensor.param = master_weights.back().data;
        tensors.push_back(tensor);
        adamw_update(cpu, want.back().data(), nullptr, want_m.back().data(), want_v.back().data(), grad.data(),
                     int64_t(n), hyper, &s);
    }
    adamw_update(cuda, tensors.data(), kCount, d_s.data);
    for (size_t i = 0; i < size_t(kCount); i++) {
        INFO("tensor " << i << " of " << want[i].size());
        check_equal("master", master_weights[i].get(), want[i]);
        check_equal("m", ms[i].get(), want_m[i]);
        check_equal("v", vs[i].get(), want_v[i]);
        if constexpr (kHasMaster) check_equal("param", params[i].get(), rounded<bf16>(want[i]));
    }
}

TEST_CASE("adamw_update on the device leaves everything as it is when the step is skipped", "[adamw]" ON_DEVICE) {
    const size_t n = 1029;
    Cuda cuda;
    const OnDevice<StepScalars> s(cuda, std::vector{StepScalars{.loss = NAN, .updates = 3, .applied = 0}});
    const Floats param = rounded<bf16>(randn(n, 5));
    const Floats start = randn(n, 1), start_m = randn(n, 2), start_v(n, 0.5f);
    const OnDevice<float> grad(cuda, Floats(n, NAN));
    OnDevice<float> master(cuda, start), m(cuda, start_m), v(cuda, start_v);
    OnDevice<bf16> d_param(cuda, param);
    adamw_update(cuda, d_param.data, master.data, m.data, v.data, grad.data, int64_t(n), kHyper, s.data);
    adamw_update<float>(cuda, master.data, nullptr, m.data, v.data, grad.data, int64_t(n), kHyper, s.data);
    CHECK(same_bits(d_param.get(), param));
    CHECK(same_bits(master.get(), start));
    CHECK(same_bits(m.get(), start_m));
    CHECK(same_bits(v.get(), start_v));
}

TEST_CASE("adamw_update on the device wants a master exactly for rounded weights", "[adamw]" ON_DEVICE) {
    Cuda cuda;
    OnDevice<float> x(cuda, 8);
    OnDevice<bf16> param(cuda, 8);
    const OnDevice<StepScalars> s(cuda, 1);
    CHECK(
        contains(error_of([&] { adamw_update(cuda, param.data, nullptr, x.data, x.data, x.data, 8, kHyper, s.data); }),
                 "master"));
    CHECK(contains(error_of([&] { adamw_update(cuda, x.data, x.data, x.data, x.data, x.data, 8, kHyper, s.data); }),
                   "master"));
}
