// The message of a failed CUDA call, and whether it is an error that the user can fix.
#include <sys/resource.h>
#include "test/cuda_testing.h"  // Cuda, ON_DEVICE
#ifdef ANVIL_EMULATED
#include "dev/emulator/emulator.h"  // options
#endif

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

#ifdef ANVIL_EMULATED
TEST_CASE("host memory that cannot be pinned is an error that says how much is free, and whether a limit is in the way",
          "[cuda_errors]" ON_DEVICE) {
    Cuda cuda;
    emulator::options().pinned_bytes = 1 << 20;
    const auto refused = [&] { return error_of([&] { cuda.allocate_pinned(2 << 20); }); };
    rlimit before{};
    REQUIRE(getrlimit(RLIMIT_MEMLOCK, &before) == 0);
    rlimit low = before;
    low.rlim_cur = std::min<rlim_t>(low.rlim_max, 64 << 10);
    REQUIRE(setrlimit(RLIMIT_MEMLOCK, &low) == 0);
    CHECK(refused().starts_with("2: out of pinned host memory: 2.0 MiB asked for, "));
    CHECK(contains(refused(), format(" MiB of the host's are free, and `ulimit -l` is %lu KiB: raise it",
                                     (unsigned long)(low.rlim_cur >> 10))));
    REQUIRE(setrlimit(RLIMIT_MEMLOCK, &before) == 0);
    if (before.rlim_cur == RLIM_INFINITY) CHECK(refused().ends_with(" MiB of the host's are free"));
    emulator::options().pinned_bytes = SIZE_MAX;
    cuda.release_pinned(cuda.allocate_pinned(2 << 20));
}
#endif
