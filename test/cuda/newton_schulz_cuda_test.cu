// Newton-Schulz iterations on a GPU: singular values, directions, batches.
#include "llmc/cuda/newton_schulz.cuh"
#include "llmc/cpu/newton_schulz.h"
#include "test/cpu/orthogonal_testing.h"
#include "test/cuda_testing.h"  // OnDevice, rounded, twice_the_same

static NewtonSchulzOptions polar(SymmetricProducts products, int iterations = 5) {
    NewtonSchulzOptions options = NewtonSchulzOptions::polar_express(iterations);
    options.products = products;
    return options;
}

template <class T>
SymmetricProducts products_of() {
    if constexpr (std::is_same_v<T, float>) return SymmetricProducts::automatic;
    return GENERATE(SymmetricProducts::triangle, SymmetricProducts::whole);
}

TEMPLATE_TEST_CASE("newton_schulz on a GPU takes singular values into the band of its polynomials",
                   "[newton_schulz]" ON_DEVICE, float, bf16) {
    using T = TestType;
    std::vector<OrthogonalCase> shapes;
    for (const auto& shape : kOrthogonalCases)
        if (shape.K % Pack<T>::size == 0) shapes.push_back(shape);
    for (const auto& shape : {OrthogonalCase{40, 24}, {24, 40}, {80, 8}, {1, 80}, {56, 56}, {3, 16}, {136, 40}})
        shapes.push_back(shape);
    REQUIRE(shapes.size() >= 20);
    const size_t i = GENERATE_COPY(range(size_t(0), shapes.size()));
    if (kWatched && i % 3) return;
    const OrthogonalCase shape = shapes[i];
    const NewtonSchulzOptions options = polar(products_of<T>());
    const Floats start = rounded<T>(matrix_of(shape));
    Cuda cuda;
    const auto got = twice_the_same([&] {
        OnDevice<T> d_x(cuda, start);
        newton_schulz(cuda, d_x.data, 1, shape.R, shape.K, options);
        return std::vector<Floats>{d_x.get()};
    });
    check_rounded_band(got[0], start, shape, options, eps_of<T>());
}

TEMPLATE_TEST_CASE("newton_schulz on a GPU keeps the directions of a matrix, as the CPU does",
                   "[newton_schulz]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const auto [batch, R, K] =
        GENERATE(table<int64_t, int64_t, int64_t>({{3, 16, 48}, {3, 48, 16}, {2, 24, 24}, {2, 5, 16}}));
    const NewtonSchulzOptions options = polar(products_of<T>());
    INFO(batch << " x " << R << " x " << K);
    const float size = 0.005f;  // of the singular values: none of the polynomials has to cancel much of it
    const Floats start = rounded<T>(alike(batch, R, K, size));
    Floats want = start;
    Cpu cpu(1);
    newton_schulz(cpu, want.data(), batch, R, K, options);
    Cuda cuda;
    OnDevice<T> d_x(cuda, start);
    newton_schulz(cuda, d_x.data, batch, R, K, options);
    const double tolerance = equal_values_tolerance(double(size), options, {eps_of<T>(), R, K, 1});
    CHECK(relative_l2(d_x.get(), want) <= tolerance);
    CHECK(tolerance < 0.5);  // with another's directions it would be the root of 2
}

TEMPLATE_TEST_CASE("newton_schulz on a GPU: a matrix has the same bits whatever else is in its batch",
                   "[newton_schulz]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const auto [R, K] = GENERATE(table<int64_t, int64_t>({{16, 24}, {24, 16}, {5, 8}, {136, 8}}));
    const NewtonSchulzOptions options = polar(products_of<T>(), GENERATE(2, 3));  // copied back, and not
    if (kWatched && R != 16 && R != 5) return;
    const size_t size = size_t(R * K);
    Floats batch = rounded<T>(randn(4 * size, 1, 0.25f / std::sqrt(float(size))));
    batch[1] = std::nanf("");  // spoils the first matrix and no other
    const auto run = [&](size_t first, size_t count) {
        Cuda cuda;
        OnDevice<T> d_x(
            cuda, Floats(batch.begin() + ptrdiff_t(first * size), batch.begin() + ptrdiff_t((first + count) * size)));
        newton_schulz(cuda, d_x.data, int64_t(count), R, K, options);
        return d_x.get();
    };
    const Floats all = run(0, 4);
    CHECK(std::isnan(all[1]));
    for (size_t i = 1; i < 4; i++) {
        const Floats one = run(i, 1);
        CHECK(count_not_finite(one) == 0);
        CHECK(same_bits(one, Floats(all.begin() + ptrdiff_t(i * size), all.begin() + ptrdiff_t((i + 1) * size))));
    }
}

TEST_CASE("newton_schulz on a GPU: which products, how much memory, which rows", "[newton_schulz]" ON_DEVICE) {
    Cuda cuda;
    const int real_chip = cuda.compute_capability;
    CHECK(!newton_schulz_by_triangles<float>(cuda, 64, 64, SymmetricProducts::triangle));
    for (const int chip : {80, 90, 100}) {
        cuda.compute_capability = chip;
        CHECK(newton_schulz_by_triangles<bf16>(cuda, 4096, 64, SymmetricProducts::automatic) == (chip != 90));
        CHECK(newton_schulz_by_triangles<bf16>(cuda, 4096, 4096, SymmetricProducts::automatic) == (chip < 90));
        CHECK(newton_schulz_by_triangles<bf16>(cuda, 64, 64, SymmetricProducts::triangle));
    }
    cuda.compute_capability = real_chip;
    CHECK(!newton_schulz_by_triangles<bf16>(cuda, 64, 64, SymmetricProducts::whole));
    CHECK(!newton_schulz_by_triangles<bf16>(cuda, 12, 64, SymmetricProducts::triangle));
    // It never takes more workspace than it has announced.
    const auto [R, K] = GENERATE(table<int64_t, int64_t>({{5, 16}, {24, 16}}));
    const size_t bytes = newton_schulz_workspace<bf16>(cuda, 2, R, K);
    cuda.reserve_workspace(bytes);
    OnDevice<bf16> x(cuda, Floats(size_t(2 * R * K), 0.01f));
    newton_schulz(cuda, x.data, 2, R, K, polar(SymmetricProducts::automatic));
    CHECK(cuda.workspace_bytes() == bytes);
    CHECK(error_of([&] { newton_schulz(cuda, x.data, 1, 8, 12, polar(SymmetricProducts::automatic)); }) ==
          "2: newton_schulz of a (8, 12) matrix: its rows must be a multiple of 8, 16 bytes");
}
