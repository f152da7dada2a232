/*
Memory that the processes of one host share, and whether these processes are alive.

  SharedMemory mine = SharedMemory::create(bytes);              zeros
  SharedMemory theirs = SharedMemory::open(record, bytes, who); record: mine.record() of the other process
  mine.close();                                                 when all have opened it: it stays mapped

On Linux the memory is an anonymous file (memfd_create), which the other processes open as /proc/PID/fd/N. So it takes
no space in /dev/shm, which is 64 MB in many containers; it does not need MPI (MPI_Win_allocate_shared); and it
disappears with the processes, however they end. The processes must run as the same user and see each other's pids. It
uses huge pages if the system allows them for shared memory (/sys/kernel/mm/transparent_hugepage/shmem_enabled: advise).

A record comes from another process and is not trusted. The memory that it names is mapped only if it could come from
create(): a memfd of this user that cannot shrink (so that access cannot raise SIGBUS), in a process of this user, and
as large as this rank expects. Otherwise the sender of a record could have another user's file overwritten.
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
    // Maps the memory of a record. `who` sent it: "rank 1 (10.0.0.2:41000)". Throws an Error (exit code 3) that names
    // `who` if the record is malformed, or if it names anything but memory of a process of this user of `bytes` bytes.
    static SharedMemory open(const std::string& record, size_t bytes, const std::string& who);
    ~SharedMemory();
    SharedMemory(SharedMemory&& other) noexcept;
    SharedMemory& operator=(SharedMemory&& other) noexcept;

    char* data() const { return data_; }
    size_t bytes() const { return bytes_; }
    std::string record() const;  // for open(); valid while this process lives and until close()
    void close();

private:
    char* data_ = nullptr;
    size_t bytes_ = 0;
    int fd_ = -1;
    std::string name_;  // of memory that was created here, until close()

    void map(bool populate);
};

// A process, identified by its id and start time, since ids are reused.
struct Process {
    pid_t pid = 0;
    uint64_t start = 0;

    static Process current();
    bool alive() const;  // neither gone nor a zombie
};
