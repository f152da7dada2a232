// main() of a test program, and the helpers that need the operating system. The last line of its output is
// `N passed, N failed`, which counts test cases.
#define CATCH_CONFIG_RUNNER
#include <sys/wait.h>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include "llmc/base/file.h"  // read_file
#include "test/testing.h"

ScratchFolder::ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "anvil-test-XXXXXX").string();
    if (!mkdtemp(name.data())) FAIL("cannot create a folder under " << std::filesystem::temp_directory_path());
    path = name;
}

ScratchFolder::~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
}

namespace {
// The emulator for programs of another processor (make/sanitize.mk), or "".
std::string run_with() {
    const char* command = std::getenv("ANVIL_RUN_WITH");
    return command ? std::string(command) + " " : "";
}
}  // namespace

std::string program(const std::string& name) {
    const char* folder = std::getenv("ANVIL_PROGRAMS");
    return run_with() + (folder ? folder : "./") + name;
}

std::string this_test(const std::string& name) {
    return run_with() + "'" + std::filesystem::read_symlink("/proc/self/exe").string() + "' '" + name + "'";
}

Finished run(const std::string& command) {
    const ScratchFolder scratch;
    const std::string redirected =
        "{ " + command + " ; } >" + scratch / "out" + " 2>" + scratch / "err" + " </dev/null";
    const int status = std::system(redirected.c_str());
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return {code, read_file(scratch / "out"), read_file(scratch / "err")};
}

namespace {
// Catch2 prints its summary after testRunEnded, so main() prints ours.
struct Outcome {
    bool complete = false;
    size_t passed = 0, failed = 0;
} outcome;

#if CATCH_VERSION_MAJOR >= 3
using Listener = Catch::EventListenerBase;
#else
using Listener = Catch::TestEventListenerBase;
#endif

struct Counter : Listener {
    using Listener::Listener;
    void testRunEnded(const Catch::TestRunStats& stats) override {
        const Catch::Counts& cases = stats.totals.testCases;
        outcome = {true, size_t(cases.passed), size_t(cases.failed + cases.failedButOk)};
    }
};
}  // namespace
CATCH_REGISTER_LISTENER(Counter)

int main(int argc, char** argv) {
    // `make test` runs several programs and sums the counts that they write to this file. The variable is removed so
    // that test programs which a test runs are not counted.
    const char* given = std::getenv("ANVIL_COUNTS");
    const std::string counts = given ? given : "";
    unsetenv("ANVIL_COUNTS");
    // Keeps tests and the programs they start away from the user's cache. Test programs among these use the same
    // folder: tests kill some of them, which could not remove their own.
    std::optional<ScratchFolder> cache;
    if (!std::getenv("ANVIL_TEST_CACHE")) {
        setenv("XDG_CACHE_HOME", cache.emplace().path.c_str(), 1);
        setenv("ANVIL_TEST_CACHE", "", 1);
    }
    const int result = Catch::Session().run(argc, argv);
    if (!outcome.complete) return result;  // --help, --list-tests, or a mistake on the command line
    std::printf("%zu passed, %zu failed\n", outcome.passed, outcome.failed);
    const bool none = outcome.passed + outcome.failed == 0;
    if (counts.empty()) return none ? 2 : result;
    if (FILE* file = std::fopen(counts.c_str(), "a")) {
        std::fprintf(file, "%zu %zu\n", outcome.passed, outcome.failed);
        std::fclose(file);
    }
    return none ? 0 : result;
}
