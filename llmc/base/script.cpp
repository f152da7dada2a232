// See script.h.
#include "llmc/base/script.h"
#include <fcntl.h>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include "llmc/base/check.h"         // require
#include "llmc/platform/platform.h"  // program_path

namespace fs = std::filesystem;

namespace {
std::string in_shell(const std::string& word) {
    std::string quoted = "'";
    for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
    return quoted + "'";
}

fs::path home() { return fs::path(program_path()).parent_path(); }

// The folder of ./train_gpt and data/tokenize; of build/x/train_gpt and so on the checkout that they were built in.
fs::path repository() {
    std::error_code ignored;
    const fs::path root = home().filename() == "data" ? home().parent_path() : home();
    fs::path folder = root;
    for (int up = 0; up < 4 && folder.has_relative_path(); up++, folder = folder.parent_path())
        if (folder.filename() == "build" && fs::is_regular_file(folder.parent_path() / "train_gpt.cu", ignored))
            return folder.parent_path();
    return root;
}

// What is in it was installed with this program. Empty: the program is not in a PREFIX/bin.
fs::path installed_share() {
    std::error_code ignored;
    const fs::path share = home().parent_path() / "share/anvil";
    return home().filename() == "bin" && fs::is_directory(share, ignored) ? share : fs::path();
}
}  // namespace

std::string find_script(const std::string& name) {
    std::error_code ignored;
    for (const fs::path& folder : {repository(), installed_share()})
        if (!folder.empty() && fs::is_regular_file(folder / name, ignored)) return folder / name;
    return "";
}

std::vector<std::string> script_lines(const std::string& script, const std::vector<std::string>& arguments) {
    std::string command = "exec " + in_shell(script);
    for (const std::string& argument : arguments) command += " " + in_shell(argument);
    std::fflush(nullptr);
    FILE* const pipe = popen(command.c_str(), "r");
    require(pipe, "cannot start %s", script.c_str());
    fcntl(fileno(pipe), F_SETFD, FD_CLOEXEC);
    std::vector<std::string> lines;
    std::string line;
    for (int c; (c = fgetc(pipe)) != EOF;) {
        if (c != '\n') line += char(c);
        if (c == '\n') lines.push_back(std::move(line)), line.clear();
    }
    const int status = pclose(pipe);
    require(status == 0, "%s failed; what it said is above", script.c_str());
    return lines;
}

std::string with_installed_names(const std::string& text) {
    const fs::path share = installed_share();
    if (share.empty()) return text;
    const auto is_of_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || strchr("_./-", c); };
    std::string named;
    for (size_t at = 0, end; at < text.size(); at = end) {
        end = at + 1;
        while (is_of_name(text[at]) && end < text.size() && is_of_name(text[end])) end++;
        while (end > at + 1 && text[end - 1] == '.') end--;  // of a sentence
        std::string word = text.substr(at, end - at);
        std::error_code ignored;
        if (word == "data/tokenize")
            word = "anvil-tokenize";
        else if (word == "./train_gpt")
            word = "train_gpt";
        else if ((word.starts_with("data/") || word.starts_with("scripts/")) &&
                 fs::is_regular_file(share / word, ignored))
            word = share / word;
        named += word;
    }
    return named;
}
