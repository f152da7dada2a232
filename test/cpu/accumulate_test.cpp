// accumulate adds one buffer to another, and touches nothing else.
#include "llmc/cpu/accumulate.h"
#include "test/testing.h"

TEST_CASE("accumulate adds, on any number of threads", "[accumulate]") {
    for (const int64_t n : {0, 1, 7, 16384, 40001}) {
        for (const int threads : {1, 3}) {
            Cpu cpu(threads);
            std::vector<float> to(static_cast<size_t>(n) + 1, 0.1f), from(static_cast<size_t>(n) + 1, 7);
            for (int64_t i = 0; i < n; i++) from[size_t(i)] = float(i) * 0.3f;
            accumulate(cpu, to.data(), from.data(), n);
            int64_t wrong = 0;
            for (int64_t i = 0; i < n; i++) wrong += to[size_t(i)] != 0.1f + from[size_t(i)];
            CHECK(wrong == 0);
            CHECK(to.back() == 0.1f);
        }
    }
}
