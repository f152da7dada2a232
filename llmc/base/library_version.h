/*
Is the library that was loaded one that this program can use? It was compiled against a header, of a version that the
header names. Another major version has another interface. Within one, NVIDIA only adds: an older library does all that
Anvil asks of it, or refuses by itself; but it is not the one that was tested, so a message says so.
*/
#pragma once
#include <string>
#include "llmc/base/check.h"  // require, format

// "2.28.9" of 22809, as NCCL, cuBLAS 11 and cuDNN 9 and their successors count: MAJOR * 10000 + MINOR * 100 + PATCH.
inline std::string library_version_text(size_t version) {
    return format("%zu.%zu.%zu", version / 10000, version % 10000 / 100, version % 100);
}

// "cuDNN 9.28.1", or, where the library is of an older minor version than the header, "cuDNN 9.19.0 (built
// for 9.28.1)".
inline std::string library_text(const char* name, size_t built, size_t loaded) {
    const std::string text = std::string(name) + " " + library_version_text(loaded);
    return loaded / 100 < built / 100 ? text + " (built for " + library_version_text(built) + ")" : text;
}

// An Error of exit code 2 if `loaded` is of another major version than `built`. `package`: what pip calls the library.
inline void check_library_version(const char* name, size_t built, size_t loaded, const char* package) {
    const size_t major = built / 10000;
    require(loaded / 10000 == major,
            "%s %s is loaded, and this program was built for %s: pip install '%s>=%zu.%zu,<%zu', put that first in "
            "LD_LIBRARY_PATH, or build again with the library that is there",
            name, library_version_text(loaded).c_str(), library_version_text(built).c_str(), package, major,
            built % 10000 / 100, major + 1);
}
