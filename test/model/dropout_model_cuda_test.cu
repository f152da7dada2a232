// A model with dropout on the GPU, against PyTorch with the same masks.
#include "llmc/cuda/cuda_kernels.h"
#include "test/cuda_testing.h"  // ON_DEVICE
#include "test/model/dropout_cases.h"

TEST_CASE("on the GPU, loss and every gradient under dropout agree with PyTorch", "[dropout_model]" ON_DEVICE) {
    Cuda cuda;
    check_dropout_gradients(cuda, dropout_cases()[0]);
}
