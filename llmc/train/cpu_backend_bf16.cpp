// The CPU, with weights in bf16.
#include "llmc/train/backends.h"
#include "llmc/train/device_backend.h"  // DeviceBackend

std::unique_ptr<Backend> cpu_backend_bf16(int num_threads) {
    return std::make_unique<DeviceBackend<Cpu, bf16>>(num_threads);
}
