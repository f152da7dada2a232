// The connections of hosts and GPUs: file trees like those of kernels, and a fake NVML library.
#include "llmc/comm/topology.h"
#include <filesystem>
#include <map>
#include "llmc/base/file.h"  // FileWriter, make_folders
#include "test/testing.h"

namespace {

// A fake /sys: the content of each file.
struct Tree {
    ScratchFolder scratch;
    void put(const std::string& path, const std::string& content) const {
        const std::filesystem::path file = scratch.path + "/sys/class/" + path;
        make_folders(file.parent_path());
        FileWriter(file).write(content.data(), content.size());
    }
    // A card's interface, as its driver shows it.
    void card(const std::string& name, const std::string& speed, const std::string& state = "up",
              const std::string& type = "1") const {
        put("net/" + name + "/type", type + "\n");
        put("net/" + name + "/operstate", state + "\n");
        put("net/" + name + "/device/vendor", "0x15b3\n");
        put("net/" + name + "/speed", speed + "\n");
    }
    void rdma(const std::string& adapter, const std::string& port, const std::string& state, const std::string& rate,
              const std::string& layer) const {
        const std::string folder = "infiniband/" + adapter + "/ports/" + port + "/";
        put(folder + "state", state + "\n"), put(folder + "rate", rate + "\n"),
            put(folder + "link_layer", layer + "\n");
    }
    std::string interface(const std::string& name) const { return interface_text(name, scratch.path); }
    std::string network() const { return network_text(scratch.path); }
};

}  // namespace

TEST_CASE("an interface has the speed of its card", "[topology]") {
    const Tree tree;
    tree.card("eth0", "10000"), tree.card("eth1", "100"), tree.card("eth2", "2500"), tree.card("eth3", "-1");
    CHECK(tree.interface("eth0") == "eth0 (10 Gbit/s)");
    CHECK(tree.interface("eth1") == "eth1 (100 Mbit/s)");
    CHECK(tree.interface("eth2") == "eth2 (2.5 Gbit/s)");
    CHECK(tree.interface("eth3") == "eth3 (speed not known)");  // a virtual machine's
    tree.card("ib0", "400000", "up", "32");
    CHECK(tree.interface("ib0") == "ib0 (IP over InfiniBand, 400 Gbit/s)");
    tree.card("wlan0", "1000"), tree.put("net/wlan0/phy80211/name", "phy0\n");
    CHECK(tree.interface("wlan0") == "wlan0 (wireless)");

    // A pair of virtual interfaces says 10000, which nothing limits or reaches; several cards say their sum.
    tree.put("net/veth0/type", "1\n"), tree.put("net/veth0/speed", "10000\n");
    CHECK(tree.interface("veth0") == "veth0 (virtual)");
    tree.put("net/bond0/type", "1\n"), tree.put("net/bond0/speed", "20000\n"), tree.put("net/bond0/bonding/mode", "x");
    CHECK(tree.interface("bond0") == "bond0 (20 Gbit/s)");
    tree.put("net/lo/type", "772\n");
    CHECK(tree.interface("lo") == "lo (loopback)");
    CHECK(tree.interface("eth9") == "eth9");  // /sys is hidden
}

TEST_CASE("ports of InfiniBand and RoCE are told apart", "[topology]") {
    const Tree tree;
    CHECK(rdma_texts(tree.scratch.path).empty());
    tree.rdma("mlx5_0", "1", "4: ACTIVE", "400 Gb/sec (4X NDR)", "InfiniBand");
    tree.rdma("mlx5_1", "1", "1: DOWN", "10 Gb/sec (4X SDR)", "InfiniBand");
    tree.rdma("mlx5_2", "1", "4: ACTIVE", "100 Gb/sec (4X EDR)", "Ethernet");
    tree.rdma("mlx5_3", "1", "2: INIT", "100 Gb/sec", "InfiniBand");
    tree.rdma("mlx5_3", "2", "4: ACTIVE", "", "InfiniBand");
    CHECK(rdma_texts(tree.scratch.path) == std::vector<std::string>{"InfiniBand mlx5_0 (400 Gbit/s)",
                                                                    "RoCE mlx5_2 (100 Gbit/s)",
                                                                    "InfiniBand mlx5_3 port 2"});
}

TEST_CASE("a host's network is what is up", "[topology]") {
    const Tree tree;
    CHECK(tree.network() == "");
    tree.put("net/lo/type", "772\n"), tree.put("net/lo/operstate", "unknown\n");
    CHECK(tree.network() == "");
    tree.card("eth1", "1000"), tree.card("eth0", "25000"), tree.card("eth2", "1000", "down");
    tree.put("net/bonding_masters", "");  // a file among the folders
    tree.rdma("mlx5_0", "1", "4: ACTIVE", "400 Gb/sec (4X NDR)", "InfiniBand");
    CHECK(tree.network() == "eth0 (25 Gbit/s), eth1 (1 Gbit/s), InfiniBand mlx5_0 (400 Gbit/s)");
}

TEST_CASE("an address is found at its interface", "[topology]") {
    CHECK(interface_with("127.0.0.1") == "lo");
    CHECK(interface_with("203.0.113.77") == "");
    CHECK(interface_with("") == "");
    CHECK(contains(interface_text("lo"), "loopback"));  // of this machine
}

TEST_CASE("links between GPUs are counted by kind", "[topology]") {
    const auto all = [](GpuLink link) { return [=](int, int) { return link; }; };
    CHECK(gpu_links_text(8, all(GpuLink::nvlink)) == "NVLink between all 8 GPUs");
    CHECK(gpu_links_text(2, all(GpuLink::host_bridge)) == "PCIe by the host bridge between all 2 GPUs");
    CHECK(gpu_links_text(2, all(GpuLink::unknown)) == "");
    CHECK(gpu_links_text(1, all(GpuLink::nvlink)) == "");
    CHECK(gpu_links_text(0, all(GpuLink::nvlink)) == "");
    // Two bridged pairs on two sockets.
    CHECK(gpu_links_text(4, [](int i, int j) { return i / 2 == j / 2 ? GpuLink::nvlink : GpuLink::between_sockets; }) ==
          "4 GPUs: NVLink between 2 pairs, PCIe across sockets between 4 pairs");
    CHECK(gpu_links_text(3, [](int i, int j) { return i == 0 && j == 1 ? GpuLink::switches : GpuLink::unknown; }) ==
          "3 GPUs: PCIe by several switches between 1 pair, not known between 2 pairs");
}

// Four GPUs: 0 and 1, 2 and 3 have NVLink; 0 and 2 have a common host bridge, the others different sockets.
TEST_CASE("the driver's library is asked by PCI address", "[topology][plain]") {
    const ScratchFolder scratch;
    const std::string source = R"(
#include <string.h>
static int running;
int nvmlInit_v2(void) { running = 1; return 0; }
int nvmlShutdown(void) { running = 0; return 0; }
static char gpus[4];
int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** device) {
    if (!running || strncmp(address, "0000:0", 6) || strlen(address) != 12 || address[6] < '0' || address[6] > '3') return 6;
    *device = &gpus[address[6] - '0'];
    return 0;
}
int nvmlDeviceGetP2PStatus(void* a, void* b, int index, int* status) {
    if (!running || index != 2) return 2;
    *status = ((char*)a - gpus) / 2 == ((char*)b - gpus) / 2 ? 0 : 5;
    return 0;
}
int nvmlDeviceGetTopologyCommonAncestor(void* a, void* b, int* level) {
    *level = (char*)a - gpus == 0 && (char*)b - gpus == 2 ? 30 : 50;
    return running ? 0 : 1;
}
)";
    FileWriter(scratch / "nvml.c").write(source.data(), source.size());
    const std::string library = scratch / "libnvml.so";
    REQUIRE(run("${CXX:-g++} -shared -fPIC -o " + library + " -x c " + scratch / "nvml.c").exit_code == 0);
    const auto ask = [&](const std::vector<std::string>& gpus) { return gpu_links_text(gpus, library.c_str()); };
    CHECK(ask({"0000:00:00.0", "0000:01:00.0"}) == "NVLink between all 2 GPUs");
    CHECK(ask({"0000:00:00.0", "0000:02:00.0"}) == "PCIe by the host bridge between all 2 GPUs");
    CHECK(
        ask({"0000:00:00.0", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"}) ==
        "4 GPUs: NVLink between 2 pairs, PCIe by the host bridge between 1 pair, PCIe across sockets between 3 pairs");
    CHECK(ask({"0000:00:00.0", "0000:04:00.0"}) == "");  // one that it does not know
    CHECK(ask({"0000:00:00.0"}) == "");
    // No library, and one that is another.
    CHECK(gpu_links_text({"0000:00:00.0", "0000:01:00.0"}, "libnothing.so.1") == "");
    CHECK(gpu_links_text({"0000:00:00.0", "0000:01:00.0"}, "libm.so.6") == "");
}

TEST_CASE("a run says what is detected and who chooses", "[topology]") {
    CHECK(links_line("NCCL", 1, "", "NVLink between all 8 GPUs", "eth0") == "links: NVLink between all 8 GPUs\n");
    CHECK(links_line("NCCL", 2, "", "", "eth0 (1 Gbit/s)") ==
          "links: between hosts NCCL chooses among eth0 (1 Gbit/s)\n");
    CHECK(links_line("NCCL", 2, "", "NVLink between all 2 GPUs", "eth0, ib0") ==
          "links: NVLink between all 2 GPUs; between hosts NCCL chooses among eth0, ib0\n");
    CHECK(links_line("MPI", 2, "127.0.0.1", "", "eth0") == "links: TCP from 127.0.0.1 by lo (loopback)\n");
    CHECK(links_line("MPI", 2, "203.0.113.77", "", "eth0") == "links: TCP from 203.0.113.77\n");
    CHECK(links_line("MPI", 1, "", "", "eth0") == "");  // ranks of one host share its memory
    CHECK(links_line("NCCL", 2, "", "", "") == "");
}
