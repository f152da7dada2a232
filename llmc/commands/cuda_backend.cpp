// The trainer on a GPU, in both types, and facts about GPUs that are needed before.
#include <string>
#include <vector>
#include "llmc/comm/host.h"  // gpu_links_text
#include "llmc/commands/backend.h"
#include "llmc/commands/cuda_devices.h"    // Cuda, describe; before what is a template of the device
#include "llmc/commands/device_backend.h"  // DeviceBackend
#include "llmc/commands/doctor.h"          // GpuFacts

bool has_cuda() { return true; }

std::string why_no_cuda(int gpu) { return why_no_gpu(gpu); }

int num_cuda_gpus() {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    cudaGetLastError();
    return 0;
}

std::string cuda_gpu_links() {
    std::vector<std::string> addresses;
    for (int gpu = 0; gpu < num_cuda_gpus(); gpu++) {
        char address[32] = "";
        if (cudaDeviceGetPCIBusId(address, sizeof address, gpu) != cudaSuccess) return cudaGetLastError(), "";
        addresses.push_back(address);
    }
    return gpu_links_text(addresses);
}

GpuFacts look_at_gpu(int gpu) {
    GpuFacts facts;
    facts.is_built = true;
    facts.why_none = why_no_gpu(gpu);
    if (!facts.why_none.empty()) return facts;
    Cuda cuda(gpu);
    facts.device = describe(cuda) + ", " + driver_text();
    facts.free_bytes = cuda.free_bytes(), facts.bytes = cuda.memory_bytes;
    facts.peak = peak_of<bf16>(cuda, "auto");
    const MatmulCall sums = weight_gradient_call(DType::bf16, 32768, 768, 3072, true, Epilogue::row_sums);
    facts.bias_gradients = cuda.cublaslt().supports(cuda, sums) ? "an epilogue of cuBLASLt" : "a pass of their own";
    return facts;
}

std::unique_ptr<Backend> cuda_backend(int gpu, const RunFlags& flags) {
    if (flags.dtype == "fp32") return std::make_unique<DeviceBackend<Cuda, float>>(gpu, device_options(flags));
    return std::make_unique<DeviceBackend<Cuda, bf16>>(gpu, device_options(flags));
}
