/*
The links between the hosts and GPUs of a run, as far as the system reports them. Nothing is guessed: if there are
several links, only NCCL or MPI knows which one it uses.

  interface_text("eth0")                "eth0 (10 Gbit/s)"
  network_text()                        "eth0 (10 Gbit/s), InfiniBand mlx5_0 (400 Gbit/s)"
  gpu_links_text({...})                 "NVLink between all 8 GPUs"

`root` is for tests: the folder that holds sys/.
*/
#pragma once
#include <functional>
#include <string>
#include <vector>

// The interface of this host that has the numeric address; "" if none.
std::string interface_with(const std::string& number);

// The interface's name, and the speed of its card: "eth0 (10 Gbit/s)". No speed for virtual interfaces (a container's,
// for example), whose reported speed means nothing, and for wireless ones, whose speed changes.
std::string interface_text(const std::string& name, const std::string& root = "");

// Active RDMA ports: "InfiniBand mlx5_0 (400 Gbit/s)", "RoCE mlx5_1 (100 Gbit/s)"; with several ports on an adapter,
// "mlx5_0 port 2".
std::vector<std::string> rdma_texts(const std::string& root = "");

// This host's interfaces that are up, except the loopback, and its active RDMA ports.
std::string network_text(const std::string& root = "");

// How two GPUs of a host reach each other, the closest first.
enum class GpuLink { nvlink, one_switch, switches, host_bridge, socket, between_sockets, unknown };
const char* text_of(GpuLink link);

// Summarizes the links link_of(i, j), i < j, of n GPUs: "NVLink between all 4 GPUs", "4 GPUs: NVLink between 2 pairs,
// PCIe across sockets between 4". "" for fewer than two GPUs, or if nothing is known.
std::string gpu_links_text(int n, const std::function<GpuLink(int, int)>& link_of);

// The same from the driver's management library (NVML). GPUs are identified by PCI address ("0000:3b:00.0"), the only
// identifier that NVML and CUDA have in common. "" if NVML is not installed. `library` is for tests.
std::string gpu_links_text(const std::vector<std::string>& pci_addresses, const char* library = "libnvidia-ml.so.1");

// The line about links in the report before the first step, from the point of view of rank 0. `tcp_address`: this
// host's address on its TCP connections to other hosts; "": NCCL or MPI connects the hosts, or there is one host.
//
//   links: NVLink between all 8 GPUs; between hosts NCCL chooses among eth0 (10 Gbit/s), InfiniBand mlx5_0 (400 Gbit/s)
//   links: TCP from 10.0.0.1 by eth0 (10 Gbit/s)
std::string links_line(const std::string& library, int num_hosts, const std::string& tcp_address,
                       const std::string& gpu_links, const std::string& network);
