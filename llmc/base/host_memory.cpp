// See host_memory.h. https://docs.kernel.org/admin-guide/cgroup-v2.html, .../cgroup-v1/memory.html
#include "llmc/base/host_memory.h"
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>

namespace {

// A file that holds one number; nothing if it does not, as with "max".
std::optional<uint64_t> number_in(const std::string& path) {
    uint64_t value = 0;
    std::ifstream file(path);
    return file >> value ? std::optional(value) : std::nullopt;
}

// "MemTotal:       16384 kB"
uint64_t meminfo_bytes(const std::string& path, const std::string& name) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);)
        if (line.starts_with(name + ":")) return std::stoull(line.substr(name.size() + 1)) * 1024;
    return 0;
}

// The limit of one group, if it has one. `swap`: the host's swap in bytes.
std::optional<uint64_t> limit_of(const std::string& group, bool is_v2, uint64_t swap) {
    const std::string memory = is_v2 ? "/memory.max" : "/memory.limit_in_bytes";
    const std::optional<uint64_t> bytes = number_in(group + memory);
    if (!bytes) return {};
    if (is_v2) return *bytes + std::min(swap, number_in(group + "/memory.swap.max").value_or(swap));
    const uint64_t both = number_in(group + "/memory.memsw.limit_in_bytes").value_or(UINT64_MAX);
    return std::min(both, *bytes + std::min(swap, UINT64_MAX - *bytes));
}

}  // namespace

size_t host_memory_bytes(const std::string& root) {
    const uint64_t swap = meminfo_bytes(root + "/proc/meminfo", "SwapTotal");
    const uint64_t total = meminfo_bytes(root + "/proc/meminfo", "MemTotal");
    uint64_t least = total > 0 ? total + swap : UINT64_MAX;
    // "0::/a/b" in v2, "4:cpu,memory:/a/b" in v1. In a container the path may be the host's, of which only a prefix
    // exists here. So all parent groups are tried, and missing ones are skipped.
    std::ifstream groups(root + "/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
        const bool is_v2 = controllers == ",,";
        if (!is_v2 && controllers.find(",memory,") == std::string::npos) continue;
        const std::string top = root + (is_v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory");
        for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
            if (path == "/") path.clear();
            if (const std::optional<uint64_t> limit = limit_of(top + path, is_v2, swap))
                least = std::min(least, *limit);
            if (path.find('/') == std::string::npos) break;
        }
    }
    return least == UINT64_MAX ? 0 : size_t(least);
}
