// What this program was built from; the Makefile defines ANVIL_VERSION, ANVIL_BUILD_ID and ANVIL_LIBRARIES for this
// file.
#include "llmc/base/build_id.h"

#ifndef ANVIL_VERSION
#define ANVIL_VERSION "unknown"
#endif
#ifndef ANVIL_BUILD_ID
#define ANVIL_BUILD_ID "unknown"
#endif
#ifndef ANVIL_LIBRARIES
#define ANVIL_LIBRARIES ""
#endif

const char* anvil_version() { return ANVIL_VERSION; }
const char* build_id() { return ANVIL_BUILD_ID; }
const char* build_libraries() { return ANVIL_LIBRARIES; }
CpuLevel build_level() { return CpuLevel::ANVIL_CPU_LEVEL; }
