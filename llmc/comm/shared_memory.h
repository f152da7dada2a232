/*
Memory that the processes of one host share, and whether these processes are alive.

  SharedMemory mine = SharedMemory::create(bytes);              zeros
  SharedMemory theirs = SharedMemory::open(record, bytes, who); record: mine.record() of the other process
  mine.close();                                                 when all have opened it: it stays mapped

A file in memory without a name (memfd_create), opened by the others as /proc/PID/fd/N. So it takes no space in
/dev/shm, which is 64 MB in many containers; it needs no MPI, whose MPI_Win_allocate_shared does the same; and nothing
is left behind however a process ends. The processes must run as the same user and see each other's pids. Huge pages
where the system grants them to shared memory (/sys/kernel/mm/transparent_hugepage/shmem_enabled: advise).

A record comes from another process and is not believed: what it names is mapped only if it is what create() makes, a
memfd that can no longer shrink (so that nobody dies of SIGBUS), of this user, in a process of this user, and as large
as this rank expects. Else whoever sends a record could have another user's file overwritten.
*/
#pragma once
#include <sys/types.h>
#include <cstddef>
#include <cstdint>
#include <string>

class SharedMemory {
public:
    SharedMemory() = default;
    static SharedMemory create(size_t bytes);
    // `who` sent the record: "rank 1 (10.0.0.2:41000)". An Error with exit code 3 that names it if the record makes no
    // sense or names anything but memory that a rank of this user has made, of at least `bytes`.
    static SharedMemory open(const std::string& record, size_t bytes, const std::string& who);
    ~SharedMemory();
    SharedMemory(SharedMemory&& other) noexcept;
    SharedMemory& operator=(SharedMemory&& other) noexcept;

    char* data() const { return data_; }
    size_t bytes() const { return bytes_; }
    std::string record() const;  // for open(), while this process lives and close() was not called
    void close();

private:
    char* data_ = nullptr;
    size_t bytes_ = 0;
    int fd_ = -1;

    void map(bool populate);
};

// A process, told apart from a later one with the same number by the time it started.
struct Process {
    pid_t pid = 0;
    uint64_t start = 0;

    static Process current();
    bool alive() const;  // neither gone nor a zombie
};
