// Catch2's main, compiled once, and the helpers that need the operating system.
// The last line is `N passed, N failed` (test cases), which any log reader understands.
#define CATCH_CONFIG_RUNNER
#include <sys/wait.h>
#include <cstdlib>
#include <filesystem>
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

Finished run(const std::string& command) {
    const ScratchFolder scratch;
    const std::string redirected =
        "{ " + command + " ; } >" + scratch / "out" + " 2>" + scratch / "err" + " </dev/null";
    const int status = std::system(redirected.c_str());
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return {code, read_file(scratch / "out"), read_file(scratch / "err")};
}

namespace {
size_t passed, failed;
struct Counter : Catch::TestEventListenerBase {
    using TestEventListenerBase::TestEventListenerBase;
    void testRunEnded(const Catch::TestRunStats& stats) override {
        passed = stats.totals.testCases.passed;
        failed = stats.totals.testCases.failed + stats.totals.testCases.failedButOk;
    }
};
}  // namespace
CATCH_REGISTER_LISTENER(Counter)

int main(int argc, char** argv) {
    const int result = Catch::Session().run(argc, argv);
    std::printf("%zu passed, %zu failed\n", passed, failed);
    return passed + failed == 0 ? 2 : result;
}
