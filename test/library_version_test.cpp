// Which libraries a program may be run with.
#include "llmc/base/library_version.h"
#include "test/testing.h"

TEST_CASE("a library may be newer than its header, of the same major version", "[library_version]") {
    const auto error = [](size_t built, size_t loaded) {
        return error_of([&] { check_library_version("cuDNN", built, loaded, "nvidia-cudnn-cu13"); });
    };
    CHECK(error(91900, 91900) == "");
    CHECK(error(91902, 91900) == "");  // a patch
    CHECK(error(91900, 92301) == "");
    CHECK(error(91900, 91002) ==
          "2: cuDNN 9.10.2 is loaded, and this program was built for 9.19.0: pip install "
          "'nvidia-cudnn-cu13>=9.19,<10', put that first in LD_LIBRARY_PATH, or build again with the library that is "
          "there");
    CHECK(error(91900, 100000) != "");
    CHECK(error(130000, 120900) != "");
    CHECK(library_version_text(130102) == "13.1.2");
}
