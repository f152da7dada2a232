// See host_limits.h; https://docs.kernel.org/admin-guide/cgroup-v2.html, .../cgroup-v1/cgroups.html, .../memory.html,
// https://docs.kernel.org/scheduler/sched-bwc.html
#include "llmc/base/host_limits.h"
#include <sys/resource.h>
#include <unistd.h>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <optional>
#include "llmc/platform/platform.h"  // given_cores

namespace {

struct ControlGroup {
    std::string path;  // a folder; it may be missing
    bool is_v2;
};

// From the process's own group up to the top, for a controller ("cpu", "memory").
std::vector<ControlGroup> control_groups(const std::string& controller, const std::string& root) {
    std::vector<ControlGroup> groups;
    // "0::/a/b" in v2, "4:cpu,memory:/a/b" in v1. In a container the path may be the host's, of which only a prefix
    // exists here. So all parent groups are listed.
    std::ifstream file(root + "/proc/self/cgroup");
    for (std::string line; std::getline(file, line);) {
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
        const bool is_v2 = controllers == ",,";
        if (!is_v2 && controllers.find("," + controller + ",") == std::string::npos) continue;
        const std::string top = root + "/sys/fs/cgroup" + (is_v2 ? "" : "/" + controller);
        for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
            if (path == "/") path.clear();
            groups.push_back({top + path, is_v2});
            if (path.find('/') == std::string::npos) break;
        }
    }
    return groups;
}

}  // namespace

double cpu_quota(const std::string& root) {
    double least = 0;
    for (const ControlGroup& group : control_groups("cpu", root)) {
        double quota = 0, period = 0;  // of time, in microseconds
        if (group.is_v2) {
            std::ifstream(group.path + "/cpu.max") >> quota >> period;  // "150000 100000", "max 100000"
        } else {
            std::ifstream(group.path + "/cpu.cfs_quota_us") >> quota;  // -1: none
            std::ifstream(group.path + "/cpu.cfs_period_us") >> period;
        }
        if (quota > 0 && period > 0) least = least > 0 ? std::min(least, quota / period) : quota / period;
    }
    return least;
}

int usable_cores() {
    const int cores = std::max(1, int(given_cores().size()));
    const double quota = cpu_quota();
    return quota > 0 ? std::clamp(int(quota), 1, cores) : cores;
}

double share_of_cores(const std::vector<int>& mine, const std::vector<std::vector<int>>& of_ranks) {
    double share = 0;
    for (const int core : mine)
        share +=
            1 / double(std::max<int64_t>(1, std::count_if(of_ranks.begin(), of_ranks.end(), [&](const auto& cores) {
                                             return std::binary_search(cores.begin(), cores.end(), core);
                                         })));
    return share;
}

std::string core_list(const std::vector<int>& cores) {
    std::string list;
    for (size_t i = 0, last; i < cores.size(); i = last + 1) {
        for (last = i; last + 1 < cores.size() && cores[last + 1] == cores[last] + 1;) last++;
        list += (i ? "," : "") + std::to_string(cores[i]);
        if (last > i) list += "-" + std::to_string(cores[last]);
    }
    return list;
}

std::vector<int> cores_in(const std::string& list) {
    constexpr int kMostCores = 1024;  // of taskset's sets
    std::vector<int> cores;
    for (size_t begin = 0, end; begin < list.size(); begin = end + 1) {
        end = std::min(list.find(',', begin), list.size());
        int first = 0, last = 0;
        const int found = std::sscanf(list.substr(begin, end - begin).c_str(), "%d-%d", &first, &last);
        if (found < 2) last = first;
        if (found < 1 || first < 0 || last < first || last >= kMostCores) return {};
        for (int core = first; core <= last; core++) cores.push_back(core);
    }
    return cores;
}

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
    uint64_t total = meminfo_bytes(root + "/proc/meminfo", "MemTotal");
    if (total == 0 && root.empty()) total = uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
    uint64_t least = total > 0 ? total + swap : UINT64_MAX;
    for (const ControlGroup& group : control_groups("memory", root))
        if (const std::optional<uint64_t> limit = limit_of(group, swap)) least = std::min(least, *limit);
    return least == UINT64_MAX ? 0 : size_t(least);
}

size_t free_host_memory(const std::string& root) {
    const uint64_t free = meminfo_bytes(root + "/proc/meminfo", "MemAvailable");
    uint64_t least = free > 0 ? free : UINT64_MAX;
    for (const ControlGroup& group : control_groups("memory", root))
        if (const std::optional<uint64_t> limit = limit_of(group, 0)) least = std::min(least, *limit);
    return least == UINT64_MAX ? 0 : size_t(least);
}

size_t locked_memory_limit() {
    rlimit limit{};
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 0;
    return size_t(limit.rlim_cur);
}
