/*
Which host a rank is on. Ranks with the same identity can share memory and see each other's process ids.
*/
#pragma once
#include <cstddef>
#include <string>

// A hash of host name, boot, network namespace and pid namespace: two containers on one machine count as two hosts. So
// do processes with a different ANVIL_HOST in the environment, to try several hosts on one machine.
std::string host_identity();

// Lets this process open as many files as the system allows it (the hard limit of ulimit -n, where shells set a low
// soft one): a rank's connections are files. How many that are now.
size_t raise_file_limit();

// NVIDIA's GPUs of this host: those that are there for this process to open, and those that the driver knows, of which
// a container may have been given none. Asked of the system, not of CUDA, which a build may not have. `root` is for
// tests.
struct HostGpus {
    int open = 0, known = 0;
};
HostGpus host_gpus(const std::string& root = "");
