// Adapters on a GPU: gradients against those of a dense model, and against the CPU's.
#include "llmc/cpu/kernels.h"
#include "llmc/cuda/cuda_kernels.h"
#include "llmc/cuda/limits.h"  // kOldestFp8
#include "test/cuda_testing.h"
#include "test/model/lora_testing.h"
#include "test/models.h"

TEST_CASE("on a GPU, the gradients of A and B are those of the merged weights, projected", "[lora]" ON_DEVICE) {
    for (const LoraCase& c : kLoraCases) {
        INFO(c.name);
        Cuda cuda;
        const LoraLearned adapted = learn_beside<float>(cuda, c.shape, false, Recompute::none, c.B, c.T),
                          dense = learn_beside<float>(cuda, c.shape, true, Recompute::none, c.B, c.T);
        check_lora_gradients(c.shape, adapted, dense, kModelTolerance);
    }
}

TEST_CASE("on a GPU in bf16, adapters with dropout learn as on the CPU but for roundings", "[lora]" ON_DEVICE) {
    const LoraCase& c = kLoraCases[1];
    const GptShape shape = with_lora(c.shape, true, 0.25);
    const Dropout dropout{.p = 0.25, .seed = 3, .step = 5, .first_row = 2};
    Cpu cpu;
    Cuda cuda;
    const LoraLearned got = learn_beside<bf16>(cuda, shape, false, Recompute::block, c.B, c.T, dropout),
                      want = learn_beside<float>(cpu, shape, false, Recompute::none, c.B, c.T, dropout);
    CHECK(std::fabs(got.loss - want.loss) <= kEpsBf16 * want.loss);
    for (const auto& [name, values] : want.gradients) {
        INFO(name);
        CHECK(relative_l2(got.gradients.at(name), values) <=
              2 * kEpsBf16 * double(shape.num_layers));  // as in lora_test.cpp
    }
}

TEST_CASE("on a GPU, beside a base in FP8 adapters learn as in a model in FP8", "[lora]" ON_DEVICE) {
    if (Cuda().compute_capability < kOldestFp8) return;
    for (const LoraCase& c : kFp8LoraCases) {
        INFO(c.name);
        Cuda cuda;
        check_fp8_base<bf16>(cuda, c.shape, Recompute::norms, c.B, c.T);
    }
}
