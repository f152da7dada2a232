// See host_memory.h. https://docs.kernel.org/admin-guide/cgroup-v2.html, .../cgroup-v1/memory.html
#include "llmc/base/host_memory.h"
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include "llmc/base/control_groups.h"  // control_groups

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
std::optional<uint64_t> limit_of(const ControlGroup& group, uint64_t swap) {
    const std::string memory = group.is_v2 ? "/memory.max" : "/memory.limit_in_bytes";
    const std::optional<uint64_t> bytes = number_in(group.path + memory);
    if (!bytes) return {};
    if (group.is_v2) return *bytes + std::min(swap, number_in(group.path + "/memory.swap.max").value_or(swap));
    const uint64_t both = number_in(group.path + "/memory.memsw.limit_in_bytes").value_or(UINT64_MAX);
    return std::min(both, *bytes + std::min(swap, UINT64_MAX - *bytes));
}

}  // namespace

size_t host_memory_bytes(const std::string& root) {
    const uint64_t swap = meminfo_bytes(root + "/proc/meminfo", "SwapTotal");
    const uint64_t total = meminfo_bytes(root + "/proc/meminfo", "MemTotal");
    uint64_t least = total > 0 ? total + swap : UINT64_MAX;
    for (const ControlGroup& group : control_groups("memory", root))
        if (const std::optional<uint64_t> limit = limit_of(group, swap)) least = std::min(least, *limit);
    return least == UINT64_MAX ? 0 : size_t(least);
}
