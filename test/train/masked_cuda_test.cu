// Masked targets on the device: steps against PyTorch.
#include "llmc/cuda/cuda_kernels.h"
#include "test/cuda_testing.h"        // ON_DEVICE
#include "test/models.h"              // Gpt
#include "test/train/masked_steps.h"  // check_masked_steps

TEST_CASE("twenty steps on the device over targets of which some count agree with PyTorch", "[masked]" ON_DEVICE) {
    Cuda cuda;
    check_masked_steps(cuda, kWatched ? 2 : 20);
}
