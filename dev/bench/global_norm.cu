// Speed of the gradients' sum of squares: one read.
#include "dev/bench/bench.h"  // Bench, kShapes
#include "llmc/cpu/global_norm.h"

int main() {
    Bench bench("global_norm", Bound::memory);
    for (const BenchShape& s : kShapes) {
        const Floats x = random_floats(s.num_params);
        double sum = 0;
        bench.run("global_norm_squared", s, 4. * double(s.num_params), 2. * double(s.num_params),
                  [&] { global_norm_squared(bench.cpu, &sum, x.data(), s.num_params); });
    }
}
