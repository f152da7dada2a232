/*
What joins this host's GPUs, and this host to others, as far as the system reports it. Which of these links NCCL or MPI
uses, only they know (NCCL_DEBUG=INFO).
*/
#pragma once
#include <string>
#include <vector>

// The network cards and RDMA ports that are up, with their speed if it is known: "eth0 (10 Gbit/s), mlx5_0 (InfiniBand,
// 400 Gb/sec (4X NDR))". A container's virtual interfaces are none of them. `root` is for tests: the folder with sys/.
std::string network_text(const std::string& root = "");

// "NVLink between all 8 GPUs", "NVLink between 2 of 6 pairs of GPUs". From the driver's management library (NVML), by
// PCI addresses ("0000:3b:00.0"), which it has in common with CUDA. "": fewer than two GPUs, or NVML does not know.
std::string gpu_links_text(const std::vector<std::string>& pci_addresses, const char* library = "libnvidia-ml.so.1");
