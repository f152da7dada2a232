// The kernel of weight averages against the CPU's function: the same bits.
#include "llmc/cuda/weight_average.cuh"
#include <deque>
#include "llmc/cpu/weight_average.h"
#include "test/cuda_testing.h"  // OnDevice

// Fewer elements than a pack, packs and a rest, and more than all blocks take at once, in one call.
TEST_CASE("average_weights on the device has the CPU's bits", "[weight_average]" ON_DEVICE) {
    Cuda cuda;
    Cpu cpu;
    const size_t many =
        kWatched ? 2055 : size_t(kAverageBlocksPerSm * cuda.num_sms * kAverageThreads * Pack<float>::size + 2055);
    std::vector<Floats> want, weights;
    std::deque<OnDevice<float>> averages, d_weights;
    std::vector<WeightAverage> on_cpu, tensors;
    for (const size_t n : {size_t(3), size_t(8), size_t(1029), many})
        want.push_back(randn(n, 1)), weights.push_back(randn(n, 2));
    for (size_t i = 0; i < want.size(); i++) {
        const auto n = int64_t(want[i].size());
        averages.emplace_back(cuda, want[i]), d_weights.emplace_back(cuda, weights[i]);
        on_cpu.push_back({want[i].data(), weights[i].data(), n});
        tensors.push_back({averages[i].data, d_weights[i].data, n});
    }
    average_weights(cpu, on_cpu.data(), int64_t(on_cpu.size()), 0.3);
    average_weights(cuda, tensors.data(), int64_t(tensors.size()), 0.3);
    for (size_t i = 0; i < want.size(); i++) check_equal("average", averages[i].get(), want[i]);
}
