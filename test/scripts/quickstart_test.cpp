// What scripts/quickstart.sh builds for one level of the processor is not compiled again by `make`, which builds all.
#include <sstream>
#include "test/testing.h"  // run

// Objects depend on these two files: on the compiler's flags, and on which sources are compiled together.
TEST_CASE("make after the quickstart compiles only the kernels of the other levels", "[quickstart][plain]") {
    const auto stamps_of = [](const std::string& arch) {
        const Finished listed = run("env -u MAKEFLAGS -u MFLAGS make -n JOIN=1 CCACHE= VARIANT=fresh CPU_ARCH=" + arch);
        INFO(listed.err);
        REQUIRE(listed.exit_code == 0);
        std::string stamps;
        std::istringstream lines(listed.out);
        for (std::string line; std::getline(lines, line);)
            if (contains(line, "cmp -s - build/fresh/flags") || contains(line, "cmp -s - build/fresh/neighbors"))
                stamps += line + "\n";
        return stamps;
    };
    const std::string here = stamps_of("here");
    CHECK(contains(here, "file.cpp.o"));  // of the sources that are compiled together
    CHECK(here == stamps_of("all"));
}
