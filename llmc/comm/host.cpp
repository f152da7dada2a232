// See host.h.
#include "llmc/comm/host.h"
#include <dlfcn.h>
#include <glob.h>
#include <sys/resource.h>
#include <unistd.h>
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include "llmc/base/check.h"         // format
#include "llmc/base/hash.h"          // xxh3, hex64
#include "llmc/platform/platform.h"  // kernel_identity

std::string host_identity() {
    char name[256] = "";
    gethostname(name, sizeof(name) - 1);
    const char* const given = std::getenv("ANVIL_HOST");
    const std::string text = std::string(name) + "\n" + (given ? given : "") + "\n" + kernel_identity();
    return hex64(xxh3(text.data(), text.size()));
}

size_t raise_file_limit() {
    rlimit files = {};
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return 0;
    const rlim_t before = files.rlim_cur;
    for (const rlim_t most : {files.rlim_max, std::min<rlim_t>(files.rlim_max, 10'240)}) {  // Darwin takes no more
        files.rlim_cur = std::max(before, most);
        if (setrlimit(RLIMIT_NOFILE, &files) == 0) return files.rlim_cur;
    }
    return before;
}

HostGpus host_gpus(const std::string& root) {
    const auto count = [&](const std::string& folder, auto&& is_gpu) {
        int found = 0;
        std::error_code error;
        for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
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
    gpus.open = count(root + "/dev", is_device);
    gpus.known = std::max(gpus.open, count(root + "/proc/driver/nvidia/gpus", [](const std::string&) { return true; }));
    return gpus;
}

namespace {

std::string line_in(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}
std::vector<std::filesystem::path> folders(const std::string& pattern) {
    glob_t found = {};
    glob(pattern.c_str(), 0, nullptr, &found);
    const std::vector<std::filesystem::path> all(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    globfree(&found);
    return all;
}

}  // namespace

std::string network_text(const std::string& root) {
    std::string all;
    const auto add = [&](const std::string& text) { all += (all.empty() ? "" : ", ") + text; };
    for (const auto& card : folders(root + "/sys/class/net/*")) {
        if (line_in(card / "operstate") != "up" || !std::filesystem::exists(card / "device")) continue;
        const double mbit = std::atof(line_in(card / "speed").c_str());  // -1 or unreadable: not known
        add(card.filename().string() + (mbit > 0 ? format(" (%g Gbit/s)", mbit / 1000) : ""));
    }
    for (const auto& port : folders(root + "/sys/class/infiniband/*/ports/*"))
        if (line_in(port / "state").ends_with("ACTIVE"))  // "4: ACTIVE"
            add(port.parent_path().parent_path().filename().string() + " (" + line_in(port / "link_layer") + ", " +
                line_in(port / "rate") + ")");
    return all;
}

std::string gpu_links_text(const std::vector<std::string>& pci_addresses, const char* library) {
    const size_t n = pci_addresses.size();
    void* const nvml = n < 2 ? nullptr : dlopen(library, RTLD_LAZY | RTLD_LOCAL);  // never closed: CUDA uses it, too
    if (!nvml) return "";
    const auto init = reinterpret_cast<int (*)()>(dlsym(nvml, "nvmlInit_v2"));
    const auto find = reinterpret_cast<int (*)(const char*, void**)>(dlsym(nvml, "nvmlDeviceGetHandleByPciBusId_v2"));
    const auto status_of = reinterpret_cast<int (*)(void*, void*, int, int*)>(dlsym(nvml, "nvmlDeviceGetP2PStatus"));
    constexpr int kSuccess = 0, kOverNvlink = 2, kOk = 0;  // nvml.h
    if (!init || !find || !status_of || init() != kSuccess) return "";
    std::vector<void*> gpus(n);
    for (size_t i = 0; i < n; i++)
        if (find(pci_addresses[i].c_str(), &gpus[i]) != kSuccess) return "";
    size_t joined = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n; j++) {
            int status = -1;
            joined += status_of(gpus[i], gpus[j], kOverNvlink, &status) == kSuccess && status == kOk;
        }
    const size_t pairs = n * (n - 1) / 2;
    return joined == pairs ? format("NVLink between all %zu GPUs", n)
                           : format("NVLink between %zu of %zu pairs of GPUs", joined, pairs);
}
