// Speed of what a step decides: the mean of a micro-batch's losses. The decision itself is one square root.
#include "dev/bench/bench.h"  // Bench, kShapes
#include "llmc/cpu/step_scalars.h"

int main() {
    Bench bench("step_scalars", Bound::memory);
    for (const BenchShape& s : kShapes) {
        const Floats losses = random_floats(s.N());
        StepScalars scalars;
        bench.run("add_mean_loss", s, 4. * double(s.N()), double(s.N()),
                  [&] { add_mean_loss(bench.cpu, &scalars, losses.data(), s.N(), 0.5); });
        bench.run("decide_step", s, sizeof scalars, 3, [&] { decide_step(bench.cpu, &scalars, 1); });
    }
}
