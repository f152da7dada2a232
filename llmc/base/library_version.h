/*
Checks the version of a loaded library. The program was compiled against a header of a certain version. Another major
version has another interface. Within a major version NVIDIA only adds to the interface: an older library does what
Anvil needs or returns an error. A message still tells of it, because that version was not tested.
*/
#pragma once
#include <string>
#include "llmc/base/check.h"  // require, format

// 22809 as "2.28.9". NCCL, cuBLAS 11 and cuDNN 9 and later count so: MAJOR * 10000 + MINOR * 100 + PATCH.
inline std::string library_version_text(size_t version) {
    return format("%zu.%zu.%zu", version / 10000, version % 10000 / 100, version % 100);
}

// "cuDNN 9.28.1"; if the library's minor version is older than the header's, "cuDNN 9.19.0 (built for 9.28.1)".
inline std::string library_text(const char* name, size_t built, size_t loaded) {
    const std::string text = std::string(name) + " " + library_version_text(loaded);
    return loaded / 100 < built / 100 ? text + " (built for " + library_version_text(built) + ")" : text;
}

// Throws an Error (exit code 2) if the major versions of `loaded` and `built` differ. `package`: the library's name in
// pip.
inline void check_library_version(const char* name, size_t built, size_t loaded, const std::string& package) {
    const size_t major = built / 10000;
    require(loaded / 10000 == major,
            "%s %s is loaded, and this program was built for %s: pip install '%s>=%zu.%zu,<%zu', put that first in "
            "LD_LIBRARY_PATH, or build again with the library that is there",
            name, library_version_text(loaded).c_str(), library_version_text(built).c_str(), package.c_str(), major,
            built % 10000 / 100, major + 1);
}
