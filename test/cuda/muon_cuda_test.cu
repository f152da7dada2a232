// The kernels of Muon's element-wise steps against the CPU's functions.
#include "llmc/cuda/muon.cuh"
#include "llmc/cpu/muon.h"
#include "llmc/cuda/newton_schulz.cuh"
#include "test/cpu/muon_testing.h"  // MuonRunIn
#include "test/cuda_testing.h"      // OnDevice, rounded, twice_the_same
#include "test/fixture.h"           // Fixture

constexpr MuonStep kStep{.learning_rate = 0.05, .momentum = 0.9, .beta2 = 0.75, .weight_decay = 0.5};

// grad_scale, and whether anything may change
static std::vector<StepScalars> scalars(double grad_scale, int applied) {
    StepScalars s;
    s.grad_scale = grad_scale, s.applied = applied;
    return {s};
}

// As X lies on the device: each row of K values with zeros up to `row`; and back, where the zeros must still be there.
Floats padded(const Floats& values, int64_t R, int64_t K, int64_t row) {
    Floats all(size_t(R * row));
    for (int64_t i = 0; i < R * K; i++) all[size_t(i / K * row + i % K)] = values[size_t(i)];
    return all;
}
Floats without_padding(const Floats& all, int64_t R, int64_t K, int64_t row) {
    Floats values(size_t(R * K));
    double after = 0;
    for (int64_t r = 0; r < R; r++)
        for (int64_t k = 0; k < row; k++)
            if (k < K)
                values[size_t(r * K + k)] = all[size_t(r * row + k)];
            else
                after += std::fabs(all[size_t(r * row + k)]);
    CHECK(after == 0);
    return values;
}

// One pack; more rows than blocks, and several chunks of them; more columns than threads; several rounds of a row; rows
// that are no whole packs, as those of nanochat's gates.
template <class T>
std::pair<int64_t, int64_t> muon_shape() {
    const int P = Pack<T>::size;
    const auto [R, K] = GENERATE_COPY(table<int, int>({{1, P},
                                                       {37, 2 * P},
                                                       {150, 38 * P},
                                                       {40, 40},
                                                       {70, 300 * P},
                                                       {5, 520 * P},
                                                       {6, 12},
                                                       {20, 13},
                                                       {3, 2 * P + 1}}));
    return {R, K};
}

// What is stored in bf16 is off by half a unit; sums of n squares, in other orders on the two sides, by half a unit for
// each of n / 16 there and fewer here; the rest are a few roundings.
template <class T>
double tolerance(int64_t n) {
    return (double(n) / 16 / 2 + 6) * kEpsF32 + (std::is_same_v<T, bf16> ? kEpsBf16 / 2 : 0);
}

TEMPLATE_TEST_CASE("muon_momentum and muon_normalize agree with the CPU", "[muon]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const auto [R, K] = muon_shape<T>();
    MuonStep step = kStep;
    step.equal_rows = GENERATE(true, false);
    const float size = GENERATE(1.f, 0x1p-20f);  // of what is normalized; the small one, where the 1e-6 in norms count
    if (kWatched && step.equal_rows != (size == 1)) return;
    INFO(R << " x " << K << (step.equal_rows ? "" : ", rows as they are"));
    const auto n = size_t(R * K), rows = size_t(R);
    const Floats grad = randn(n, 1), momentum = randn(n, 2);
    Cpu cpu;
    Floats want_momentum = momentum, x(n), row_squares(rows);
    muon_momentum(cpu, x.data(), row_squares.data(), want_momentum.data(), grad.data(), R, K, step,
                  scalars(0.5, 1).data());
    // What both sides normalize: rows of different sizes, one of zeros.
    Floats uneven = rounded<T>(x), uneven_squares(rows);
    for (int64_t r = 0; r < R; r++)
        for (int64_t k = 0; k < K; k++) uneven[size_t(r * K + k)] *= size * float(r % 4);
    uneven = rounded<T>(uneven);
    for (int64_t r = 0; r < R; r++) uneven_squares[size_t(r)] = sum_of_squares(&uneven[size_t(r * K)], K);
    Floats normalized = uneven;
    muon_normalize(cpu, normalized.data(), uneven_squares.data(), R, K, step);

    Cuda cuda;
    const int64_t row = muon_row<T>(cuda, K);
    const OnDevice<StepScalars> d_scalars(cuda, scalars(0.5, 1));
    const OnDevice<float> d_grad(cuda, grad), d_uneven_squares(cuda, uneven_squares);
    const auto got = twice_the_same([&] {
        OnDevice<float> d_momentum(cuda, momentum), d_row_squares(cuda, rows);
        OnDevice<T> d_x(cuda, size_t(R * row)), d_uneven(cuda, padded(uneven, R, K, row));
        muon_momentum(cuda, d_x.data, d_row_squares.data, d_momentum.data, d_grad.data, R, K, step, d_scalars.data);
        muon_normalize(cuda, d_uneven.data, d_uneven_squares.data, R, K, step);
        return std::vector{d_momentum.get(), without_padding(d_x.get(), R, K, row), d_row_squares.get(),
                           without_padding(d_uneven.get(), R, K, row)};
    });
    check_close("momentum", got[0], want_momentum, 4 * kEpsF32);
    check_close("X", got[1], x, 4 * kEpsF32 + tolerance<T>(0));
    for (int64_t r = 0; r < R; r++) row_squares[size_t(r)] = sum_of_squares(&got[1][size_t(r * K)], K);
    check_relative("row_squares", got[2], row_squares, tolerance<float>(K));
    check_close("normalized", got[3], normalized, tolerance<T>(R) + tolerance<float>(R));  // two norms
}

// Whole packs, rows that are none, and a matrix that begins at an odd element of its parameter.
TEMPLATE_TEST_CASE("muon_momentum on the device rounds a momentum in bf16 to the CPU's bits", "[muon]" ON_DEVICE, float,
                   bf16) {
    using T = TestType;
    const auto [R, K, first] = GENERATE(table<int, int, uint64_t>({{5, 40, 0}, {6, 12, 72}, {5, 13, 65}}));
    INFO(R << " x " << K << " from " << first);
    const auto n = size_t(R * K), rows = size_t(R);
    const MomentRounding rounding{moments_key(1, "h.0.mlp.c_fc.weight"), first};
    Guarded<bf16> want(randn(n, 2));
    const Floats grad = randn(n, 1);
    StepScalars s = scalars(0.37, 1)[0];
    s.updates = 9;
    Cpu cpu;
    Guarded<T> want_x(n);
    Guarded<float> want_squares(rows);
    Cuda cuda;
    const int64_t row = muon_row<T>(cuda, K);
    const OnDevice<StepScalars> d_s(cuda, std::vector{s});
    const OnDevice<float> d_grad(cuda, grad);
    OnDevice<bf16> momentum(cuda, want.get());
    OnDevice<float> squares(cuda, rows);
    OnDevice<T> x(cuda, size_t(R * row));
    muon_momentum_bf16(cuda, x.data, squares.data, momentum.data, d_grad.data, R, K, kStep, d_s.data, rounding);
    muon_momentum_bf16(cpu, want_x.data(), want_squares.data(), want.data(), grad.data(), R, K, kStep, &s, rounding);
    check_equal("momentum", momentum.get(), want.get());
    check_equal("X", without_padding(x.get(), R, K, row), want_x.get());
}

TEMPLATE_TEST_CASE("muon_squares, muon_scales and muon_update agree with the CPU", "[muon]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const auto [R, K] = muon_shape<T>();
    MuonStep step = kStep;
    constexpr bool kMaster = !std::is_same_v<T, float>;
    step.fixed_norm = GENERATE(true, false);
    step.cautious = GENERATE(true, false);
    const bool has_second = GENERATE(true, false);
    if (kWatched && (step.fixed_norm != step.cautious || step.cautious == has_second)) return;
    INFO(R << " x " << K << (step.fixed_norm ? ", fixed norm" : "") << (step.cautious ? ", cautious" : "")
           << (has_second ? ", second moments" : ""));
    const auto n = size_t(R * K), larger = size_t(std::max(R, K));
    const Floats x = rounded<T>(randn(n, 1)), weight = randn(n, 2);
    Floats second = randn(larger, 3), squares(larger), scales(larger), want_second, want_weight = weight;
    for (float& v : second) v = 0.25f * v * v;
    want_second = second;
    Cpu cpu;
    muon_squares(cpu, squares.data(), x.data(), R, K);
    muon_scales(cpu, scales.data(), has_second ? want_second.data() : nullptr, squares.data(), R, K, step,
                scalars(1, 1).data());
    muon_update(cpu, want_weight.data(), nullptr, x.data(), scales.data(), nullptr, nullptr, R, K, step,
                scalars(1, 1).data());

    Cuda cuda;
    const OnDevice<StepScalars> d_scalars(cuda, scalars(1, 1));
    const OnDevice<T> d_x(cuda, padded(x, R, K, muon_row<T>(cuda, K)));
    const auto got = twice_the_same([&] {
        OnDevice<float> d_squares(cuda, larger), d_scales(cuda, larger), d_second(cuda, second), d_master(cuda, weight);
        OnDevice<T> d_weight(cuda, rounded<T>(weight));
        muon_squares(cuda, d_squares.data, d_x.data, R, K);
        muon_scales(cuda, d_scales.data, has_second ? d_second.data : nullptr, d_squares.data, R, K, step,
                    d_scalars.data);
        muon_update(cuda, d_weight.data, kMaster ? d_master.data : nullptr, d_x.data, d_scales.data, nullptr, nullptr,
                    R, K, step, d_scalars.data);
        return std::vector{d_squares.get(), d_second.get(), d_scales.get(), d_master.get(), d_weight.get()};
    });
    const double units = tolerance<float>(std::min(R, K)) + tolerance<float>(std::max(R, K));
    check_relative("squares", got[0], squares, tolerance<float>(std::min(R, K)));
    check_relative("second", got[1], want_second, units);
    check_relative("scales", got[2], scales, 2 * units);
    // The weight's own rounding, and of the change what its scale is off by.
    std::vector<double> bounds;
    for (size_t i = 0; i < n; i++) {
        const double decay = step.rate(R, K) * step.weight_decay * std::fabs(weight[i]);
        bounds.push_back(kEpsF32 * std::fabs(want_weight[i]) +
                         2 * units * (std::fabs(double(want_weight[i]) - weight[i]) + decay));
    }
    check_within("master", got[kMaster ? 3 : 4], want_weight, bounds);
    if (kMaster) check_equal("weight", got[4], rounded<T>(got[3]));
}

// Of weights with master weights and without; hyperball with a radius from before, from the first step, and for zeros.
TEMPLATE_TEST_CASE("muon_lifts and muon_update with them agree with the CPU", "[muon]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const auto [R, K] = muon_shape<T>();
    MuonStep step = kStep;
    step.norms = GENERATE(MuonNorms::hyperball, MuonNorms::floor, MuonNorms::row_floor), step.floor = 0.75;
    const bool has_master = !std::is_same_v<T, float> && GENERATE(true, false);
    const float radius = step.norms == MuonNorms::hyperball ? GENERATE(0.f, 3.f, -0x1p20f) : 0;
    if (kWatched && (has_master || radius < 0 || R > 100)) return;
    INFO(R << " x " << K << ", " << int(step.norms) << (has_master ? ", a master" : "") << ", radius " << radius);
    const auto n = size_t(R * K), rows = size_t(R);
    const Floats x = rounded<T>(randn(n, 1)), scales = randn(size_t(std::max(R, K)), 3);
    const Floats weight = has_master ? randn(n, 2) : rounded<T>(randn(n, 2));
    Floats lifts(rows), keep(1), kept_radius{radius}, want = weight;
    Cpu cpu;
    muon_lifts(cpu, lifts.data(), keep.data(), kept_radius.data(), weight.data(), nullptr, x.data(), scales.data(), R,
               K, step, scalars(1, 1).data());
    muon_update(cpu, want.data(), nullptr, x.data(), scales.data(), lifts.data(), keep.data(), R, K, step,
                scalars(1, 1).data());

    Cuda cuda;
    const OnDevice<StepScalars> d_scalars(cuda, scalars(1, 1));
    const OnDevice<T> d_x(cuda, padded(x, R, K, muon_row<T>(cuda, K)));
    const OnDevice<float> d_scales(cuda, scales);
    const auto got = twice_the_same([&] {
        OnDevice<float> d_lifts(cuda, rows), d_keep(cuda, 1), d_radius(cuda, Floats{radius}), d_master(cuda, weight);
        OnDevice<T> d_weight(cuda, rounded<T>(weight));
        muon_lifts(cuda, d_lifts.data, d_keep.data, d_radius.data, d_weight.data, has_master ? d_master.data : nullptr,
                   d_x.data, d_scales.data, R, K, step, d_scalars.data);
        if (has_master || std::is_same_v<T, float>)
            muon_update(cuda, d_weight.data, has_master ? d_master.data : nullptr, d_x.data, d_scales.data,
                        d_lifts.data, d_keep.data, R, K, step, d_scalars.data);
        return std::vector{d_lifts.get(), d_keep.get(), d_radius.get(), has_master ? d_master.get() : d_weight.get()};
    });
    // Ratios of roots of sums over rows and over all rows, whose units the root halves.
    const double units = tolerance<float>(K) + tolerance<float>(R);
    check_relative("lifts", got[0], lifts, units);
    check_relative("keep", got[1], keep, 2 * units);
    check_relative("radius", got[2], kept_radius, units);
    if (!has_master && !std::is_same_v<T, float>) return;
    std::vector<double> bounds;
    for (size_t i = 0; i < n; i++) {
        const double decay = step.rate(R, K) * step.weight_decay * std::fabs(weight[i]);
        const double of_keep = step.norms == MuonNorms::hyperball ? 2 * units : 0;
        const double change = std::fabs(want[i] / double(keep[0]) - weight[i]) + decay;
        bounds.push_back((2 * kEpsF32 + of_keep) * std::fabs(want[i]) + (units + 4 * kEpsF32) * change);
    }
    check_within("weight", got[3], want, bounds);
}

TEST_CASE("muon's kernels: zeros stay zeros; a step that is not applied changes nothing", "[muon]" ON_DEVICE) {
    const int64_t R = 4, K = 8;
    const int applied = GENERATE(0, 1);
    Cuda cuda;
    const OnDevice<StepScalars> s(cuda, scalars(1, applied));
    const OnDevice<float> grad(cuda, Floats(32, applied ? 0 : std::nanf("")));
    OnDevice<float> momentum(cuda, Floats(32, 0)), row_squares(cuda, 4), squares(cuda, 8), scales(cuda, 8);
    OnDevice<float> second(cuda, Floats(8, 0)), master(cuda, Floats(32, 2)), radius(cuda, Floats{-0.25f});
    MuonStep sphere = kStep;
    sphere.norms = MuonNorms::hyperball;
    OnDevice<bf16> x(cuda, 32), weight(cuda, Floats(32, 2));
    muon_momentum(cuda, x.data, row_squares.data, momentum.data, grad.data, R, K, kStep, s.data);
    muon_normalize(cuda, x.data, row_squares.data, R, K, kStep);
    muon_squares(cuda, squares.data, x.data, R, K);
    muon_scales(cuda, scales.data, second.data, squares.data, R, K, kStep, s.data);
    if (!applied) {
        muon_lifts(cuda, row_squares.data, squares.data, radius.data, weight.data, master.data, x.data, scales.data, R,
                   K, sphere, s.data);
        CHECK(radius.get()[0] == -0.25f);
    }
    muon_update(cuda, weight.data, master.data, x.data, scales.data, nullptr, nullptr, R, K, kStep, s.data);
    if (applied) check_equal("X", x.get(), Floats(32, 0));
    check_equal("momentum", momentum.get(), Floats(32, 0));
    check_equal("second moments", second.get(), Floats(8, 0));
    // No gradient is no reason against the decay. 2 - 0.05 * 0.5 * 2.
    const Floats want(32, applied ? 2 - 0.05f : 2);
    check_close("master", master.get(), want, kEpsF32);
    check_equal("weight", weight.get(), rounded<bf16>(want));
}

TEST_CASE("muon on a GPU: 20 steps with the products in the middle agree with PyTorch", "[muon]" ON_DEVICE) {
    const Fixture f("muon_training");
    const MuonMatrix& matrix = GENERATE(from_range(kMuonMatrices));
    const MuonNormsCase& norms = GENERATE(from_range(kMuonNorms));
    INFO(norms.name << matrix.name);
    Cuda cuda;
    MuonRunIn<Cuda, OnDevice<float>> run(cuda, f.floats(matrix.name), matrix);
    for (int step = 0; step < (kWatched ? 2 : kMuonTrainingSteps); step++)
        run.step(cuda, matrix.gradients(step), norms.step());
    if (kWatched) return;
    CHECK(relative_l2(run.weight.get(), f.floats(norms.want(matrix.name))) <= kMuonTrainingTolerance);
}

TEST_CASE("muon on a GPU: an exactly zero gradient leaves nothing but numbers in a whole step", "[muon]" ON_DEVICE) {
    const MuonMatrix& matrix = GENERATE(from_range(kMuonMatrices));
    Cuda cuda;
    MuonRunIn<Cuda, OnDevice<float>> run(cuda, randn(matrix.size(), 1), matrix);
    run.step(cuda, Floats(matrix.size(), 0), kMuonTraining);
    check_equal("X", run.X.get(), Floats(matrix.size(), 0));
    check_equal("momentum", run.momentum.get(), Floats(matrix.size(), 0));
    check_equal("second moments", run.second.get(), Floats(run.second.n, 0));
    CHECK(count_not_finite(run.weight.get()) == 0);
}

// Rows of whole packs and others, and a matrix that begins at an odd element of its parameter.
TEST_CASE("muon_update on the device rounds weights without master weights to the CPU's bits", "[muon]" ON_DEVICE) {
    const auto [R, K, first] = GENERATE(table<int, int, uint64_t>({{5, 40, 0}, {6, 12, 72}, {20, 13, 65}}));
    INFO(R << " x " << K << " from " << first);
    const auto n = size_t(R * K);
    const MomentRounding rounding{moments_key(1, "h.0.mlp.c_fc.weight"), first};
    const Floats x = rounded<bf16>(randn(n, 1)), scales = randn(size_t(std::max(R, K)), 3);
    Guarded<bf16> want(rounded<bf16>(randn(n, 2))), on_cpu(x);
    StepScalars s = scalars(1, 1)[0];
    s.updates = 9;
    Cpu cpu;
    Cuda cuda;
    const OnDevice<StepScalars> d_s(cuda, std::vector{s});
    const OnDevice<bf16> d_x(cuda, padded(x, R, K, muon_row<bf16>(cuda, K)));
    const OnDevice<float> d_scales(cuda, scales);
    OnDevice<bf16> weight(cuda, want.get());
    muon_update<bf16>(cuda, weight.data, nullptr, d_x.data, d_scales.data, nullptr, nullptr, R, K, kStep, d_s.data,
                      rounding);
    muon_update(cpu, want.data(), nullptr, on_cpu.data(), scales.data(), nullptr, nullptr, R, K, kStep, &s, rounding);
    check_equal("weight", weight.get(), want.get());
}

TEST_CASE("muon_update wants master weights beside bf16", "[muon]" ON_DEVICE) {
    Cuda cuda;
    OnDevice<bf16> x(cuda, 8);
    OnDevice<float> y(cuda, 8);
    CHECK(contains(error_of([&] {
                       muon_update<bf16>(cuda, x.data, nullptr, x.data, y.data, nullptr, nullptr, 1, 8, kStep, nullptr);
                   }),
                   "internal"));
}
