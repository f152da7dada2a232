// AdamW against torch.optim.AdamW: bias correction, decoupled decay, and a scaled gradient.
#include "llmc/cpu/adamw.h"
#include "test/fixture.h"     // Fixture
#include "test/op_testing.h"  // on_any_threads
#include "test/testing.h"

struct Case {
    const char* name;
    AdamWStep hyper;
};

// As in dev/fixtures/optimizer_fixtures.py
static Case test_case(int i) {
    return std::vector<Case>{
        {"one",
         {.learning_rate = 1e-2,
          .beta1 = 0.9,
          .beta2 = 0.999,
          .eps = 1e-8,
          .weight_decay = 0,
          .grad_scale = 1,
          .step = 1}},
        {"decay",
         {.learning_rate = 3e-3,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .eps = 1e-8,
          .weight_decay = 0.1,
          .grad_scale = 1,
          .step = 1}},
        {"clipped",
         {.learning_rate = 6e-4,
          .beta1 = 0.8,
          .beta2 = 0.99,
          .eps = 1e-6,
          .weight_decay = 0.2,
          .grad_scale = 0.125,
          .step = 1}},
    }[size_t(i)];
}

// {param, m, v} after steps over grads (steps, n), from m = v = 0.
static std::vector<Floats> after(int steps, const Floats& start, const Floats& grads, AdamWStep hyper) {
    return on_any_threads([&](Cpu& cpu) {
        Guarded param(start), m(start.size(), 0), v(start.size(), 0);
        for (hyper.step = 1; hyper.step <= steps; hyper.step++)
            adamw_update(cpu, param, m, v, &grads[size_t(hyper.step - 1) * start.size()], int64_t(start.size()), hyper);
        return std::vector{param.get(), m.get(), v.get()};
    });
}

TEST_CASE("adamw agrees with PyTorch", "[adamw]") {
    const Fixture f("adamw");
    const auto [name, hyper] = test_case(GENERATE(0, 1, 2));
    const int steps = GENERATE(1, 4);
    INFO(name << ", " << steps << " steps");
    const auto got = after(steps, f.floats(format("%s.param", name)), f.floats(format("%s.grads", name)), hyper);
    const auto want = [&](const char* what) { return f.floats(format("want.%s.%s%d", name, what, steps)); };
    // A step rounds a parameter twice (its decay, its sum); the update, at most a hundredth of it, adds a few
    // hundredths.
    check_close("param", got[0], want("param"), (1 + steps) * kEpsF32);
    // The constant, the difference and the sum: about a unit and a half a step, of terms as large as the gradient.
    check_close("m", got[1], want("m"), (1 + steps) * kEpsF32);
    // Only positive terms, so nothing cancels: every element keeps its relative accuracy.
    check_relative("v", got[2], want("v"), (2 + 2 * steps) * kEpsF32);
}

// Moments in bf16 against PyTorch's in float: what roundings of less than 2^-7 of a moment, one in each step, come to.
TEST_CASE("adamw with moments in bf16 agrees with PyTorch up to their rounding", "[adamw]") {
    const Fixture f("adamw");
    const auto [name, hyper] = test_case(GENERATE(0, 1, 2));
    INFO(name);
    const Floats start = f.floats(format("%s.param", name)), grads = f.floats(format("%s.grads", name));
    const size_t n = start.size();
    const int steps = 4;
    const auto after_steps = [&, &hyper = hyper](int last) {
        return on_any_threads([&](Cpu& cpu) {
            Guarded<float> param(start);
            Guarded<bf16> m(Floats(n, 0)), v(Floats(n, 0));
            AdamWTensor<float, bf16> tensor{
                .param = param.data(),
                .master = nullptr,
                .m = m.data(),
                .v = v.data(),
                .grad = grads.data(),
                .n = int64_t(n),
                .hyper = {hyper.learning_rate, hyper.beta1, hyper.beta2, hyper.eps, hyper.weight_decay},
                .rounding = {moments_key(1, "wte.weight"), 3}};
            for (int step = 1; step <= last; step++, tensor.grad += n) {
                const StepScalars s{.grad_scale = hyper.grad_scale, .updates = step, .applied = 1};
                adamw_update(cpu, &tensor, 1, &s);
            }
            return std::vector{param.get(), m.get(), v.get()};
        });
    };
    const auto got = after_steps(steps);
    const auto want = [&](const char* what) { return f.floats(format("want.%s.%s%d", name, what, steps)); };
    // The exact moments, and how far the stored ones may be from them; float's own roundings are a 2^-16th of that.
    std::vector<double> m_bounds, v_bounds, param_bounds;
    for (size_t i = 0; i < n; i++) {
        double m = 0, v = 0, m_off = 0, v_off = 0;
        double param_off = (1 + steps) * kEpsF32 * (std::fabs(start[i]) + 4 * steps * hyper.learning_rate);
        for (int step = 1; step <= steps; step++) {
            const double g = double(grads[size_t(step - 1) * n + i]) * hyper.grad_scale;
            m += (1 - hyper.beta1) * (g - m), v = hyper.beta2 * v + (1 - hyper.beta2) * g * g;
            m_off *= hyper.beta1, v_off *= hyper.beta2;
            const double rate = hyper.learning_rate / (1 - std::pow(hyper.beta1, step));
            const double scale = 1 / std::sqrt(1 - std::pow(hyper.beta2, step));
            const double least = std::sqrt(v - v_off) * scale + hyper.eps,
                         most = std::sqrt(v + v_off) * scale + hyper.eps;
            param_off += rate * (m_off / least + std::fabs(m) * (1 / least - 1 / most));
            m_off += (std::fabs(m) + m_off) * 0x1.01p-7, v_off += (v + v_off) * 0x1.01p-7;
        }
        m_bounds.push_back(m_off), v_bounds.push_back(v_off), param_bounds.push_back(param_off);
    }
    check_within("param", got[0], want("param"), param_bounds);
    check_within("m", got[1], want("m"), m_bounds);
    check_within("v", got[2], want("v"), v_bounds);
    check_equal("m is bf16", got[1], rounded<bf16>(got[1]));
    check_equal("v is bf16", got[2], rounded<bf16>(got[2]));
    // The first step finds moments of zero: what it does to the weights is what it does with moments in float.
    check_equal("param after one step", after_steps(1)[0], after(1, start, grads, hyper)[0]);
}

TEST_CASE("adamw: the first step moves by the learning rate against the gradient", "[adamw]") {
    const Floats start = randn(100, 1), grads = randn(100, 2);
    AdamWStep hyper = test_case(0).hyper;
    const auto got = after(1, start, grads, hyper);
    std::vector<double> bounds;
    Floats want;
    for (size_t i = 0; i < start.size(); i++) {
        want.push_back(float(start[i] - (grads[i] > 0 ? hyper.learning_rate : -hyper.learning_rate)));
        // eps = 1e-8 takes its part of the smallest gradients
        bounds.push_back(2 * kEpsF32 * (std::fabs(start[i]) + 0.01) +
                         hyper.learning_rate * hyper.eps / std::fabs(grads[i]));
    }
    check_within("param", got[0], want, bounds);
}

TEST_CASE("adamw: the same bits wherever an element stands", "[adamw]") {
    const Floats start = randn(50001, 1), grads = randn(50001, 2);  // several chunks of work, and an odd rest
    const AdamWStep hyper = test_case(1).hyper;
    const auto all = after(1, start, grads, hyper);
    for (const size_t i : {size_t(0), size_t(20000), size_t(50000)}) {
        const auto one = after(1, {start[i]}, {grads[i]}, hyper);
        for (size_t k = 0; k < 3; k++) CHECK(one[k][0] == all[k][i]);
    }
}

TEST_CASE("adamw as the device decided: the same bits, or nothing at all", "[adamw]") {
    const size_t n = 1003;
    const Floats start = randn(n, 1), grad = randn(n, 2), start_m = randn(n, 3), start_v(n, 0.25f);
    const AdamWStep step{.learning_rate = 6e-4,
                         .beta1 = 0.8,
                         .beta2 = 0.99,
                         .eps = 1e-6,
                         .weight_decay = 0.2,
                         .grad_scale = 0.125,
                         .step = 17};
    const AdamWHyper hyper{step.learning_rate, step.beta1, step.beta2, step.eps, step.weight_decay};
    Cpu cpu(1);
    const auto decided = [&](int32_t applied) {
        const StepScalars s{.grad_scale = step.grad_scale, .updates = step.step, .applied = applied};
        Guarded param(start), m(start_m), v(start_v);
        adamw_update(cpu, param.data(), nullptr, m, v, grad.data(), int64_t(n), hyper, &s);
        return std::vector{param.get(), m.get(), v.get()};
    };
    Guarded param(start), m(start_m), v(start_v);
    adamw_update(cpu, param, m, v, grad.data(), int64_t(n), step);
    const auto applied = decided(1), skipped = decided(0);
    check_equal("param", applied[0], param.get());
    check_equal("m", applied[1], m.get());
    check_equal("v", applied[2], v.get());
    CHECK((same_bits(skipped[0], start) && same_bits(skipped[1], start_m) && same_bits(skipped[2], start_v)));
}

TEST_CASE("adamw beside master weights: they have a float weight's bits, and the weight is what they round to",
          "[adamw]") {
    const size_t n = GENERATE(size_t(1), size_t(5), size_t(50001));
    const Floats start = randn(n, 1);
    const AdamWHyper hyper{.learning_rate = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    const auto after_steps = [&]<class T>(Cpu& cpu, T) {
        Guarded<T> param(n);  // NaN: it is written and never read
        Guarded<float> master(start), m(n, 0), v(n, 0);
        for (const int64_t step : {1, 2, 1000}) {
            const StepScalars s{.grad_scale = step == 2 ? 0.37 : 1, .updates = step, .applied = 1};
            const Floats grad = randn(n, uint64_t(step), 0.3f);
            if constexpr (std::is_same_v<T, float>)
                adamw_update(cpu, master.data(), nullptr, m, v, grad.data(), int64_t(n), hyper, &s);
            else
                adamw_update(cpu, param.data(), master, m, v, grad.data(), int64_t(n), hyper, &s);
        }
        return std::vector{master.get(), m.get(), v.get(), param.get()};
    };
    const auto want = on_any_threads([&](Cpu& cpu) { return after_steps(cpu, float()); });
    const auto got = on_any_threads([&](Cpu& cpu) { return after_steps(cpu, bf16()); });
    for (size_t i = 0; i < 3; i++) check_equal("master, m, v", got[i], want[i]);
    check_equal("param", got[3], rounded<bf16>(want[0]));
}

TEST_CASE("adamw beside master weights: a step that is not applied changes nothing", "[adamw]") {
    const size_t n = 37;
    const Floats param = rounded<bf16>(randn(n, 1)), start = randn(n, 2), grad(n, std::nanf(""));
    const StepScalars s{.updates = 3, .applied = 0};
    Cpu cpu(1);
    Guarded<bf16> weight(param);
    Guarded<float> master(start), m(start), v(start);
    adamw_update(cpu, weight.data(), master, m, v, grad.data(), int64_t(n), AdamWHyper{1, 0.9, 0.95, 1e-8, 0.1}, &s);
    check_equal("param", weight.get(), param);
    for (Guarded<float>* state : {&master, &m, &v}) check_equal("state", state->get(), start);
}

// An update in float of the same weights, then rounded by bits of their own.
TEST_CASE("adamw without master weights rounds its weights stochastically", "[adamw]") {
    const size_t n = 20003;
    const StepScalars s{.grad_scale = 0.5, .updates = 3, .applied = 1};
    const AdamWHyper hyper{.learning_rate = 1e-3, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.2};
    const MomentRounding rounding{moments_key(1, "wte.weight"), 5};
    Floats start = rounded<bf16>(randn(n, 1)), grad = randn(n, 2);
    start[3] = INFINITY, grad[4] = NAN;
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded<float> exact(start);
        std::vector<Floats> results;
        Guarded<bf16> m(Floats(n, 0.25f)), v(Floats(n, 1)), own_m(Floats(n, 0.25f)), own_v(Floats(n, 1)), weight(start);
        const AdamWTensor<float, bf16> in_float{exact.data(), nullptr,    m.data(), v.data(),
                                                grad.data(),  int64_t(n), hyper,    rounding};
        const AdamWTensor<bf16, bf16> own{weight.data(), nullptr,    own_m.data(), own_v.data(),
                                          grad.data(),   int64_t(n), hyper,        rounding};
        adamw_update(cpu, &in_float, 1, &s);
        adamw_update(cpu, &own, 1, &s);
        return std::vector{exact.get(), m.get(), v.get(), weight.get(), own_m.get(), own_v.get()};
    });
    const uint64_t key = moments_key_of(other_rounding(rounding, Stream::rounded_weights).key, s.updates);
    size_t up = 0;
    for (size_t i = 0; i < n; i++) {
        const float want = to_float(rounded_moment(got[0][i], element_bits(key, rounding.first + i) & 0xFFFF));
        if (i == 4)
            CHECK((std::isnan(want) && std::isnan(got[3][i])));
        else if (got[3][i] != want)
            FAIL("element " << i << ": " << got[3][i] << ", not " << want);
        up += got[3][i] > got[0][i];
    }
    CHECK(got[3][3] == INFINITY);
    CHECK((up > n / 3 && up < 2 * n / 3));
    for (const size_t k : {1, 2}) CHECK(same_bits(got[3 + k], got[k]));
}

TEST_CASE("adamw without master weights: the mean is exact, and independent of how the moments are rounded",
          "[adamw]") {
    const size_t n = 1 << 18;
    const AdamWHyper hyper{.learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0};
    Cpu cpu;
    Guarded<bf16> param(Floats(n, 1)), m(Floats(n, 0)), v(Floats(n, 0));
    const Floats grad(n, 1.2345f);
    const AdamWTensor<bf16, bf16> tensor{param.data(), nullptr,    m.data(), v.data(),
                                         grad.data(),  int64_t(n), hyper,    {moments_key(3, "wte.weight"), 0}};
    const StepScalars s{.updates = 1, .applied = 1};
    adamw_update(cpu, &tensor, 1, &s);
    // The first step moves by the learning rate. Below 1 a unit is 2^-8; to nearest all would stay 1.
    const double unit = 0x1p-8, p = 1 - hyper.learning_rate / unit;
    const Floats got[] = {param.get(), m.get(), v.get()};
    float low[3];
    for (const size_t k : {0, 1, 2}) low[k] = *std::min_element(got[k].begin(), got[k].end());
    CHECK((low[0] == 1 - unit && *std::max_element(got[0].begin(), got[0].end()) == 1));
    const auto up = [&](size_t k, size_t i) { return double(got[k][i] > low[k]); };
    double mean[3] = {}, product[3] = {}, neighbors = 0;
    for (size_t i = 0; i < n; i++)
        for (const size_t k : {0, 1, 2}) mean[k] += up(k, i) / double(n);
    // Five deviations of a mean of n zeros and ones; and a rounding of the update to float, in units of the weight.
    CHECK(std::fabs(mean[0] - p) <= 5 * std::sqrt(p * (1 - p) / double(n)) + 4e-7 / unit);
    for (size_t i = 1; i < n; i++) {
        for (const size_t k : {1, 2}) product[k] += (up(0, i) - mean[0]) * (up(k, i) - mean[k]) / double(n);
        neighbors += (up(0, i) - mean[0]) * (up(0, i - 1) - mean[0]) / double(n);
    }
    const double bound = 5 * 0.25 / std::sqrt(double(n));  // deviations of at most a half each
    CHECK(std::fabs(product[1]) <= bound);
    CHECK(std::fabs(product[2]) <= bound);
    CHECK(std::fabs(neighbors) <= bound);
}

TEST_CASE("adamw wants a master exactly for rounded weights", "[adamw]") {
    Cpu cpu(1);
    const StepScalars s{.applied = 1};
    Floats x(4, 1);
    std::vector<bf16> param(4);
    const auto refused = [&](auto* weight, float* master) {
        return contains(
            error_of([&] { adamw_update(cpu, weight, master, x.data(), x.data(), x.data(), 4, AdamWHyper{}, &s); }),
            "master");
    };
    CHECK(refused(param.data(), nullptr));
    CHECK(refused(x.data(), x.data()));
}
