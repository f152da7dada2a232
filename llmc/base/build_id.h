/*
Which version and source this program was built from, and with what. The version is that of the file VERSION; the source
is `git describe --always --dirty`, a release's file BUILD_ID, or "unknown". The Makefile passes them to build_id.cpp
alone, so a new commit recompiles one tiny object.

And whether a loaded library fits: the program was compiled against a header of a certain version.
*/
#pragma once
#include <string>
#include "llmc/base/check.h"      // require, format
#include "llmc/base/processor.h"  // CpuLevel, ANVIL_CPU_LEVEL

#ifndef ANVIL_CUDA_MAJOR  // the Makefile defines it for all files of a CUDA build
#define ANVIL_CUDA_MAJOR 13
#endif

const char* anvil_version();  // 0.1.0
const char* build_id();       // 08490cb-dirty
// The libraries the program was linked with, as NAME=PATH separated by blanks: cuBLASLt, cuDNN, NCCL and MPI, as far as
// it uses them.
const char* build_libraries();
// The least level of a processor that can run the program.
CpuLevel build_level();
// pip's name of one of NVIDIA's libraries (cublas, cudnn, nccl) for the CUDA of this build, or for CUDA `major`.
inline std::string nvidia_package(const std::string& library, int major = ANVIL_CUDA_MAJOR) {
    return "nvidia-" + library + (library == "cublas" && major > 12 ? "" : "-cu" + std::to_string(major));
}

// 22809 as "2.28.9". NCCL, cuBLAS 11 and cuDNN 9 and later count so: MAJOR * 10000 + MINOR * 100 + PATCH.
inline std::string library_version_text(size_t version) {
    return format("%zu.%zu.%zu", version / 10000, version % 10000 / 100, version % 100);
}

// "cuDNN 9.28.1"; if the library's minor version is older than the header's, "cuDNN 9.19.0 (built for 9.28.1)".
inline std::string library_text(const char* name, size_t built, size_t loaded) {
    const std::string text = std::string(name) + " " + library_version_text(loaded);
    return loaded / 100 < built / 100 ? text + " (built for " + library_version_text(built) + ")" : text;
}

// Throws an Error (exit code 2) if the major versions of `loaded` and `built` differ, which have different interfaces.
// Within a major version NVIDIA only adds: an older library does what Anvil needs or returns an error, and library_text
// tells of it, because that version was not tested. `package`: the library's name in pip.
inline void check_library_version(const char* name, size_t built, size_t loaded, const std::string& package) {
    const size_t major = built / 10000;
    require(loaded / 10000 == major,
            "%s %s is loaded, and this program was built for %s: pip install '%s>=%zu.%zu,<%zu', put that first in "
            "LD_LIBRARY_PATH, or build again with the library that is there",
            name, library_version_text(loaded).c_str(), library_version_text(built).c_str(), package.c_str(), major,
            built % 10000 / 100, major + 1);
}
