/*
What a program needs of its operating system beyond POSIX and C++, apart from sockets (sockets.h). Where Darwin has no
equivalent, its function does nothing, or says that the answer is not known.
*/
#pragma once
#include <signal.h>
#include <sys/types.h>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// ---- this program and its processes --------------------------------------------------------------------------------

std::string program_path();  // of this program, without links; "": not known
// Executes this program again, as execv() does, even if its file was replaced. Returns only if that failed.
void execute_again(char* const* arguments);
// Gives the process the program's name, where execute_again() has given it another.
void set_process_name();
// Has the kernel kill this process when its parent ends. Darwin: no.
void end_with_parent();
void disable_core_dumps();
// When a process started, in a unit of the kernel's; 0: it has ended, waited for or not; nothing: not known.
std::optional<uint64_t> start_of(pid_t process);
// Takes one of these signals, which must be blocked. timeout_s < 0: none. 0: none came in time; -1: look again.
int next_signal(const sigset_t& signals, double timeout_s = -1);

// ---- processor -----------------------------------------------------------------------------------------------------

// The cores that taskset, a launcher or a batch system left to this process, ascending. Darwin: all.
//
// If OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY is set, libgomp binds the main thread to one core before main()
// runs, and what it starts inherits that. So the cores are noted earlier still, before any library starts.
std::vector<int> given_cores();
// Lets the calling thread, and what it starts, use all of them.
void use_given_cores();
// Lets all threads that std::thread and std::async start from now on use all of them.
void let_threads_use_given_cores();
// From now on the calling thread runs only when no other thread would.
void run_when_idle();
std::string cpuinfo();    // in the form of /proc/cpuinfo: lines "model name : Apple M2"
long l2_bytes_of_core();  // 0: not known
bool permit_amx();        // asks for Intel's tile registers; whether they are granted

// ---- memory and files ----------------------------------------------------------------------------------------------

size_t peak_memory_bytes();  // the most RAM that this process has had; 0: not known
void prefer_huge_pages(void* data, size_t bytes);
// What differs between hosts, boots and containers that cannot see each other's processes.
std::string kernel_identity();

// Memory that other processes of this user on this host open by its name. Its size is fixed, it is all zeros, and it is
// a file to map. Returns its descriptor and sets the name; -1 and errno.
int create_shared_memory(size_t bytes, std::string& name);
// Opens it. A name comes from another process and is not trusted: -1, and why, if it names anything but such memory of
// a process of this user, of at least so many bytes.
int open_shared_memory(const std::string& name, size_t bytes, std::string& why);
// Called by its creator when all have opened it. What is mapped stays.
void forget_shared_memory(const std::string& name);
// Maps a file to read and write; nullptr and errno. `populate`: all pages now, not one by one when they are used.
char* map_shared(int fd, size_t bytes, bool populate);

// Sleeps while the word, in memory of several processes, has this value, for at most timeout_ms. May return early.
void sleep_while(std::atomic<uint32_t>& word, uint32_t value, int timeout_ms);
// Ends the sleep of all. The word must have changed.
void wake_all(std::atomic<uint32_t>& word);

// As fsync() is meant: when it returns 0, the file is on the disk, not in the disk's cache.
int sync_to_disk(int fd);
// The file is read from the disk next, not from the page cache.
void drop_cached_pages(int fd);
// When a file's content and when its inode changed, to the nanosecond: "1700000000.000000000:1700000000.000000000".
std::string change_times(const struct stat& file);
