// See host_cpus.h. https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/scheduler/sched-bwc.html
#include "llmc/base/host_cpus.h"
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include "llmc/base/control_groups.h"  // control_groups

namespace {

cpu_set_t noted;  // empty: not known

// The dynamic linker calls this before the constructors of libraries, of which libgomp's binds the main thread. Neither
// the C library nor a sanitizer has started, so this is one system call.
#if __has_attribute(disable_sanitizer_instrumentation)  // clang: no_sanitize("memory") still calls for its shadow
__attribute__((disable_sanitizer_instrumentation))
#else
__attribute__((no_sanitize("address", "thread", "undefined")))
#endif
void note_cores(int, char**, char**) {
    syscall(SYS_sched_getaffinity, 0, sizeof noted, &noted);
}
__attribute__((section(".preinit_array"), used)) void (*const before_libraries)(int, char**, char**) = note_cores;

cpu_set_t core_set() {
    cpu_set_t now;
    if (CPU_COUNT(&noted) > 0) return noted;
    if (sched_getaffinity(0, sizeof now, &now) != 0) CPU_ZERO(&now);  // more than 1024 cores
    return now;
}

}  // namespace

std::vector<int> given_cores() {
    const cpu_set_t set = core_set();
    std::vector<int> cores;
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &set)) cores.push_back(core);
    return cores;
}

void use_given_cores() {
    if (CPU_COUNT(&noted) > 0) sched_setaffinity(0, sizeof noted, &noted);
}

void let_threads_use_given_cores() {
    pthread_attr_t attributes;
    cpu_set_t now;
    if (CPU_COUNT(&noted) == 0 || sched_getaffinity(0, sizeof now, &now) != 0 || CPU_EQUAL(&now, &noted)) return;
    if (pthread_getattr_default_np(&attributes) != 0) return;
    if (pthread_attr_setaffinity_np(&attributes, sizeof noted, &noted) == 0) pthread_setattr_default_np(&attributes);
    pthread_attr_destroy(&attributes);
}

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
    std::vector<int> cores;
    for (size_t begin = 0, end; begin < list.size(); begin = end + 1) {
        end = std::min(list.find(',', begin), list.size());
        int first = 0, last = 0;
        const int found = std::sscanf(list.substr(begin, end - begin).c_str(), "%d-%d", &first, &last);
        if (found < 2) last = first;
        if (found < 1 || first < 0 || last < first || last >= CPU_SETSIZE) return {};
        for (int core = first; core <= last; core++) cores.push_back(core);
    }
    return cores;
}
