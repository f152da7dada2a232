// The CPU, with weights in fp32.
#include "llmc/commands/backends.h"
#include "llmc/commands/device_backend.h"  // DeviceBackend

std::unique_ptr<Backend> cpu_backend_fp32(int num_threads) {
    return std::make_unique<DeviceBackend<Cpu, float>>(num_threads);
}
