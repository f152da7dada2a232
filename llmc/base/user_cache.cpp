// See user_cache.h.
#include "llmc/base/user_cache.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

std::string user_cache_folder(const std::function<const char*(const char*)>& environment) {
    // The XDG Base Directory Specification: relative paths are ignored.
    for (const auto& [variable, below] : {std::pair{"XDG_CACHE_HOME", "/anvil"}, std::pair{"HOME", "/.cache/anvil"}})
        if (const char* given = environment(variable); given && given[0] == '/') return std::string(given) + below;
    return "";
}

std::string cached_text(const std::string& folder, const std::string& name) {
    if (folder.empty()) return "";
    constexpr size_t kMost = 1 << 16;  // larger files are not from this cache
    // O_NONBLOCK: a pipe in place of the file must not block the run.
    const int fd = open((folder + "/" + name).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return "";
    struct stat info = {};
    std::string text;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && size_t(info.st_size) <= kMost) {
        text.resize(size_t(info.st_size));
        if (read(fd, text.data(), text.size()) != ssize_t(text.size())) text.clear();
    }
    close(fd);
    return text;
}

void cache_text(const std::string& folder, const std::string& name, const std::string& text) noexcept try {
    if (folder.empty()) return;
    std::error_code ignored;
    std::filesystem::create_directories(folder, ignored);
    std::string path = folder + "/." + name + ".XXXXXX";
    const int fd = mkstemp(path.data());
    if (fd < 0) return;
    const bool written = write(fd, text.data(), text.size()) == ssize_t(text.size());
    if (close(fd) != 0 || !written || rename(path.c_str(), (folder + "/" + name).c_str()) != 0) unlink(path.c_str());
} catch (...) {
    // Out of memory for a path. The text will be recreated.
}
