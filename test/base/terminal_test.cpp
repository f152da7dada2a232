// Lines for a terminal: color adds only escape sequences and a bar, and nothing for a pipe or a file.
#include "llmc/base/terminal.h"
#include <fcntl.h>
#include <sys/ioctl.h>
#include <cstdlib>
#include <memory>
#include <optional>
#include <regex>
#include <utility>
#include "test/testing.h"

// The visible part of a text on a terminal.
static std::string visible(const std::string& text) {
    return std::regex_replace(text, std::regex("\033\\[[0-9;]*m"), "");
}

static const std::string kStep = "step  500/2000 | loss  1.9000 | norm   0.500 | 9.1k tok/s";

TEST_CASE("without color a line stays as it is", "[terminal]") { CHECK(colored_line({}, kStep, 0.25) == kStep); }

TEST_CASE("with color a step has a bar of what is done", "[terminal]") {
    const std::string rest = " | loss  1.9000 | norm   0.500 | 9.1k tok/s";
    for (const auto& [done, bar] : {std::pair{0.0, "------------"},
                                    {0.25, "===---------"},
                                    {1.0, "============"},
                                    {7.0, "============"},
                                    {-1.0, "------------"}})
        CHECK(visible(colored_line({.color = true}, kStep, done)) == "step  500/2000 " + std::string(bar) + rest);
    CHECK(visible(colored_line({.color = true, .utf8 = true}, kStep, 0.5)) == "step  500/2000 ━━━━━━━━━━━━" + rest);
    // The part that is not done begins dim.
    CHECK(colored_line({.color = true}, kStep, 0.25).find("===\033[2m---") != std::string::npos);
    CHECK(colored_line({.color = true}, kStep, 0.25).find("\033[1mloss  1.9000\033[0m") != std::string::npos);
}

TEST_CASE("a window too narrow for the bar has none", "[terminal]") {
    const int needed = int(kStep.size()) + 13;
    CHECK(visible(colored_line({.color = true, .columns = needed - 1}, kStep, 0.5)) == kStep);
    CHECK(visible(colored_line({.color = true, .columns = needed}, kStep, 0.5)).size() == size_t(needed));
}

TEST_CASE("lines wider than the terminal are broken at spaces", "[terminal]") {
    const std::string text = "model: 0.81M parameters in fp32; batch: 12 sequences\n\ndata: 1.00M tokens\n";
    CHECK(fitted_lines({}, text) == text);
    CHECK(fitted_lines({.columns = 80}, text) == text);
    CHECK(fitted_lines({.columns = 52}, text) == text);
    CHECK(fitted_lines({.columns = 51}, text) ==
          "model: 0.81M parameters in fp32; batch: 12\n    sequences\n\ndata: 1.00M tokens\n");
    for (int columns = 20; columns < 60; columns++) {
        const std::string fitted = fitted_lines({.columns = columns}, text);
        for (size_t begin = 0, end; (end = fitted.find('\n', begin)) != std::string::npos; begin = end + 1)
            CHECK(end - begin <= size_t(columns));
    }
    const std::string word(100, 'x');  // a path has no place to be broken
    CHECK(fitted_lines({.columns = 40}, word + "\n") == word + "\n");
    CHECK(fitted_lines({.columns = 40}, "no line break") == "no line break");
}

TEST_CASE("a validation has color and no bar", "[terminal]") {
    const std::string line = "val   500/2000 | loss  1.9000";
    CHECK(visible(colored_line({.color = true}, line, 0)) == line);
    CHECK(colored_line({.color = true}, line, 0) != line);
    CHECK(colored_line({.color = true}, "nothing of the kind", 0) == "nothing of the kind");
}

namespace {
// A variable of the environment for the length of a block.
class Variable {
public:
    Variable(const char* name, const char* value) : name_(name) {
        if (const char* old = std::getenv(name)) old_ = old;
        value ? setenv(name, value, 1) : unsetenv(name);
    }
    ~Variable() { old_ ? setenv(name_, old_->c_str(), 1) : unsetenv(name_); }

private:
    const char* name_;
    std::optional<std::string> old_;
};

struct Close {
    void operator()(FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<FILE, Close>;
}  // namespace

TEST_CASE("a terminal has color unless it is asked for none, a file never", "[terminal]") {
    const Variable term("TERM", "xterm-256color"), none("NO_COLOR", nullptr), all("LC_ALL", "en_US.UTF-8");
    const Variable no_rank("OMPI_COMM_WORLD_RANK", nullptr), no_other("PMIX_RANK", nullptr);
    const File master(fdopen(posix_openpt(O_RDWR | O_NOCTTY), "r+"));
    REQUIRE(master);
    REQUIRE(grantpt(fileno(master.get())) == 0);
    REQUIRE(unlockpt(fileno(master.get())) == 0);
    const File terminal(std::fopen(ptsname(fileno(master.get())), "r+"));
    REQUIRE(terminal);
    const winsize size = {.ws_row = 24, .ws_col = 123, .ws_xpixel = 0, .ws_ypixel = 0};
    REQUIRE(ioctl(fileno(terminal.get()), TIOCSWINSZ, &size) == 0);
    {
        const Terminal found = terminal_of(terminal.get());
        CHECK(found.color);
        CHECK(found.utf8);
        CHECK(found.columns == 123);
    }
    {
        const Variable plain("LC_ALL", "C");
        CHECK(!terminal_of(terminal.get()).utf8);
    }
    {
        const Variable dumb("TERM", "dumb");
        CHECK(!terminal_of(terminal.get()).color);
    }
    {
        const Variable mpirun("OMPI_COMM_WORLD_RANK", "0");
        CHECK(!terminal_of(terminal.get()).color);
    }
    {
        const Variable asked("NO_COLOR", "1");
        CHECK(!terminal_of(terminal.get()).color);
        CHECK(terminal_of(terminal.get()).columns == 123);
    }
    {
        const Variable empty("NO_COLOR", "");
        CHECK(terminal_of(terminal.get()).color);
    }
    const File file(std::tmpfile());
    REQUIRE(file);
    CHECK(!terminal_of(file.get()).color);
}
