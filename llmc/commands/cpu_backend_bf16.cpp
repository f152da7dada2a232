// The CPU, with weights in bf16.
#include "llmc/commands/backends.h"
#include "llmc/commands/device_backend.h"  // DeviceBackend

std::unique_ptr<Backend> cpu_backend_bf16(int num_threads) {
    return std::make_unique<DeviceBackend<Cpu, bf16>>(num_threads);
}
