// See script.h.
#include "llmc/base/script.h"
#include <cstdio>
#include <filesystem>
#include <memory>
#include "llmc/base/check.h"  // require

namespace fs = std::filesystem;

namespace {
std::string in_shell(const std::string& word) {
    std::string quoted = "'";
    for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
    return quoted + "'";
}
}  // namespace

std::string find_script(const std::string& name) {
    std::error_code ignored;
    const fs::path home = fs::read_symlink("/proc/self/exe", ignored).parent_path();
    for (const fs::path& script : {home / name, home / "data" / name, "data" / fs::path(name)})
        if (fs::is_regular_file(script, ignored)) return script;
    return "";
}

std::vector<std::string> script_lines(const std::string& script, const std::vector<std::string>& arguments) {
    std::string command = "exec " + in_shell(script);
    for (const std::string& argument : arguments) command += " " + in_shell(argument);
    std::fflush(nullptr);
    FILE* const pipe = popen(command.c_str(), "re");
    require(pipe, "cannot start %s", script.c_str());
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
