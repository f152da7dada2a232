/*
What every fuzzer needs. A fuzzer feeds a reader of files with bytes that libFuzzer makes up, under AddressSanitizer and
UndefinedBehaviorSanitizer: whatever they are, the reader gives a value or an Error that blames the file. A crash, a
hang, another exception, an Error that blames us (`ensure`): all are findings. `make fuzz OP=safetensors SECONDS=600`.

  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {      test/fuzz/safetensors_fuzz.cpp
      return fuzz_file(data, size, [](const std::string& path) { SafetensorsReader file(path); });
  }

What it begins with lies in test/fuzz/corpus/safetensors/, a few small files made for the purpose.
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

// Runs `read`, whose Errors are what a broken file deserves.
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

// The same with the path of a file that holds the bytes. It is in memory: thousands of them are read each second.
template <class Read>
int fuzz_file(const uint8_t* data, size_t size, Read&& read) {
    const int file = memfd_create("fuzzed", 0);
    if (file < 0 || write(file, data, size) != ssize_t(size)) std::abort();
    const int result = fuzz([&] { read("/proc/self/fd/" + std::to_string(file)); });
    close(file);
    return result;
}
