/*
What the system tells of this host: which one it is, its GPUs, and what joins those and joins it to other hosts. Which
of these links NCCL or MPI uses, only they know (NCCL_DEBUG=INFO).
*/
#pragma once
#include <cstddef>
#include <string>
#include <vector>

// Ranks with the same identity can share memory and see each other's process ids. A hash of host name, boot, network
// namespace and pid namespace: two containers on one machine count as two hosts. So do processes with a different
// ANVIL_HOST in the environment, to try several hosts on one machine.
std::string host_identity();

// Raises this process's limit of open files to the hard limit (ulimit -Hn): each connection to a rank is a file.
// Returns the limit in force; 0 if it is not known.
size_t raise_file_limit();

// The NVIDIA GPUs of this host: `open` is the number of device files that this process sees, `known` the number that
// the driver knows. In a container without GPUs `open` is smaller. Read from /dev and /proc, because a build may not
// have CUDA. `root`, for tests, is put before both paths.
struct HostGpus {
    int open = 0, known = 0;
};
HostGpus host_gpus(const std::string& root = "");

// The network cards and RDMA ports that are up, with their speed if it is known: "eth0 (10 Gbit/s), mlx5_0 (InfiniBand,
// 400 Gb/sec (4X NDR))". A container's virtual interfaces are none of them. `root` is for tests: the folder with sys/.
std::string network_text(const std::string& root = "");

// "NVLink between all 8 GPUs", "NVLink between 2 of 6 pairs of GPUs". From the driver's management library (NVML), by
// PCI addresses ("0000:3b:00.0"), which it has in common with CUDA. "": fewer than two GPUs, or NVML does not know.
std::string gpu_links_text(const std::vector<std::string>& pci_addresses, const char* library = "libnvidia-ml.so.1");
