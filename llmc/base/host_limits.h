/*
The cores and the memory that this process may use: what the machine has, or what taskset, a launcher, a batch system or
a container left of it. Control groups (cgroups v1 and v2) contain each other, and the lowest limit counts. `root` is
the folder that holds /proc and /sys. The cores themselves: given_cores() of llmc/platform/platform.h.
*/
#pragma once
#include <cstddef>
#include <string>
#include <vector>

// The CPU quota of the control groups that contain this process, in cores; 0: none.
double cpu_quota(const std::string& root = "");

// The default number of threads: one per given core, as far as the quota allows; at least 1.
int usable_cores();

// A rank's part of the cores: each core is divided among the ranks that were given it.
double share_of_cores(const std::vector<int>& mine, const std::vector<std::vector<int>>& of_ranks);

// {0, 1, 2, 8} <-> "0-2,8". Text that is no such list is an empty one.
std::string core_list(const std::vector<int>& cores);
std::vector<int> cores_in(const std::string& list);

// RAM and swap in bytes that the processes of this host may use together, or the limit of a control group if that is
// lower; 0: not known. Beyond that the kernel kills a process without a message.
size_t host_memory_bytes(const std::string& root = "");
// Of that, RAM that is not in use now: what may be pinned, which can not be swapped out; 0: not known.
size_t free_host_memory(const std::string& root = "");
// The bytes that a process may lock (`ulimit -l`); 0: no limit.
size_t locked_memory_limit();
