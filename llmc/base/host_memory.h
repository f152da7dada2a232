/*
How much memory the processes of this host may use together: RAM and swap, or the limit of a control group (a container,
a batch job) if that is lower. Beyond that the kernel kills a process without a message.
*/
#pragma once
#include <cstddef>
#include <string>

// In bytes; 0: not known. The lowest limit of the control groups that contain this process (cgroup v1 and v2) counts.
// `root` is the folder that holds /proc and /sys.
size_t host_memory_bytes(const std::string& root = "");
