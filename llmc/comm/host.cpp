// See host.h.
#include "llmc/comm/host.h"
#include <sys/resource.h>
#include <unistd.h>
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>
#include "llmc/base/hash.h"  // xxh3, hex64

std::string host_identity() {
    char name[256] = "";
    gethostname(name, sizeof(name) - 1);
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;  // stays empty where /proc is hidden
    const char* const given = std::getenv("ANVIL_HOST");
    std::string text = std::string(name) + "\n" + boot + "\n" + (given ? given : "");
    // Such links read "net:[4026531840]".
    for (const char* space : {"net", "pid"}) {
        std::error_code hidden;
        text += "\n" + std::filesystem::read_symlink(std::string("/proc/self/ns/") + space, hidden).string();
    }
    return hex64(xxh3(text.data(), text.size()));
}

size_t raise_file_limit() {
    rlimit files = {};
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return 0;
    const rlim_t before = std::exchange(files.rlim_cur, files.rlim_max);
    return setrlimit(RLIMIT_NOFILE, &files) == 0 ? files.rlim_cur : before;
}

HostGpus host_gpus(const std::string& root) {
    const auto count = [&](const std::string& folder, auto&& is_gpu) {
        int found = 0;
        std::error_code error;
        for (std::filesystem::directory_iterator entry(root + folder, error), end; !error && entry != end;
             entry.increment(error))
            found += is_gpu(entry->path().filename().string());
        return found;
    };
    // nvidia0, but not nvidiactl nor nvidia-uvm.
    const auto is_device = [](const std::string& name) {
        const std::string prefix = "nvidia";
        return name.starts_with(prefix) && name.size() > prefix.size() &&
               std::all_of(name.begin() + long(prefix.size()), name.end(),
                           [](unsigned char c) { return std::isdigit(c) != 0; });
    };
    HostGpus gpus;
    gpus.open = count("/dev", is_device);
    gpus.known = std::max(gpus.open, count("/proc/driver/nvidia/gpus", [](const std::string&) { return true; }));
    return gpus;
}
