// Large copies to the host are complete and in place, for all sizes relative to the pinned buffers.
#include <memory>
#include "test/cuda_testing.h"  // Cuda, OnDevice, ON_DEVICE

TEST_CASE("copies through pinned buffers arrive whole, of any size and more than once", "[cuda_device]" ON_DEVICE) {
    Cuda cuda;
#ifdef ANVIL_EMULATED
    emulator::options().lazy_streams = true;  // what is taken before it has come shows
#endif
    Cuda::HostCopies copies(cuda, 64 * sizeof(float));
    for (const int round : {1, 2}) {
        std::vector<std::unique_ptr<OnDevice<float>>> from;
        std::vector<Floats> want, got;
        // Nothing, less than a buffer, exactly one, several and a bit; then more of what fits together in one.
        for (const size_t n : {0, 1, 63, 64, 65, 200, 3, 5, 128, 7}) {
            Floats values(n);
            for (size_t i = 0; i < n; i++) values[i] = float(1000 * round + 10 * int(want.size())) + float(i) / 256;
            from.push_back(std::make_unique<OnDevice<float>>(cuda, values));
            want.push_back(values);
            got.emplace_back(n + 1, -1.f);
        }
        for (size_t i = 0; i < from.size(); i++)
            copies.add(got[i].data(), from[i]->data, want[i].size() * sizeof(float));
        copies.finish();
        for (size_t i = 0; i < from.size(); i++) {
            INFO("round " << round << ", copy " << i);
            CHECK(got[i].back() == -1.f);
            got[i].pop_back();
            CHECK(got[i] == want[i]);
        }
    }
#ifdef ANVIL_EMULATED
    emulator::options().lazy_streams = false;
#endif
}
