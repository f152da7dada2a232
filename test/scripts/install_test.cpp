// --version, and the files of `make install`: programs that run, a man page, and a completion with every flag.
#include <filesystem>
#include "llmc/base/file.h"  // read_file
#include "test/testing.h"

namespace {

namespace fs = std::filesystem;

std::string folder_of_programs() {
    const std::string path = program("train_gpt");
    return path.substr(0, path.rfind('/') + 1);
}

std::string version_in_file() {
    const std::string text = read_file("VERSION");
    return text.substr(0, text.find('\n'));
}

// An installation into a DESTDIR.
struct Installed {
    ScratchFolder scratch;

    explicit Installed(const std::string& prefix = "/usr") {
        const Finished finished = run("PREFIX=" + prefix + " DESTDIR='" + (scratch / "root") + "' scripts/install.sh " +
                                      folder_of_programs());
        INFO(finished.out << finished.err);
        REQUIRE(finished.exit_code == 0);
    }
    std::string path(const std::string& name) const { return scratch / ("root/usr/" + name); }
    // What bash would offer after these words, of which the last is not complete.
    std::string completed(const std::string& words, int index) const {
        const Finished finished =
            run("bash -c 'source \"$0\"; COMP_WORDS=(" + words + "); COMP_CWORD=" + std::to_string(index) +
                "; _train_gpt; echo \"${COMPREPLY[*]}\"' " + path("share/bash-completion/completions/train_gpt"));
        CHECK(finished.err.empty());
        return finished.out.substr(0, finished.out.find('\n'));
    }
};

}  // namespace

TEST_CASE("--version: the version of the file VERSION, and the build", "[install]") {
    for (const char* name : {"train_gpt", "data/tokenize"}) {
        const Finished finished = run(program(name) + " --version");
        CHECK(finished.exit_code == 0);
        CHECK(finished.out.starts_with(std::string(name) + " " + version_in_file() + " (build "));
        CHECK(finished.out.ends_with(")\n"));
        CHECK(finished.err.empty());
    }
    CHECK(contains(run(program("train_gpt") + " --help").out, "--version"));
    CHECK(run(program("train_gpt") + " --version --steps 5").exit_code == 2);
}

TEST_CASE("the version is the same everywhere", "[install]") {
    const std::string version = version_in_file();
    CHECK(contains(read_file("CHANGELOG.md"), "\n## " + version));
    CHECK(contains(read_file("CITATION.cff"), "\nversion: " + version + "\n"));
}

TEST_CASE("an installation has programs that run, and nothing outside of DESTDIR", "[install]") {
    const Installed here;
    CHECK(contains(run(here.path("bin/train_gpt") + " --version").out, version_in_file()));
    CHECK(contains(run(here.path("bin/anvil-tokenize") + " --version").out, version_in_file()));
    CHECK(contains(run(here.path("bin/anvil-report") + " --help").out, "log.jsonl"));
    // The report finds the flags' defaults, which it needs to show what a run changed.
    CHECK(fs::exists(here.path("bin/../share/anvil/doc/flags.md")));
    CHECK(fs::is_symlink(here.path("bin/anvil-report")));
    CHECK(read_file(here.path("share/doc/anvil/LICENSE")) == read_file("LICENSE"));

    const std::string command = "PREFIX=/usr DESTDIR='" + (here.scratch / "root") + "' scripts/install.sh --uninstall";
    CHECK(run(command).exit_code == 0);
    for (const auto& entry : fs::recursive_directory_iterator(here.scratch / "root")) CHECK(entry.is_directory());
}

TEST_CASE("install: what is missing is said", "[install]") {
    const ScratchFolder empty;
    const Finished none = run("DESTDIR='" + empty.path + "' scripts/install.sh '" + empty.path + "'");
    CHECK(none.exit_code == 2);
    CHECK(contains(none.err, "/train_gpt is not there: run make first"));
    const Finished denied = run("PREFIX=/proc/none scripts/install.sh " + folder_of_programs());
    CHECK(denied.exit_code == 2);
    CHECK(contains(denied.err, "error: cannot write to /proc/none: "));
}

TEST_CASE("the man page has every flag and every exit code", "[install]") {
    const Installed here;
    const std::string page = read_file(here.path("share/man/man1/train_gpt.1"));
    std::string plain;  // without the backslashes that troff wants before dashes
    for (const char c : page)
        if (c != '\\') plain += c;
    const std::string flags = read_file("doc/flags.md");
    int found = 0;
    for (size_t at = 0; (at = flags.find("\n| `--", at)) != std::string::npos; at++) {
        std::string flag = flags.substr(at + 6);
        if (flag.starts_with("[no-]")) flag.erase(0, 5);
        flag.erase(flag.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-"));
        INFO(flag);
        CHECK(contains(plain, "fB--" + flag + "fR"));
        found++;
    }
    CHECK(found > 100);
    for (const char* code : {"0", "1", "2", "3", "4", "5"})
        CHECK(contains(page, std::string("\n\\fB") + code + "\\fR\n"));
    CHECK(contains(page, "\"Anvil " + version_in_file() + "\""));
    for (size_t at = 0; (at = page.find("\n.", at)) != std::string::npos; at++) {
        const std::string line = page.substr(at + 1, page.find('\n', at + 1) - at - 1);
        INFO(line);
        const bool known = line.starts_with(".SH ") || line.starts_with(".SS ") || line == ".TP" || line == ".PP" ||
                           line == ".nf" || line == ".fi";
        CHECK(known);
    }
}

TEST_CASE("completion offers commands, a command's flags, and a flag's values", "[install]") {
    const Installed here;
    CHECK(here.completed("train_gpt ex", 1) == "export");
    CHECK(here.completed("train_gpt plan --gp", 2) == "--gpu");
    CHECK(here.completed("train_gpt --gp", 1).empty());  // plan's alone
    CHECK(here.completed("train_gpt --shuf", 1) == "--shuffle");
    CHECK(here.completed("train_gpt --no-shuf", 1) == "--no-shuffle");
    CHECK(here.completed("train_gpt plan --learning-r", 2) == "--learning-rate");  // of train's, which it has all
    CHECK(here.completed("train_gpt export --learning-r", 2).empty());             // of which it has some
    CHECK(here.completed("train_gpt export --init-f", 2) == "--init-from");
    CHECK(here.completed("train_gpt export --format \"\"", 3) == "hf llmc gguf");
    CHECK(here.completed("train_gpt --model gpt2-1", 2) == "gpt2-124M gpt2-1558M");
    CHECK(here.completed("train_gpt --config VERSI", 2) == "VERSION");
}
