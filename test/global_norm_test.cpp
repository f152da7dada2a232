// The sum of squares that clipping divides by: against PyTorch, exact on whole numbers, and never finite by accident.
#include "llmc/cpu/global_norm.h"
#include "test/fixture.h"     // Fixture
#include "test/op_testing.h"  // whole_numbers
#include "test/testing.h"

// The same double from 1, 2 and 3 threads.
static double norm_squared(const Floats& x) {
    double results[3];
    for (const int threads : {1, 2, 3}) {
        Cpu cpu(threads);
        results[threads - 1] = std::nan("");
        global_norm_squared(cpu, &results[threads - 1], x.data(), int64_t(x.size()));
    }
    CHECK(std::memcmp(&results[0], &results[1], sizeof(double)) == 0);
    CHECK(std::memcmp(&results[0], &results[2], sizeof(double)) == 0);
    return results[0];
}

TEST_CASE("global_norm agrees with PyTorch", "[global_norm]") {
    const Fixture f("global_norm");
    const int n = GENERATE(1, 7, 1000, 4099);
    const double want = f.floats(format("want.%d.norm", n))[0];
    // A lane adds at most 256 squares before the sum goes on in double: sqrt(256) half units if it were alone, a
    // quarter of that for the mean of sixteen lanes, half of it in the norm, and half a unit for the reference's own
    // rounding.
    CHECK(std::fabs(std::sqrt(norm_squared(f.floats(format("%d.x", n)))) - want) <= 2 * kEpsF32 * want);
}

TEST_CASE("global_norm of whole numbers is exact", "[global_norm]") {
    const int64_t n = GENERATE(0, 1, 15, 16, 17, 4095, 4096, 4097, 100003);
    const Floats x = whole_numbers(n, 1, 100);
    double want = 0;
    for (const float value : x) want += double(value) * value;
    CHECK(norm_squared(x) == want);
}

TEST_CASE("global_norm is not finite if any element is not", "[global_norm]") {
    const size_t n = 20000;
    const size_t at = GENERATE(size_t(0), size_t(5), size_t(4096), size_t(12345), n - 1);
    Floats x = randn(n, 1);
    for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
        x[at] = bad;
        CHECK(!std::isfinite(norm_squared(x)));
    }
    x[at] = 1;
    CHECK(std::isfinite(norm_squared(x)));
}
