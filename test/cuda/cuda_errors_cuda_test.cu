// The message of a failed CUDA call, and whether it is an error that the user can fix.
#include "test/cuda_testing.h"  // Cuda, ON_DEVICE

TEST_CASE("kernels that are not for this GPU are an error that names it and how to build them",
          "[cuda_errors]" ON_DEVICE) {
    Cuda cuda;
    const std::string chip = std::to_string(cuda.compute_capability);
    const std::string dotted = format("%d.%d", cuda.compute_capability / 10, cuda.compute_capability % 10);
    for (const cudaError_t status :
         {cudaErrorNoKernelImageForDevice, cudaErrorUnsupportedPtxVersion, cudaErrorJitCompilerNotFound}) {
        const std::string error = error_of([&] { cuda_check(status, "gelu_forward: launching %d blocks", 3); });
        INFO(error);
        CHECK(error.starts_with("2: gelu_forward: launching 3 blocks: "));
        CHECK(contains(error, "GPU 0 has compute capability " + dotted + ", and "));
        CHECK(contains(error, "`make GPU_ARCHS=" + chip + "`"));
        CHECK(contains(error, "too new for the driver for CUDA ") == (status == cudaErrorUnsupportedPtxVersion));
    }
}

TEST_CASE("errors of CUDA calls end with the code of who can fix them", "[cuda_errors]" ON_DEVICE) {
    Cuda cuda;
    for (const cudaError_t status :
         {cudaErrorMemoryAllocation, cudaErrorNoDevice, cudaErrorInsufficientDriver, cudaErrorInvalidDevice})
        CHECK(error_of([&] { cuda_check(status, "copying"); }).starts_with("2: copying: "));
    for (const cudaError_t status : {cudaErrorInvalidValue, cudaErrorLaunchFailure}) {
        const std::string error = error_of([&] { cuda_check(status, "copying"); });
        CHECK(error.starts_with("1: copying: "));
        CHECK(!contains(error, "GPU_ARCHS"));
    }
}
