/*
Which host a rank is on. Ranks with the same identity can share memory and see each other's process ids.
*/
#pragma once
#include <cstddef>
#include <string>

// A hash of host name, boot, network namespace and pid namespace: two containers on one machine count as two hosts. So
// do processes with a different ANVIL_HOST in the environment, to try several hosts on one machine.
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
