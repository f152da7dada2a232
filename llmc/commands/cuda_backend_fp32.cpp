// A GPU, with weights in fp32.
#include "llmc/commands/backends.h"
#include "llmc/commands/cuda_devices.h"    // before what is a template of the device
#include "llmc/commands/device_backend.h"  // DeviceBackend

std::unique_ptr<Backend> cuda_backend_fp32(int gpu, const RunFlags& config) {
    return std::make_unique<DeviceBackend<Cuda, float>>(gpu, device_options(config));
}
