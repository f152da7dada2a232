// Speed of the casts between float and bf16.
#include "dev/bench/bench.h"  // Bench, kShapes
#include "llmc/cpu/cast.h"

int main() {
    Bench bench("cast", Bound::memory);
    for (const BenchShape& s : kShapes) {
        const int64_t n = s.N() * s.C;
        Floats wide = random_floats(n);
        std::vector<bf16> narrow(wide.size());
        bench.run("cast_to_bf16", s, 6. * double(n), double(n),
                  [&] { cast(bench.cpu, narrow.data(), wide.data(), n); });
        bench.run("cast_to_float", s, 6. * double(n), double(n),
                  [&] { cast(bench.cpu, wide.data(), narrow.data(), n); });
    }
}
