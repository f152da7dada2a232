// The commit this program was built from; the Makefile defines ANVIL_BUILD_ID and ANVIL_LIBRARIES for this file only.
#include "llmc/base/build_id.h"
#include "llmc/base/level.h"  // ANVIL_CPU_LEVEL

#ifndef ANVIL_BUILD_ID
#define ANVIL_BUILD_ID "unknown"
#endif
#ifndef ANVIL_LIBRARIES
#define ANVIL_LIBRARIES ""
#endif

const char* build_id() { return ANVIL_BUILD_ID; }
const char* build_libraries() { return ANVIL_LIBRARIES; }
CpuLevel build_level() { return CpuLevel::ANVIL_CPU_LEVEL; }
