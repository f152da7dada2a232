// Lion against algorithm 2 of its paper in PyTorch's tensors: the sign, decoupled decay, and a scaled gradient.
#include "llmc/cpu/lion.h"
#include "test/fixture.h"     // Fixture
#include "test/op_testing.h"  // on_any_threads
#include "test/testing.h"

namespace {

struct Case {
    const char* name;
    LionHyper hyper;
    double grad_scale;
};

// As in scripts/optimizer_fixtures.py
constexpr Case kCases[] = {
    {"one", {.learning_rate = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0}, 1},
    {"decay", {.learning_rate = 3e-4, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 1}, 1},
    {"clipped", {.learning_rate = 1e-4, .beta1 = 0.95, .beta2 = 0.98, .weight_decay = 2}, 0.125},
};

// {param, m} after steps over grads (steps, n), from m = 0.
std::vector<Floats> after(int steps, const Floats& start, const Floats& grads, const Case& c) {
    return on_any_threads([&](Cpu& cpu) {
        Guarded param(start), m(start.size(), 0);
        for (int step = 0; step < steps; step++) {
            const StepScalars s{.grad_scale = c.grad_scale, .updates = step + 1, .applied = 1};
            lion_update(cpu, param.data(), nullptr, m, &grads[size_t(step) * start.size()], int64_t(start.size()),
                        c.hyper, &s);
        }
        return std::vector{param.get(), m.get()};
    });
}

}  // namespace

TEST_CASE("lion agrees with PyTorch", "[lion]") {
    const Fixture f("lion");
    const Case& c = kCases[GENERATE(0, 1, 2)];
    const int steps = GENERATE(1, 4);
    INFO(c.name << ", " << steps << " steps");
    const auto got = after(steps, f.floats(format("%s.param", c.name)), f.floats(format("%s.grads", c.name)), c);
    const auto want = [&](const char* what) { return f.floats(format("want.%s.%s%d", c.name, what, steps)); };
    // A step rounds a parameter twice, half a unit each: its decay and its sum. The fixture's c is never so near zero
    // that rounding could turn its sign.
    check_close("param", got[0], want("param"), (1 + steps) * kEpsF32);
    // The constant, the difference and the sum: about a unit and a half per step, of terms as large as the gradient.
    check_close("m", got[1], want("m"), (1 + 2 * steps) * kEpsF32);
}

TEST_CASE("lion: exact where numbers are powers of two", "[lion]") {
    const LionHyper hyper{.learning_rate = 0.25, .beta1 = 0.5, .beta2 = 0.75, .weight_decay = 0.5};
    const StepScalars s{.grad_scale = 2, .updates = 7, .applied = 1};  // how many updates makes no difference
    Cpu cpu(1);
    //                  +    -     0   looks back   looks ahead
    Guarded<float> param(Floats{8, 8, 8, 8, 8}), m(Floats{0, 0, 0, 4, -4});
    lion_update(cpu, param.data(), nullptr, m, Floats{1, -1, 0, -1, 3}.data(), 5, hyper, &s);
    check_equal("param", param.get(), {6.75f, 7.25f, 7, 6.75f, 6.75f});
    check_equal("m", m.get(), {0.5f, -0.5f, 0, 2.5f, -1.5f});
}

TEST_CASE("lion in bf16: the momentum of one step is rounded by the elements' own bits, the weights are not",
          "[lion]") {
    const size_t n = 1003;
    const Floats start = randn(n, 1), start_m = rounded<bf16>(randn(n, 3)), grad = randn(n, 2);
    const StepScalars s{.grad_scale = 0.5, .updates = 4, .applied = 1};
    const MomentRounding rounding{moments_key(1, "wte.weight"), 77};
    const auto both = on_any_threads([&](Cpu& cpu) {
        Guarded<float> param(start), m(start_m), param_of_bf16(start);
        Guarded<bf16> m_of_bf16(start_m);
        lion_update(cpu, param.data(), nullptr, m.data(), grad.data(), int64_t(n), kCases[1].hyper, &s);
        const LionTensor<float, bf16> tensor{param_of_bf16.data(), nullptr,         m_of_bf16.data(), grad.data(),
                                             int64_t(n),           kCases[1].hyper, rounding};
        lion_update(cpu, &tensor, 1, &s);
        return std::vector{param.get(), m.get(), param_of_bf16.get(), m_of_bf16.get()};
    });
    Floats want = both[1];
    const uint64_t key = moments_key_of(rounding.key, s.updates);
    for (size_t i = 0; i < n; i++)
        want[i] = to_float(rounded_moment(want[i], element_bits(key, rounding.first + i) & 0xFFFF));
    check_equal("param", both[2], both[0]);
    check_equal("m", both[3], want);
}

TEST_CASE("lion: the same bits wherever an element stands", "[lion]") {
    const Floats start = randn(50001, 1), grads = randn(50001, 2);  // several chunks of work, and an odd rest
    const auto all = after(1, start, grads, kCases[1]);
    for (const size_t i : {size_t(0), size_t(20000), size_t(50000)}) {
        const auto one = after(1, {start[i]}, {grads[i]}, kCases[1]);
        for (size_t k = 0; k < 2; k++) CHECK(one[k][0] == all[k][i]);
    }
}

TEST_CASE("lion: a NaN in the gradient is one in weight and momentum, and nowhere else", "[lion]") {
    Floats grads = randn(37, 2);
    grads[20] = std::nanf("");
    const auto got = after(1, randn(37, 1), grads, kCases[1]);
    for (const Floats& values : got)
        for (size_t i = 0; i < values.size(); i++) CHECK(std::isnan(values[i]) == (i == 20));
}

TEST_CASE("lion beside master weights: they have a float weight's bits, and the weight is what they round to",
          "[lion]") {
    const size_t n = GENERATE(size_t(1), size_t(5), size_t(50001));
    const Floats start = randn(n, 1);
    const auto after_steps = [&]<class T>(Cpu& cpu, T) {
        Guarded<T> param(n);  // NaN: it is written and never read
        Guarded<float> master(start), m(n, 0);
        for (const int64_t step : {1, 2, 3}) {
            const StepScalars s{.grad_scale = step == 2 ? 0.37 : 1, .updates = step, .applied = 1};
            const Floats grad = randn(n, uint64_t(step), 0.3f);
            if constexpr (std::is_same_v<T, float>)
                lion_update(cpu, master.data(), nullptr, m, grad.data(), int64_t(n), kCases[1].hyper, &s);
            else
                lion_update(cpu, param.data(), master, m, grad.data(), int64_t(n), kCases[1].hyper, &s);
        }
        return std::vector{master.get(), m.get(), param.get()};
    };
    const auto want = on_any_threads([&](Cpu& cpu) { return after_steps(cpu, float()); });
    const auto got = on_any_threads([&](Cpu& cpu) { return after_steps(cpu, bf16()); });
    for (size_t i = 0; i < 2; i++) check_equal("master, m", got[i], want[i]);
    check_equal("param", got[2], rounded<bf16>(want[0]));
}

TEST_CASE("lion: a step that is not applied changes nothing", "[lion]") {
    const size_t n = 37;
    const Floats param = rounded<bf16>(randn(n, 1)), start = randn(n, 2), grad(n, std::nanf(""));
    const StepScalars s{.updates = 3, .applied = 0};
    Cpu cpu(1);
    Guarded<bf16> weight(param);
    Guarded<float> master(start), m(start);
    lion_update(cpu, weight.data(), master, m, grad.data(), int64_t(n), kCases[0].hyper, &s);
    lion_update(cpu, master.data(), nullptr, m, grad.data(), int64_t(n), kCases[0].hyper, &s);
    check_equal("param", weight.get(), param);
    for (Guarded<float>* state : {&master, &m}) check_equal("state", state->get(), start);
}

TEST_CASE("lion needs master weights exactly for rounded weights", "[lion]") {
    Cpu cpu(1);
    const StepScalars s{.applied = 1};
    Floats x(4, 1);
    std::vector<bf16> param(4);
    const auto refused = [&](auto* weight, float* master) {
        return contains(error_of([&] { lion_update(cpu, weight, master, x.data(), x.data(), 4, LionHyper{}, &s); }),
                        "master");
    };
    CHECK(refused(param.data(), nullptr));
    CHECK(refused(x.data(), x.data()));
}
