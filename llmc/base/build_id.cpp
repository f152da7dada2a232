// The commit this program was built from; the Makefile defines ANVIL_BUILD_ID for this file only.
#include "llmc/base/build_id.h"

#ifndef ANVIL_BUILD_ID
#define ANVIL_BUILD_ID "unknown"
#endif

const char* build_id() { return ANVIL_BUILD_ID; }
