// See topology.h.
#include "llmc/comm/topology.h"
#include <dlfcn.h>
#include <glob.h>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include "llmc/base/check.h"  // format

namespace {

std::string line_in(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}
std::vector<std::filesystem::path> folders(const std::string& pattern) {
    glob_t found = {};
    glob(pattern.c_str(), GLOB_ONLYDIR, nullptr, &found);
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
