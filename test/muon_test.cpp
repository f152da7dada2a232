// The element-wise steps of Muon against PyTorch, and at their borders: rows of zeros, whole matrices of zeros.
#include "llmc/cpu/muon.h"
#include "test/fixture.h"     // Fixture
#include "test/op_testing.h"  // on_any_threads, check_relative
#include "test/testing.h"

struct MuonCase {
    const char* name;
    int64_t R, K;
    MuonStep step;
};

// scripts/make_fixtures.py has the same table.
static const std::vector<MuonCase> kCases = {
    {"square", 12, 12, {.learning_rate = 0.02, .momentum = 0.95, .beta2 = 0.9, .weight_decay = 0.1}},
    {"tall", 40, 17, {.learning_rate = 0.02, .momentum = 0.9, .beta2 = 0.95, .weight_decay = 0.2}},
    {"wide", 35, 70, {.learning_rate = 0.02, .momentum = 0.85, .beta2 = 0.9, .weight_decay = 0.05}},
    {"row", 1, 9, {.learning_rate = 0.01, .momentum = 0.95, .beta2 = 0.9, .weight_decay = 0}},
    {"tiny", 12, 16, {.learning_rate = 0.02, .momentum = 0.95, .beta2 = 0.9, .weight_decay = 0.1}},
    {"plain",
     20,
     6,
     {.learning_rate = 0.01,
      .momentum = 0.95,
      .beta2 = 0.95,
      .weight_decay = 0.1,
      .equal_rows = false,
      .fixed_norm = false}},
};

static const StepScalars kApplied{.applied = 1};

// A sum of n squares: half a unit each in 16 lanes and their tree, or in rows of 32 and the chunks.
static double sum_units(int64_t n) { return (double(n) / 16 + 5) / 2; }

TEST_CASE("muon_momentum and muon_normalise agree with PyTorch", "[muon]") {
    const Fixture f("muon");
    const auto [name, R, K, step] = GENERATE(from_range(kCases));
    INFO(name);
    const std::string prefix = name, want = "want." + prefix;
    const Floats grad = f.floats(prefix + ".grad"), momentum = f.floats(prefix + ".momentum");
    const StepScalars scalars{.grad_scale = 0.5, .applied = 1};  // as in the reference
    const auto got = on_any_threads([&, R = R, K = K, &step = step](Cpu& cpu) {
        Guarded m(momentum), x(grad.size()), row_squares{size_t(R)};
        muon_momentum(cpu, x, row_squares, m, grad.data(), R, K, step, &scalars);
        const Floats look_ahead = x.get();
        muon_normalise(cpu, x, row_squares, R, K, step);
        return std::vector{m.get(), look_ahead, row_squares.get(), x.get()};
    });
    // the difference, the constant and the sum, of terms as large as the rms; twice for what looks ahead
    check_close("momentum", got[0], f.floats(want + ".momentum"), 2 * kEpsF32);
    check_close("look_ahead", got[1], f.floats(want + ".look_ahead"), 4 * kEpsF32);
    Floats squares;
    for (int64_t r = 0; r < R; r++) {
        double sum = 0;
        for (int64_t k = 0; k < K; k++) sum += double(got[1][size_t(r * K + k)]) * got[1][size_t(r * K + k)];
        squares.push_back(float(sum));
    }
    check_relative("row_squares", got[2], squares, sum_units(K) * kEpsF32);
    // two norms of squares, whose roots halve their errors, and the factor and product
    check_close("normalised", got[3], f.floats(want + ".normalised"), (4 + sum_units(K) + 2) * kEpsF32);
}

TEST_CASE("muon_squares, muon_scales and muon_update agree with PyTorch", "[muon]") {
    const Fixture f("muon");
    const auto [name, R, K, step] = GENERATE(from_range(kCases));
    const bool has_second = GENERATE(true, false);
    INFO(name << (has_second ? "" : " without second moments"));
    const std::string prefix = name, want = "want." + prefix;
    const Floats x = f.floats(prefix + ".orthogonal"), start = f.floats(prefix + ".weight");
    const Floats second = f.floats(prefix + ".second");
    const auto got = on_any_threads([&, R = R, K = K, &step = step](Cpu& cpu) {
        Guarded squares(second.size()), scales(second.size()), v(second), weight(start);
        muon_squares(cpu, squares, x.data(), R, K);
        muon_scales(cpu, scales, has_second ? v.data() : nullptr, squares, R, K, step, &kApplied);
        muon_update(cpu, weight, nullptr, x.data(), scales, R, K, step, &kApplied);
        return std::vector{squares.get(), v.get(), weight.get()};
    });
    const double units = sum_units(std::min(R, K) + 16);
    check_relative("squares", got[0], f.floats(want + ".squares"), units * kEpsF32);
    if (has_second) check_relative("second", got[1], f.floats(want + ".second"), (units + 1) * kEpsF32);
    // Half a unit of the weight in each of ours and the reference; of the change what the scale, the rate, the products
    // and the decay are off by. The decay is part of the change, which it may cancel down to nothing.
    const Floats want_weight = f.floats(want + (has_second ? ".weight" : ".weight_no_second"));
    std::vector<double> bounds;
    for (size_t i = 0; i < start.size(); i++) {
        const double decay = step.rate(R, K) * step.weight_decay * std::fabs(start[i]);
        const double change = std::fabs(double(want_weight[i]) - start[i]) + decay;
        bounds.push_back(kEpsF32 * (std::fabs(want_weight[i]) + (units + 6) * change));
    }
    check_within("weight", got[2], want_weight, bounds);
}

TEST_CASE("muon: zeros stay zeros, and a row of them does no harm", "[muon]") {
    const int64_t R = 4, K = 20;
    const bool whole = GENERATE(true, false);
    const MuonStep step{.learning_rate = 0.5, .momentum = 0.5, .beta2 = 0.5, .weight_decay = 0.25};
    Floats grad = randn(size_t(R * K), 1);
    std::fill_n(grad.begin(), whole ? R * K : K, 0.f);
    Cpu cpu(1);
    Guarded x(grad.size()), row_squares{size_t(R)}, m(grad.size(), 0), squares{size_t(K)}, scales{size_t(K)},
        second(size_t(K), 0), weight(grad.size(), 2);
    muon_momentum(cpu, x, row_squares, m, grad.data(), R, K, step, &kApplied);
    muon_normalise(cpu, x, row_squares, R, K, step);
    CHECK(count_not_finite(x.get()) == 0);
    CHECK(Floats(x.data(), x + K) == Floats(size_t(K), 0));
    CHECK(std::fabs(rms(x, R * K) * std::sqrt(double(R * K)) - (whole ? 0 : 1 / 1.01)) < 1e-5);
    muon_squares(cpu, squares, x, R, K);
    muon_scales(cpu, scales, second, squares, R, K, step, &kApplied);
    muon_update(cpu, weight, nullptr, x, scales, R, K, step, &kApplied);
    CHECK(count_not_finite(weight.get()) == 0);
    // No gradient is no reason against the decay: 2 - 0.5 * 0.25 * 2.
    CHECK(Floats(weight.data(), weight + K) == Floats(size_t(K), 1.75f));
}

TEST_CASE("muon_update: a weight decays unless the update makes it larger", "[muon]") {
    const MuonStep step{.learning_rate = 0.5, .momentum = 0, .beta2 = 0, .weight_decay = 0.25};
    const Floats x = {1, -1, 1, -1}, scales(4, 2);
    Cpu cpu(1);
    Guarded weight(Floats{4, 4, -4, -4});
    muon_update(cpu, weight, nullptr, x.data(), scales.data(), 1, 4, step, &kApplied);
    CHECK(weight.get() == Floats{4 - 1 - 0.5f, 5, -5, -4 + 1 + 0.5f});
    CHECK(step.rate(4, 1) == 1);
    CHECK(step.rate(1, 4) == 0.5);
}

TEST_CASE("muon: a step that is not applied changes nothing", "[muon]") {
    const int64_t R = 5, K = 9;
    const MuonStep step{.learning_rate = 0.5, .momentum = 0.5, .beta2 = 0.5, .weight_decay = 0.25};
    const StepScalars scalars{.applied = 0};
    const Floats grad(size_t(R * K), std::nanf("")), x(grad.size(), 1), scales(size_t(K), 1);
    const Floats start = randn(grad.size(), 1), second_start = randn(size_t(K), 2);
    Cpu cpu(1);
    Guarded ignored(grad.size()), row_squares{size_t(R)}, momentum(start), second(second_start), weight(start);
    muon_momentum(cpu, ignored, row_squares, momentum, grad.data(), R, K, step, &scalars);
    muon_scales(cpu, ignored, second, scales.data(), R, K, step, &scalars);
    muon_update(cpu, weight, nullptr, x.data(), scales.data(), R, K, step, &scalars);
    check_equal("momentum", momentum.get(), start);
    check_equal("second moments", second.get(), second_start);
    check_equal("weight", weight.get(), start);
}
