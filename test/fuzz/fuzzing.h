/*
Helpers of the fuzzers. A fuzzer feeds a file reader with bytes from libFuzzer, under AddressSanitizer and
UndefinedBehaviorSanitizer. For any bytes, the reader must return a value or throw an Error that blames the file. A
crash, a hang, another exception, and an Error that blames Anvil (`ensure`) are findings. Run one with
`make fuzz OP=safetensors SECONDS=600`.

  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {      test/fuzz/safetensors_fuzz.cpp
      return fuzz_file(data, size, [](const std::string& path) { SafetensorsReader file(path); });
  }

The initial corpus is in test/fuzz/corpus/safetensors/.
*/
#pragma once
#include <sys/mman.h>
#include <unistd.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include "llmc/base/check.h"  // Error, kExitUsage

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// Runs `read`, which may throw an Error that blames the file.
template <class Read>
int fuzz(Read&& read) {
    try {
        read();
    } catch (const Error& error) {
        if (error.exit_code == kExitUsage) return 0;
        std::fprintf(stderr, "a file's fault that is said to be ours: %s\n", error.what());
        std::abort();
    }
    return 0;
}

// Runs `read` with the path of a file that holds the bytes. The file is in memory, because thousands are read per
// second.
template <class Read>
int fuzz_file(const uint8_t* data, size_t size, Read&& read) {
    const int file = memfd_create("fuzzed", 0);
    if (file < 0 || write(file, data, size) != ssize_t(size)) std::abort();
    const int result = fuzz([&] { read("/proc/self/fd/" + std::to_string(file)); });
    close(file);
    return result;
}
