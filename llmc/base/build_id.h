/*
Which source this program was built from, and with what: `git describe --always --dirty`, or "unknown" outside of a
checkout. The Makefile passes both to build_id.cpp alone, so a new commit recompiles one tiny object.
*/
#pragma once
#include "llmc/base/processor.h"  // CpuLevel

const char* build_id();
// The libraries it was linked to, NAME=PATH with blanks between: of cuBLASLt, cuDNN, NCCL and MPI those that it has.
const char* build_libraries();
// What a processor must have to run any of it.
CpuLevel build_level();
