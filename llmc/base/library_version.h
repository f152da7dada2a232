/*
Is the library that was loaded one that this program can use? It was compiled against a header, of a version that the
header names; a newer library of the same major version reads what an older header says, not the other way round.
*/
#pragma once
#include <string>
#include "llmc/base/check.h"  // require, format

// "2.28.9" of 22809, as NCCL, cuBLAS 11 and cuDNN 9 and their successors count: MAJOR * 10000 + MINOR * 100 + PATCH.
inline std::string library_version_text(size_t version) {
    return format("%zu.%zu.%zu", version / 10000, version % 10000 / 100, version % 100);
}

// An Error of exit code 2 if `loaded` is of another major version than `built`, or of an older minor one. Patches
// within a minor version change no interface. `package`: what pip calls the library.
inline void check_library_version(const char* name, size_t built, size_t loaded, const char* package) {
    const auto major = [](size_t version) { return version / 10000; };
    require(major(loaded) == major(built) && loaded / 100 >= built / 100,
            "%s %s is loaded, and this program was built for %s: pip install '%s>=%zu.%zu,<%zu', put that first in "
            "LD_LIBRARY_PATH, or build again with the library that is there",
            name, library_version_text(loaded).c_str(), library_version_text(built).c_str(), package, major(built),
            built % 10000 / 100, major(built) + 1);
}
