/*
How much memory the processes of this host may use together: what it has, with swap, or less where a control group (a
container, a batch job) has a limit. Beyond that the kernel kills a process without a message.
*/
#pragma once
#include <cstddef>
#include <string>

// In bytes; 0: not known. Of the limits of all groups above this process (cgroup v1 and v2) the lowest counts. `root`
// is where /proc and /sys lie.
size_t host_memory_bytes(const std::string& root = "");
