/*
Which version and source this program was built from, and with what. The version is that of the file VERSION; the source
is `git describe --always --dirty`, a release's file BUILD_ID, or "unknown". The Makefile passes them to build_id.cpp
alone, so a new commit recompiles one tiny object.
*/
#pragma once
#include <string>
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
