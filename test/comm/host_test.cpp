// What joins hosts and GPUs: a file tree like the kernel's, and a fake NVML library.
#include "llmc/comm/host.h"
#include <filesystem>
#include "llmc/base/file.h"  // FileWriter, make_folders
#include "test/testing.h"

TEST_CASE("a host's network is the cards and ports that are up", "[host]") {
    const ScratchFolder scratch;
    const auto put = [&](const std::string& path, const std::string& content) {
        const std::filesystem::path file = scratch.path + "/sys/class/" + path;
        make_folders(file.parent_path());
        FileWriter(file).write(content.data(), content.size());
    };
    const auto interface = [&](const std::string& name, const std::string& state, const std::string& speed) {
        put("net/" + name + "/operstate", state + "\n"), put("net/" + name + "/speed", speed + "\n");
    };
    CHECK(network_text(scratch.path) == "");
    put("net/bonding_masters", "");  // a file among the folders
    interface("eth0", "up", "10000"), interface("eth1", "down", "10000"), interface("eth2", "up", "-1");
    interface("veth0", "up", "10000");  // virtual: it has no device
    for (const std::string name : {"eth0", "eth1", "eth2"}) put("net/" + name + "/device/vendor", "0x15b3\n");
    CHECK(network_text(scratch.path) == "eth0 (10 Gbit/s), eth2");
    for (const std::string adapter : {"mlx5_0", "mlx5_1"}) {
        const std::string port = "infiniband/" + adapter + "/ports/1/";
        put(port + "state", adapter == "mlx5_0" ? "4: ACTIVE\n" : "1: DOWN\n");
        put(port + "rate", "400 Gb/sec (4X NDR)\n"), put(port + "link_layer", "InfiniBand\n");
    }
    CHECK(network_text(scratch.path) == "eth0 (10 Gbit/s), eth2, mlx5_0 (InfiniBand, 400 Gb/sec (4X NDR))");
}

// Four GPUs: 0 and 1, 2 and 3 have NVLink.
TEST_CASE("NVML is asked for links by PCI address", "[host][plain]") {
    const ScratchFolder scratch;
    const std::string source = R"(
#include <string.h>
static int running;
int nvmlInit_v2(void) { running = 1; return 0; }
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
)";
    FileWriter(scratch / "nvml.c").write(source.data(), source.size());
    const std::string library = scratch / "libnvml.so";
    REQUIRE(run("${CXX:-g++} -shared -fPIC -o " + library + " -x c " + scratch / "nvml.c").exit_code == 0);
    const auto ask = [&](const std::vector<std::string>& gpus) { return gpu_links_text(gpus, library.c_str()); };
    CHECK(ask({"0000:00:00.0", "0000:01:00.0"}) == "NVLink between all 2 GPUs");
    CHECK(ask({"0000:00:00.0", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"}) ==
          "NVLink between 2 of 6 pairs of GPUs");
    CHECK(ask({"0000:00:00.0", "0000:04:00.0"}) == "");  // one that it does not know
    CHECK(ask({"0000:00:00.0"}) == "");
    // No library, and one that is another.
    CHECK(gpu_links_text({"0000:00:00.0", "0000:01:00.0"}, "libnothing.so.1") == "");
    CHECK(gpu_links_text({"0000:00:00.0", "0000:01:00.0"}, "libm.so.6") == "");
}
