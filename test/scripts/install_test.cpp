// --version, and the files of `make install`: programs that run, a man page, and a completion with every flag.
#include <filesystem>
#include <fstream>
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

TEST_CASE("an installed program runs and names its own scripts, and nothing of the working directory", "[install]") {
    const Installed here;
    const std::string stranger = here.scratch / "stranger", alone = here.scratch / "alone";
    const auto trap = [&](const std::string& name, const std::string& code) {
        fs::create_directories(fs::path(stranger + "/" + name).parent_path());
        std::ofstream(stranger + "/" + name) << code;
        fs::permissions(stranger + "/" + name, fs::perms::owner_all);
    };
    for (const char* folder : {"", "data/", "scripts/"}) {
        for (const char* name : {"model.sh", "gpt2_tokenizer.sh", "tinyshakespeare.sh"})
            trap(std::string(folder) + name, "#!/bin/sh\ntouch TRAPPED\necho /nowhere\n");
        for (const char* name : {"chat_template.py", "log_to.py", "json.py", "zipfile.py", "wandb.py", "jinja2.py"})
            trap(std::string(folder) + name, "#!/usr/bin/env python3\nopen('TRAPPED', 'w')\n");
    }
    fs::create_directories(alone);
    for (const char* name : {"train_gpt", "anvil-tokenize"}) fs::copy(here.path(std::string("bin/") + name), alone);
    fs::create_directories(here.scratch / "mirror");
    std::ofstream(here.scratch / "mirror/eval_bundle.zip") << "no archive";
    fs::create_directories(here.scratch / "modules/wandb");
    std::ofstream(here.scratch / "modules/wandb/__init__.py") << "raise ImportError('of the test')\n";
    const auto there = [&](const std::string& program, const std::string& flags) {
        const Finished ended = run(
            "cd " + stranger + " && env -u PYTHONSAFEPATH PYTHONDONTWRITEBYTECODE=1 HOME=" + here.scratch.path +
            " ANVIL_MIRROR=" + here.scratch / "mirror PYTHONPATH=" + here.scratch / "modules " + program + " " + flags);
        INFO(program << " " << flags << "\n" << ended.out << ended.err);
        CHECK_FALSE(fs::exists(stranger + "/TRAPPED"));
        return ended;
    };
    const std::string bin = here.path("bin/"), share = here.path("share/anvil/");
    // Models and tokenizers by name, chat templates, CORE's archive.
    const std::string model = " --init-from gpt2 --steps 1", words = " --stories 3000 --out ";
    CHECK(contains(there(bin + "train_gpt", model).err, "mirror/gpt2/config.json: no such file; put the model there"));
    CHECK(contains(there(alone + "/train_gpt", model).err, "gpt2: no such file or folder"));
    CHECK(contains(there(bin + "anvil-tokenize", "--tokenizer gpt2" + words + "t").err,
                   "mirror/vocab.bpe: no such file"));
    CHECK(contains(there(alone + "/anvil-tokenize", "--tokenizer gpt2" + words + "t").err,
                   "error: data/gpt2_tokenizer.sh is missing"));
    REQUIRE(there(bin + "anvil-tokenize", "--tokenizer char" + words + "own").exit_code == 0);
    std::ofstream(stranger + "/own/chat_template.jinja") << "{{ messages }}";
    std::ofstream(stranger + "/chats.jsonl") << R"({"messages": [{"role": "user", "content": "a"}]})"
                                                "\n";
    const std::string chats = "chats.jsonl --format chat --val-fraction 0 --tokenizer own/tokenizer.json --out c";
    CHECK(contains(there(bin + "anvil-tokenize", chats).err, "error: the chat template of own/tokenizer.json: "));
    CHECK(contains(there(alone + "/anvil-tokenize", chats).err, "data/chat_template.py is missing"));
    CHECK(contains(there(share + "data/core.sh", "").err, "eval_bundle.zip is not CORE's questions"));
    // A run, whose log is sent by a script.
    const std::string tiny =
        " --train-data 'own/train_*.bin' --num-layers 1 --num-heads 1 --channels 32 --seq-len 16 "
        "--batch-size 2 --steps 2 --sample-tokens 0 --log-to wandb --threads 1 --out-dir ";
    CHECK(contains(there(bin + "train_gpt", tiny + "a").err, "warning: wandb is not there (of the test)"));
    CHECK(contains(there(alone + "/train_gpt", tiny + "b").err,
                   "scripts/log_to.py is neither beside this program nor installed with it"));
    // What messages name is there, under that name.
    const std::string no_data = there(bin + "train_gpt", "--steps 1").err;
    CHECK(contains(no_data, "make them with anvil-tokenize or " + share + "data/tinyshakespeare.sh"));
    CHECK(contains(there(alone + "/train_gpt", "--steps 1").err,
                   "make them with data/tokenize or data/tinyshakespeare.sh"));
    CHECK(contains(there(share + "data/tinyshakespeare.sh", "").err, "mirror/tinyshakespeare.txt: no such file"));
    const std::string help = there(bin + "train_gpt", "--help-all").out;
    CHECK(contains(help, share + "scripts/make_hellaswag.py"));
    CHECK(fs::exists(share + "scripts/make_hellaswag.py"));
    CHECK_FALSE(contains(help, "data/tokenize"));
    CHECK(contains(there(bin + "anvil-tokenize", "--help").out, "  anvil-tokenize notes.txt --out data/notes\n"));
    const std::string page = read_file(here.path("share/man/man1/train_gpt.1"));
    CHECK(contains(page, "a name that /usr/share/anvil/data/model.sh knows"));
    CHECK_FALSE(contains(page, "data/tokenize"));
}

TEST_CASE("the man pages of anvil-tokenize and anvil-report are what --help says", "[install]") {
    const Installed here;
    for (const auto& [name, about, flag] :
         {std::tuple{"anvil-tokenize", "turns text into token shards to train on",
                     "usage: anvil\\-tokenize INPUT... \\-\\-out DIR"},
          {"anvil-report", "draws runs: RUN/log.jsonl to one HTML page", "\\-\\-usd\\-per\\-hour X"}}) {
        const std::string page = read_file(here.path("share/man/man1/") + name + ".1");
        INFO(page);
        CHECK(contains(page, std::string(" \\- ") + about + "\n"));
        CHECK(contains(page, flag));
        CHECK_FALSE(contains(page, "data/tokenize"));
        CHECK_FALSE(contains(page, "report.py"));
    }
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
    CHECK(here.completed("train_gpt export --format \"\"", 3) == "hf llmc gguf peft");
    CHECK(here.completed("train_gpt --model gpt2-1", 2) == "gpt2-124M gpt2-1558M");
    CHECK(here.completed("train_gpt --config VERSI", 2) == "VERSION");
}
