// The element-wise steps of Muon against PyTorch, and at their borders: rows of zeros, whole matrices of zeros.
#include "llmc/cpu/muon.h"
#include "llmc/cpu/newton_schulz.h"
#include "test/cpu/muon_testing.h"  // MuonRun
#include "test/fixture.h"           // Fixture
#include "test/op_testing.h"        // on_any_threads, check_relative
#include "test/testing.h"

struct MuonCase {
    const char* name;
    int64_t R, K;
    MuonStep step;
};

// dev/fixtures/optimizer_fixtures.py has the same table.
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

TEST_CASE("muon_momentum and muon_normalize agree with PyTorch", "[muon]") {
    const Fixture f("muon");
    const auto [name, R, K, step] = GENERATE(from_range(kCases));
    INFO(name);
    const std::string prefix = name, want = "want." + prefix;
    const Floats grad = f.floats(prefix + ".grad"), momentum = f.floats(prefix + ".momentum");
    const StepScalars scalars{.grad_scale = 0.5, .applied = 1};  // as in the reference
    const auto got = on_any_threads([&, R = R, K = K, &step = step](Cpu& cpu) {
        Guarded m(momentum), x(grad.size()), row_squares{size_t(R)};
        muon_momentum(cpu, x.data(), row_squares, m, grad.data(), R, K, step, &scalars);
        const Floats look_ahead = x.get();
        muon_normalize(cpu, x.data(), row_squares, R, K, step);
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
    check_close("normalized", got[3], f.floats(want + ".normalized"), (4 + sum_units(K) + 2) * kEpsF32);
}

TEST_CASE("muon_momentum in bf16: what the one in float would be, rounded by the elements' own bits; X is not",
          "[muon]") {
    const auto [R, K] = GENERATE(table<int, int>({{40, 17}, {3, 64}}));
    const auto n = size_t(R * K);
    const Floats grad = randn(n, 1), start = rounded<bf16>(randn(n, 2));
    const StepScalars scalars{.grad_scale = 0.5, .updates = 4, .applied = 1};
    const MomentRounding rounding{moments_key(1, "h.0.attn.c_attn.weight"), 77};
    const MuonStep step = kCases[0].step;
    const auto both = on_any_threads([&, R = R, K = K](Cpu& cpu) {
        Guarded<float> m(start), x(n), squares{size_t(R)}, x_of_bf16(n), squares_of_bf16{size_t(R)};
        Guarded<bf16> m_of_bf16(start);
        muon_momentum(cpu, x.data(), squares.data(), m.data(), grad.data(), R, K, step, &scalars);
        muon_momentum_bf16(cpu, x_of_bf16.data(), squares_of_bf16.data(), m_of_bf16.data(), grad.data(), R, K, step,
                           &scalars, rounding);
        return std::vector{m.get(), x.get(), squares.get(), m_of_bf16.get(), x_of_bf16.get(), squares_of_bf16.get()};
    });
    Floats want = both[0];
    const uint64_t key = moments_key_of(rounding.key, scalars.updates);
    for (size_t i = 0; i < n; i++)
        want[i] = to_float(rounded_moment(want[i], element_bits(key, rounding.first + i) & 0xFFFF));
    check_equal("momentum", both[3], want);
    check_equal("X", both[4], both[1]);
    check_equal("row_squares", both[5], both[2]);
}

TEST_CASE("muon_squares, muon_scales and muon_update agree with PyTorch", "[muon]") {
    const Fixture f("muon");
    auto [name, R, K, step] = GENERATE(from_range(kCases));
    const auto [has_second, cautious] = GENERATE(table<bool, bool>({{true, true}, {false, true}, {false, false}}));
    step.cautious = cautious;
    INFO(name << (has_second ? "" : " without second moments") << (cautious ? "" : ", all weights decay"));
    const std::string prefix = name, want = "want." + prefix;
    const Floats x = f.floats(prefix + ".orthogonal"), start = f.floats(prefix + ".weight");
    const Floats second = f.floats(prefix + ".second");
    const auto got = on_any_threads([&, R = R, K = K, &step = step](Cpu& cpu) {
        Guarded squares(second.size()), scales(second.size()), v(second), weight(start);
        muon_squares(cpu, squares, x.data(), R, K);
        muon_scales(cpu, scales, has_second ? v.data() : nullptr, squares, R, K, step, &kApplied);
        muon_update(cpu, weight.data(), nullptr, x.data(), scales, nullptr, nullptr, R, K, step, &kApplied);
        return std::vector{squares.get(), v.get(), weight.get()};
    });
    const double units = sum_units(std::min(R, K) + 16);
    check_relative("squares", got[0], f.floats(want + ".squares"), units * kEpsF32);
    if (has_second) check_relative("second", got[1], f.floats(want + ".second"), (units + 1) * kEpsF32);
    // Half a unit of the weight in each of ours and the reference; of the change what the scale, the rate, the products
    // and the decay are off by. The decay is part of the change, which it may cancel down to nothing.
    const Floats want_weight = f.floats(want + (has_second ? ".weight"
                                                : cautious ? ".weight_no_second"
                                                           : ".weight_all_decay"));
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
    muon_momentum(cpu, x.data(), row_squares, m, grad.data(), R, K, step, &kApplied);
    muon_normalize(cpu, x.data(), row_squares, R, K, step);
    CHECK(count_not_finite(x.get()) == 0);
    CHECK(Floats(x.data(), x + K) == Floats(size_t(K), 0));
    CHECK(std::fabs(rms(x, R * K) * std::sqrt(double(R * K)) - (whole ? 0 : 1 / 1.01)) < 1e-5);
    muon_squares(cpu, squares, x.data(), R, K);
    muon_scales(cpu, scales, second, squares, R, K, step, &kApplied);
    muon_update(cpu, weight.data(), nullptr, x, scales, nullptr, nullptr, R, K, step, &kApplied);
    CHECK(count_not_finite(weight.get()) == 0);
    // No gradient is no reason against the decay: 2 - 0.5 * 0.25 * 2.
    CHECK(Floats(weight.data(), weight + K) == Floats(size_t(K), 1.75f));
}

TEST_CASE("muon_update: a weight decays unless the update makes it larger", "[muon]") {
    const MuonStep step{.learning_rate = 0.5, .momentum = 0, .beta2 = 0, .weight_decay = 0.25};
    const Floats x = {1, -1, 1, -1}, scales(4, 2);
    Cpu cpu(1);
    Guarded weight(Floats{4, 4, -4, -4});
    muon_update(cpu, weight.data(), nullptr, x.data(), scales.data(), nullptr, nullptr, 1, 4, step, &kApplied);
    CHECK(weight.get() == Floats{4 - 1 - 0.5f, 5, -5, -4 + 1 + 0.5f});
    MuonStep plain = step;
    plain.cautious = false;
    Guarded always(Floats{4, 4, -4, -4});
    muon_update(cpu, always.data(), nullptr, x.data(), scales.data(), nullptr, nullptr, 1, 4, plain, &kApplied);
    CHECK(always.get() == Floats{4 - 1 - 0.5f, 5 - 0.5f, -5 + 0.5f, -4 + 1 + 0.5f});
    CHECK(step.rate(4, 1) == 1);
    CHECK(step.rate(1, 4) == 0.5);
}

TEST_CASE("muon: 20 steps with the products in the middle agree with PyTorch", "[muon]") {
    const Fixture f("muon_training");
    const MuonMatrix& matrix = GENERATE(from_range(kMuonMatrices));
    const MuonNormsCase& norms = GENERATE(from_range(kMuonNorms));
    INFO(norms.name << matrix.name);
    const auto got = on_any_threads([&](Cpu& cpu) {
        MuonRun run(cpu, f.floats(matrix.name), matrix);
        for (int step = 0; step < kMuonTrainingSteps; step++) run.step(cpu, matrix.gradients(step), norms.step());
        return std::vector<Floats>{run.weight.get()};
    });
    CHECK(relative_l2(got[0], f.floats(norms.want(matrix.name))) <= kMuonTrainingTolerance);
}

TEST_CASE("muon: with hyperball zeros and small matrices grow to a norm, and stay there", "[muon]") {
    const MuonMatrix& matrix = kMuonMatrices[1];
    MuonStep step = kMuonTraining;
    step.norms = MuonNorms::hyperball, step.learning_rate = 0.4, step.radius = GENERATE(1., 0.5);
    const bool zeros = GENERATE(true, false);
    Cpu cpu(1);
    MuonRun run(cpu, zeros ? Floats(matrix.size(), 0) : randn(matrix.size(), 1, 1e-4f), matrix);
    const double radius = step.radius * std::sqrt(96.);
    for (const double want : {0.4, 0.8, 1., 1.}) {
        run.step(cpu, matrix.gradients(0), step);  // always the same direction
        const double norm = rms(run.weight, int64_t(matrix.size())) * std::sqrt(double(matrix.size()));
        // NorMuon and the momentum change the direction a little.
        CHECK(std::fabs(norm / radius - want) <= (want < 1 ? 0.05 : 32 * kEpsF32));
        CHECK(run.radius.get()[0] == Approx(want < 1 ? -radius : radius).epsilon(kEpsF32));
    }
}

TEST_CASE("muon: an exactly zero gradient leaves nothing but numbers in a whole step", "[muon]") {
    MuonStep step = kMuonTraining;
    step.equal_rows = GENERATE(true, false);
    step.fixed_norm = GENERATE(true, false);
    step.cautious = GENERATE(true, false);
    const MuonMatrix& matrix = GENERATE(from_range(kMuonMatrices));
    const Floats start = randn(matrix.size(), 1);
    Cpu cpu(2);
    MuonRun run(cpu, start, matrix);
    for (int i = 0; i < 3; i++) run.step(cpu, Floats(matrix.size(), 0), step);
    check_equal("X", run.X.get(), Floats(matrix.size(), 0));
    check_equal("momentum", run.momentum.get(), Floats(matrix.size(), 0));
    check_equal("second moments", run.second.get(), Floats(run.second.n, 0));
    // g = 0 is no reason against the decay: three times w - rate weight_decay w, rounded.
    const double kept = std::pow(1 - step.rate(matrix.R, matrix.K) * step.weight_decay, 3);
    Floats want;
    for (const float w : start) want.push_back(float(kept * double(w)));
    check_relative("weight", run.weight.get(), want, 3 * kEpsF32);
}

TEST_CASE("muon: a step that is not applied changes nothing", "[muon]") {
    const int64_t R = 5, K = 9;
    MuonStep step{.learning_rate = 0.5, .momentum = 0.5, .beta2 = 0.5, .weight_decay = 0.25};
    step.norms = MuonNorms::hyperball;
    const StepScalars scalars{.applied = 0};
    const Floats grad(size_t(R * K), std::nanf("")), x(grad.size(), 1), scales(size_t(K), 1);
    const Floats start = randn(grad.size(), 1), second_start = randn(size_t(K), 2);
    Cpu cpu(1);
    Guarded ignored(grad.size()), row_squares{size_t(R)}, momentum(start), second(second_start), weight(start);
    muon_momentum(cpu, ignored.data(), row_squares, momentum, grad.data(), R, K, step, &scalars);
    muon_scales(cpu, ignored, second, scales.data(), R, K, step, &scalars);
    Guarded radius(Floats{0.25f});
    muon_lifts(cpu, ignored, row_squares, radius, weight.data(), nullptr, x.data(), scales.data(), R, K, step,
               &scalars);
    CHECK(radius.get()[0] == 0.25f);
    muon_update(cpu, weight.data(), nullptr, x.data(), scales.data(), nullptr, nullptr, R, K, step, &scalars);
    check_equal("momentum", momentum.get(), start);
    check_equal("second moments", second.get(), second_start);
    check_equal("weight", weight.get(), start);
}

TEST_CASE("muon in bf16: the bits of float, X and the weight rounded where they are stored", "[muon]") {
    const auto [R, K] = GENERATE(table<int64_t, int64_t>({{1, 9}, {40, 17}, {35, 70}}));
    const auto n = size_t(R * K), longer = size_t(std::max(R, K));
    MuonStep step{.learning_rate = 0.05, .momentum = 0.9, .beta2 = 0.75, .weight_decay = 0.5};
    step.cautious = GENERATE(true, false);
    const StepScalars scalars{.grad_scale = 0.5, .applied = 1};
    const Floats grad = randn(n, 1), start_momentum = randn(n, 2), start = randn(n, 3), scales = randn(longer, 4);
    INFO(R << " x " << K);
    // What follows in both types is from the X that bf16 holds.
    check_rounds_once([&]<class T>(Cpu& cpu) {
        Guarded<T> x(n), orthogonal(randn(n, 5)), weight(n);
        Guarded<float> momentum(start_momentum), row_squares{size_t(R)}, squares{longer}, master(start);
        muon_momentum(cpu, x.data(), row_squares, momentum, grad.data(), R, K, step, &scalars);
        const Floats look_ahead = stored(x);
        Guarded<T> held(look_ahead), halves(rounded<bf16>(orthogonal.get()));
        for (int64_t r = 0; r < R; r++) {
            const float of_held = sum_of_squares(held.data() + r * K, K);
            if constexpr (!std::is_same_v<T, float>) CHECK(row_squares.data()[r] == of_held);
            row_squares.data()[r] = of_held;
        }
        muon_normalize(cpu, held.data(), row_squares, R, K, step);
        muon_squares(cpu, squares, halves.data(), R, K);
        if constexpr (std::is_same_v<T, float>) {
            muon_update(cpu, master.data(), nullptr, halves.data(), scales.data(), nullptr, nullptr, R, K, step,
                        &scalars);
            weight = Guarded<T>(master.get());
        } else {
            muon_update(cpu, weight.data(), master, halves.data(), scales.data(), nullptr, nullptr, R, K, step,
                        &scalars);
        }
        return std::vector{momentum.get(), look_ahead,    stored(held), Floats(squares.data(), squares.data() + longer),
                           master.get(),   stored(weight)};
    });
}

TEST_CASE("muon_update without a master: what the one in float makes of the weights, rounded by bits of their own",
          "[muon]") {
    const auto [R, K] = GENERATE(table<int64_t, int64_t>({{1, 9}, {40, 17}, {35, 70}}));
    const auto n = size_t(R * K);
    const MuonStep step{.learning_rate = 0.05, .momentum = 0.9, .beta2 = 0.75, .weight_decay = 0.5};
    const StepScalars scalars{.updates = 4, .applied = 1};
    const MomentRounding rounding{moments_key(1, "h.0.attn.c_attn.weight"), 77};
    const Floats start = rounded<bf16>(randn(n, 1)), x = rounded<bf16>(randn(n, 2));
    const Floats scales = randn(size_t(std::max(R, K)), 3);
    const auto got = on_any_threads([&, R = R, K = K](Cpu& cpu) {
        Guarded<float> exact(start);
        Guarded<bf16> weight(start), halves(x);
        muon_update(cpu, exact.data(), nullptr, x.data(), scales.data(), nullptr, nullptr, R, K, step, &scalars);
        muon_update(cpu, weight.data(), nullptr, halves.data(), scales.data(), nullptr, nullptr, R, K, step, &scalars,
                    rounding);
        return std::vector{exact.get(), weight.get()};
    });
    Floats want = got[0];
    const uint64_t key = moments_key_of(other_rounding(rounding, Stream::rounded_weights).key, scalars.updates);
    for (size_t i = 0; i < n; i++)
        want[i] = to_float(rounded_moment(want[i], element_bits(key, rounding.first + i) & 0xFFFF));
    check_equal("weight", got[1], want);
}

TEST_CASE("muon_update wants a master exactly for rounded weights", "[muon]") {
    Cpu cpu(1);
    Floats x(4, 1);
    std::vector<bf16> halves(4);
    const MuonStep step{};
    const auto refused = [&](auto* weight, float* master) {
        return contains(error_of([&] {
                            muon_update(cpu, weight, master, weight, x.data(), nullptr, nullptr, 1, 4, step, &kApplied);
                        }),
                        "master");
    };
    CHECK(refused(halves.data(), nullptr));
    CHECK(refused(x.data(), x.data()));
}
