// What scripts/quickstart.sh builds for one level of the processor is not compiled again by `make`, which builds all;
// and what it says at the end, whatever the locale.
#include <filesystem>
#include <sstream>
#include "test/comma_locale.h"
#include "test/testing.h"  // run

// Objects depend on these files: on the compiler's flags, and on the sources that are compiled together.
TEST_CASE("make after the quickstart compiles only the kernels of the other levels", "[quickstart][plain]") {
    const auto stamps_of = [](const std::string& arch) {
        const Finished listed = run("env -u MAKEFLAGS -u MFLAGS make -n JOIN=1 CCACHE= VARIANT=fresh CPU_ARCH=" + arch);
        INFO(listed.err);
        REQUIRE(listed.exit_code == 0);
        std::string stamps;
        std::istringstream lines(listed.out);
        for (std::string line; std::getline(lines, line);)
            if (contains(line, "> build/fresh/flags.") || contains(line, "> build/fresh/llmc/joined/"))
                stamps += line + "\n";
        return stamps;
    };
    const std::string here = stamps_of("here");
    CHECK(contains(here, "llmc/base/file.cpp"));  // of the sources that are compiled together
    CHECK(here == stamps_of("all"));
}

TEST_CASE("the quickstart's numbers do not depend on the locale, and it says how to go on", "[quickstart]") {
    namespace fs = std::filesystem;
    const ScratchFolder tree;
    for (const char* folder : {"data", "scripts"}) fs::create_directory(tree / folder);
    fs::copy("scripts/quickstart.sh", tree / "scripts/quickstart.sh");
    const auto script = [&](const std::string& name, const std::string& text) {
        std::ofstream(tree / name) << text;
        fs::permissions(tree / name, fs::perms::owner_all);
    };
    script("data/tinyshakespeare.sh", "#!/bin/sh\n");
    script("scripts/report.py", "print('report')\n");
    // Tells its flags, and ends at step 56.
    script("train_gpt",
           "#!/bin/sh\necho \"$*\"; echo \"LC_ALL=$LC_ALL\"; mkdir -p run/quickstart/step_00000056\n"
           "echo '{\"type\":\"end\",\"step\":56,\"reason\":\"'\"$REASON\"'\"}' >run/quickstart/log.jsonl\n");
    const auto said = [&](const std::string& reason, const std::string& flags = "") {
        const Finished ended =
            run(comma_locale() + "REASON='" + reason + "' NO_BUILD=1 " + tree / "scripts/quickstart.sh" + flags);
        INFO(ended.out << ended.err);
        CHECK(ended.exit_code == 0);
        CHECK(ended.err.empty());
        return ended.out;
    };
    const std::string finished = said("finished", " --minutes 0.0333");
    CHECK(contains(finished, " --time-budget 1.998 "));
    CHECK(contains(finished, "\nNext: ./train_gpt --help"));
    CHECK_FALSE(contains(finished, "not finished"));
    if (!comma_locale().empty())
        CHECK(contains(finished, "\nLC_ALL=xx_XX\n"));  // the program draws with the user's characters
    CHECK(said("time budget", " --minutes 0.25")
              .ends_with("not finished: step 56 of 2000 after 0.25 minutes of training. "
                         "To go on: scripts/quickstart.sh --minutes 0.5\n"));
    CHECK(said("SIGINT").ends_with("not finished: step 56 of 2000, stopped by SIGINT. To go on, run this again.\n"));
}
