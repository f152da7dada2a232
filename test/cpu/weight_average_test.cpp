// The running average of weights against PyTorch's.
#include "llmc/cpu/weight_average.h"
#include "test/fixture.h"     // Fixture
#include "test/op_testing.h"  // on_any_threads
#include "test/testing.h"

TEST_CASE("average_weights agrees with PyTorch: a copy, a mean, and from then on exponential", "[weight_average]") {
    const Fixture f("weight_average");
    const Floats weights = f.floats("weights");
    const size_t n = f.floats("want.average").size(), steps = weights.size() / n;
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded average(n, 0);
        for (size_t step = 0; step < steps; step++) {
            // Two tensors, of which the second begins within a vector.
            const float* weight = &weights[step * n];
            const WeightAverage tensors[] = {{average.data(), weight, 5},
                                             {average.data() + 5, weight + 5, int64_t(n) - 5}};
            average_weights(cpu, tensors, 2, std::max(1 / double(step + 1), 0.25));
            if (step == 0) check_equal("a copy", average.get(), Floats(weights.begin(), weights.begin() + long(n)));
        }
        return std::vector<Floats>{average.get()};
    });
    // In each step half a unit of the rate, of the difference and of the average.
    check_close("average", got[0], f.floats("want.average"), 1.5 * double(steps) * kEpsF32);
}
