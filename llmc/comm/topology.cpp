// See topology.h.
#include "llmc/comm/topology.h"
#include <arpa/inet.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include "llmc/base/check.h"  // format

namespace fs = std::filesystem;

namespace {

std::string line_in(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}
bool exists(const std::string& path) {
    std::error_code ignored;
    return fs::exists(path, ignored);
}
std::vector<std::string> names_in(const std::string& folder) {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
        names.push_back(entry->path().filename());
    std::sort(names.begin(), names.end());
    return names;
}
std::string joined(const std::vector<std::string>& texts) {
    std::string all;
    for (const std::string& text : texts) all += (all.empty() ? "" : ", ") + text;
    return all;
}

// This host's interfaces and numeric addresses, without the scope of "fe80::1%eth0".
struct Own {
    std::string interface, number;
};
std::vector<Own> own_numbers() {
    std::vector<Own> all;
    ifaddrs* first = nullptr;
    if (getifaddrs(&first) != 0) return all;
    for (const ifaddrs* each = first; each; each = each->ifa_next) {
        if (!each->ifa_addr || !(each->ifa_flags & IFF_UP)) continue;
        const bool is_4 = each->ifa_addr->sa_family == AF_INET;
        if (!is_4 && each->ifa_addr->sa_family != AF_INET6) continue;
        char text[NI_MAXHOST] = "";
        getnameinfo(each->ifa_addr, is_4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6), text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST);
        const std::string number = text;
        all.push_back({each->ifa_name, number.substr(0, number.find('%'))});
    }
    freeifaddrs(first);
    return all;
}

// Values of /sys/class/net/NAME/type (linux/if_arp.h).
constexpr int kTypeInfiniband = 32, kTypeLoopback = 772;

// NVML's constants, from nvml.h.
constexpr int kNvmlSuccess = 0, kP2pOverNvlink = 2, kP2pOk = 0;
struct Nvml {
    using Device = void*;
    int (*init)() = nullptr;
    int (*shut_down)() = nullptr;
    int (*by_pci_address)(const char*, Device*) = nullptr;
    int (*p2p_status)(Device, Device, int, int*) = nullptr;
    int (*common_ancestor)(Device, Device, int*) = nullptr;
    void* const library;

    explicit Nvml(const char* path) : library(dlopen(path, RTLD_LAZY | RTLD_LOCAL)) {
        if (!library) return;
        find(init, "nvmlInit_v2"), find(shut_down, "nvmlShutdown");
        find(by_pci_address, "nvmlDeviceGetHandleByPciBusId_v2");
        find(p2p_status, "nvmlDeviceGetP2PStatus");
        find(common_ancestor, "nvmlDeviceGetTopologyCommonAncestor");
    }
    ~Nvml() {
        if (library) dlclose(library);
    }
    Nvml(const Nvml&) = delete;
    Nvml& operator=(const Nvml&) = delete;
    bool is_there() const { return init && shut_down && by_pci_address && p2p_status && common_ancestor; }

    GpuLink link(Device a, Device b) const {
        int status = -1, level = -1;
        if (p2p_status(a, b, kP2pOverNvlink, &status) == kNvmlSuccess && status == kP2pOk) return GpuLink::nvlink;
        if (common_ancestor(a, b, &level) != kNvmlSuccess) return GpuLink::unknown;
        // nvmlGpuTopologyLevel_t
        static const std::map<int, GpuLink> links = {{10, GpuLink::one_switch},
                                                     {20, GpuLink::switches},
                                                     {30, GpuLink::host_bridge},
                                                     {40, GpuLink::socket},
                                                     {50, GpuLink::between_sockets}};
        const auto known = links.find(level);
        return known == links.end() ? GpuLink::unknown : known->second;
    }

private:
    template <class Function>
    void find(Function& function, const char* name) {
        function = reinterpret_cast<Function>(dlsym(library, name));
    }
};

}  // namespace

std::string interface_with(const std::string& number) {
    const std::string wanted = number.substr(0, number.find('%'));
    for (const Own& own : own_numbers())
        if (own.number == wanted) return own.interface;
    return "";
}

std::string interface_text(const std::string& name, const std::string& root) {
    const std::string folder = root + "/sys/class/net/" + name;
    const int type = std::atoi(line_in(folder + "/type").c_str());
    if (type == kTypeLoopback) return name + " (loopback)";
    if (exists(folder + "/wireless") || exists(folder + "/phy80211")) return name + " (wireless)";
    const std::string kind = type == kTypeInfiniband ? "IP over InfiniBand, " : "";
    // For bonded cards the system reports the sum of their speeds.
    if (!exists(folder + "/device") && !exists(folder + "/bonding")) return name + (exists(folder) ? " (virtual)" : "");
    const double mbit = std::atof(line_in(folder + "/speed").c_str());  // -1 or unreadable: not known
    if (mbit <= 0) return name + " (" + kind + "speed not known)";
    return name + " (" + kind + (mbit < 1000 ? format("%g Mbit/s", mbit) : format("%g Gbit/s", mbit / 1000)) + ")";
}

std::vector<std::string> rdma_texts(const std::string& root) {
    std::vector<std::string> all;
    const std::string adapters = root + "/sys/class/infiniband";
    for (const std::string& adapter : names_in(adapters)) {
        const std::string ports = adapters + "/" + adapter + "/ports";
        const std::vector<std::string> numbers = names_in(ports);
        for (const std::string& port : numbers) {
            const std::string folder = ports + "/" + port;
            if (!line_in(folder + "/state").ends_with("ACTIVE")) continue;  // "4: ACTIVE"
            const bool is_ethernet = line_in(folder + "/link_layer") == "Ethernet";
            const double gbit = std::atof(line_in(folder + "/rate").c_str());  // "400 Gb/sec (4X NDR)"
            all.push_back((is_ethernet ? "RoCE " : "InfiniBand ") + adapter +
                          (numbers.size() > 1 ? " port " + port : "") + (gbit > 0 ? format(" (%g Gbit/s)", gbit) : ""));
        }
    }
    return all;
}

std::string network_text(const std::string& root) {
    std::vector<std::string> all;
    for (const std::string& name : names_in(root + "/sys/class/net")) {
        const std::string state = line_in(root + "/sys/class/net/" + name + "/operstate");
        if (state != "up" && state != "unknown") continue;
        const std::string text = interface_text(name, root);
        if (!text.ends_with("(loopback)")) all.push_back(text);
    }
    for (const std::string& text : rdma_texts(root)) all.push_back(text);
    return joined(all);
}

const char* text_of(GpuLink link) {
    switch (link) {
        case GpuLink::nvlink:
            return "NVLink";
        case GpuLink::one_switch:
            return "PCIe by one switch";
        case GpuLink::switches:
            return "PCIe by several switches";
        case GpuLink::host_bridge:
            return "PCIe by the host bridge";
        case GpuLink::socket:
            return "PCIe within a socket";
        case GpuLink::between_sockets:
            return "PCIe across sockets";
        case GpuLink::unknown:
            break;
    }
    return "not known";
}

std::string gpu_links_text(int n, const std::function<GpuLink(int, int)>& link_of) {
    std::map<GpuLink, int> pairs;
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++) pairs[link_of(i, j)]++;
    if (pairs.empty() || (pairs.size() == 1 && pairs.begin()->first == GpuLink::unknown)) return "";
    if (pairs.size() == 1) return format("%s between all %d GPUs", text_of(pairs.begin()->first), n);
    std::vector<std::string> texts;
    for (const auto& [link, count] : pairs)
        texts.push_back(format("%s between %d pair%s", text_of(link), count, count == 1 ? "" : "s"));
    return format("%d GPUs: ", n) + joined(texts);
}

std::string gpu_links_text(const std::vector<std::string>& pci_addresses, const char* library) {
    if (pci_addresses.size() < 2) return "";
    const Nvml nvml(library);
    if (!nvml.is_there() || nvml.init() != kNvmlSuccess) return "";
    std::vector<Nvml::Device> devices;
    for (const std::string& address : pci_addresses) {
        Nvml::Device device = nullptr;
        if (nvml.by_pci_address(address.c_str(), &device) == kNvmlSuccess) devices.push_back(device);
    }
    std::string text;
    if (devices.size() == pci_addresses.size())
        text = gpu_links_text(int(devices.size()),
                              [&](int i, int j) { return nvml.link(devices[size_t(i)], devices[size_t(j)]); });
    nvml.shut_down();
    return text;
}

std::string links_line(const std::string& library, int num_hosts, const std::string& tcp_address,
                       const std::string& gpu_links, const std::string& network) {
    std::vector<std::string> parts;
    if (!gpu_links.empty()) parts.push_back(gpu_links);
    if (num_hosts > 1 && !tcp_address.empty()) {
        const std::string interface = interface_with(tcp_address);
        parts.push_back("TCP from " + tcp_address + (interface.empty() ? "" : " by " + interface_text(interface)));
    } else if (num_hosts > 1 && !network.empty()) {
        parts.push_back("between hosts " + library + " chooses among " + network);
    }
    std::string line;
    for (const std::string& part : parts) line += (line.empty() ? "links: " : "; ") + part;
    return line.empty() ? "" : line + "\n";
}
