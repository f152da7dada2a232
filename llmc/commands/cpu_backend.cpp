// The trainer on the CPU, in both types.
#include "llmc/commands/backend.h"
#include "llmc/commands/device_backend.h"  // DeviceBackend

std::unique_ptr<Backend> cpu_backend(const std::string& dtype, int num_threads) {
    if (dtype == "bf16") return std::make_unique<DeviceBackend<Cpu, bf16>>(num_threads);
    return std::make_unique<DeviceBackend<Cpu, float>>(num_threads);
}
