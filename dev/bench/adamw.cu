// Speed of AdamW: param, m and v in and out, the gradient in.
#include "dev/bench/bench.h"  // Bench, kShapes
#include "llmc/cpu/adamw.h"

int main() {
    Bench bench("adamw", Bound::memory);
    const AdamWStep step{.learning_rate = 1e-4,
                         .beta1 = 0.9,
                         .beta2 = 0.95,
                         .eps = 1e-8,
                         .weight_decay = 0.1,
                         .grad_scale = 0.5,
                         .step = 100};
    for (const BenchShape& s : kShapes) {
        const int64_t n = s.num_params;
        const Floats grad = random_floats(n);
        Floats param = grad, m(size_t(n), 0), v(size_t(n), 0);
        bench.run("adamw_update", s, 4. * 7 * double(n), 14. * double(n),
                  [&] { adamw_update(bench.cpu, param.data(), m.data(), v.data(), grad.data(), n, step); });
    }
}
