/*
Which version and source this program was built from, and with what. The version is that of the file VERSION; the source
is `git describe --always --dirty`, a release's file BUILD_ID, or "unknown". The Makefile passes them to build_id.cpp
alone, so a new commit recompiles one tiny object.
*/
#pragma once
#include "llmc/base/processor.h"  // CpuLevel

const char* anvil_version();  // 0.1.0
const char* build_id();       // 08490cb-dirty
// The libraries it was linked with, as NAME=PATH separated by blanks: those of cuBLASLt, cuDNN, NCCL and MPI that it
// has.
const char* build_libraries();
// What a processor must have to run any of it.
CpuLevel build_level();
