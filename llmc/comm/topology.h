/*
What joins the hosts and GPUs of a run, as far as the system tells; what it does not tell is not guessed. Which of
several ways NCCL or MPI takes only they know.

  interface_text("eth0")                "eth0 (10 Gbit/s)"
  network_text()                        "eth0 (10 Gbit/s), InfiniBand mlx5_0 (400 Gbit/s)"
  gpu_links_text({...})                 "NVLink between all 8 GPUs"

`root` is for tests: the folder that holds sys/.
*/
#pragma once
#include <functional>
#include <string>
#include <vector>

// Which of this host's interfaces has the address, given as a number; "" if none.
std::string interface_with(const std::string& number);

// Its name, and the speed of its card. Of a virtual interface, a container's for example, the system tells none that
// means anything; of a wireless one it changes.
std::string interface_text(const std::string& name, const std::string& root = "");

// Active ports of remote direct memory access: "InfiniBand mlx5_0 (400 Gbit/s)", "RoCE mlx5_1 (100 Gbit/s)"; of
// adapters with several ports "mlx5_0 port 2".
std::vector<std::string> rdma_texts(const std::string& root = "");

// Of this host: its interfaces that are up, but for the loopback, and its active RDMA ports.
std::string network_text(const std::string& root = "");

// How two GPUs of a host reach each other, the closest first.
enum class GpuLink { nvlink, one_switch, switches, host_bridge, socket, between_sockets, unknown };
const char* text_of(GpuLink link);

// Of `n` GPUs, `link_of(i, j)` for i < j: "NVLink between all 4 GPUs", "4 GPUs: NVLink between 2 pairs, PCIe across
// sockets between 4". "" of fewer than two, or if nothing is known.
std::string gpu_links_text(int n, const std::function<GpuLink(int, int)>& link_of);

// The driver's management library (NVML), by the PCI addresses of the GPUs ("0000:3b:00.0"), which are all that it and
// CUDA have in common. "" if it is not there. `library` is for tests.
std::string gpu_links_text(const std::vector<std::string>& pci_addresses, const char* library = "libnvidia-ml.so.1");

// For the start of a run, of what its first rank sees. `tcp_address`: of this host, by which it reaches the others over
// TCP; "": NCCL or MPI takes them, or there are none.
//
//   links: NVLink between all 8 GPUs; between hosts NCCL chooses among eth0 (10 Gbit/s), InfiniBand mlx5_0 (400 Gbit/s)
//   links: TCP from 10.0.0.1 by eth0 (10 Gbit/s)
std::string links_line(const std::string& library, int num_hosts, const std::string& tcp_address,
                       const std::string& gpu_links, const std::string& network);
