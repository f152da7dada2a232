// Memory shared by processes of one host: memfd_create, mmap, /proc.
#include "llmc/comm/host/shared_memory.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>
#include "llmc/base/check.h"     // format, require, ensure
#include "llmc/base/terminal.h"  // peer_text

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

SharedMemory SharedMemory::create(size_t bytes) {
    SharedMemory memory;
    memory.bytes_ = std::max<size_t>(bytes, 1);
    memory.fd_ = memfd_create("anvil", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    require(memory.fd_ >= 0 && ftruncate(memory.fd_, off_t(memory.bytes_)) == 0 &&
                fcntl(memory.fd_, F_ADD_SEALS, kSeals) == 0,
            "cannot allocate %.1f MiB of shared memory: %s", double(bytes) / (1 << 20), std::strerror(errno));
    memory.map(false);
    return memory;
}

SharedMemory SharedMemory::open(const std::string& record, size_t bytes, const std::string& who) {
    const auto refuse = [&](const std::string& why) {
        throw Error(kExitRank,
                    format("%s names memory that this rank does not open: %s. Either it is no rank of this run, "
                           "or it is of another build",
                           who.c_str(), why.c_str()));
    };
    int pid = 0, fd = 0, end = 0;
    SharedMemory memory;
    if (std::sscanf(record.c_str(), "%d %d %zu%n", &pid, &fd, &memory.bytes_, &end) != 3 ||
        size_t(end) != record.size() || pid <= 0 || fd < 0)
        refuse("expected PID, FD and BYTES, found " + peer_text(record.substr(0, 64)));
    if (memory.bytes_ != std::max<size_t>(bytes, 1))
        refuse(format("expected %zu bytes, found %zu", std::max<size_t>(bytes, 1), memory.bytes_));
    // First only O_PATH: opening a device or a FIFO may have side effects.
    const std::string path = format("/proc/%d/fd/%d", pid, fd);
    SharedMemory found;
    found.fd_ = ::open(path.c_str(), O_PATH | O_CLOEXEC);
    if (found.fd_ < 0)
        throw Error(kExitRank, format("%s names memory on this host that cannot be opened, %s: %s. The ranks of a host "
                                      "must run as one user and see each other's processes",
                                      who.c_str(), path.c_str(), std::strerror(errno)));
    struct stat process = {}, file = {};
    if (stat(format("/proc/%d", pid).c_str(), &process) != 0 || process.st_uid != geteuid())
        refuse(format("process %d is not of user %d", pid, int(geteuid())));
    if (fstat(found.fd_, &file) != 0 || !S_ISREG(file.st_mode) || file.st_uid != geteuid())
        refuse(format("%s is no memory of user %d", path.c_str(), int(geteuid())));
    memory.fd_ = ::open(format("/proc/self/fd/%d", found.fd_).c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    // Only a memfd can have this seal: files on disk have none, and files in /dev/shm have only F_SEAL_SEAL.
    const int seals = memory.fd_ >= 0 ? fcntl(memory.fd_, F_GET_SEALS) : -1;
    if (seals < 0 || !(seals & F_SEAL_SHRINK)) refuse(path + " is a file, or memory that can shrink");
    if (uint64_t(file.st_size) < memory.bytes_)
        refuse(format("%s has %ld bytes, expected %zu", path.c_str(), file.st_size, memory.bytes_));
    memory.map(true);
    memory.close();
    return memory;
}

// `populate`, for another process's memory: maps all pages now, instead of one by one in the first collective.
void SharedMemory::map(bool populate) {
    void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | (populate ? MAP_POPULATE : 0), fd_, 0);
    require(data != MAP_FAILED, "cannot map %.1f MiB of shared memory: %s. Lower --batch-size or --seq-len",
            double(bytes_) / (1 << 20), std::strerror(errno));
    data_ = static_cast<char*>(data);
    madvise(data_, bytes_, MADV_HUGEPAGE);
}

SharedMemory::~SharedMemory() {
    if (data_) munmap(data_, bytes_);
    close();
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(fd_, other.fd_);
    return *this;
}

std::string SharedMemory::record() const {
    ensure(fd_ >= 0);
    return format("%d %d %zu", int(getpid()), fd_, bytes_);
}

void SharedMemory::close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
}

// The state and the start time of a process: fields 3 and 22 of /proc/PID/stat. Field 2 is a name in parentheses, which
// may contain any character.
static bool read_stat(pid_t pid, char* state, uint64_t* start) {
    std::FILE* file = std::fopen(format("/proc/%d/stat", int(pid)).c_str(), "re");
    if (!file) return false;
    char text[1024];
    text[std::fread(text, 1, sizeof text - 1, file)] = 0;
    std::fclose(file);
    const char* after_name = std::strrchr(text, ')');
    constexpr const char* kFields =
        ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %" SCNu64;
    return after_name && std::sscanf(after_name, kFields, state, start) == 2;
}

Process Process::current() {
    Process process{getpid(), 0};
    char state = 0;
    ensure(read_stat(process.pid, &state, &process.start));
    return process;
}

bool Process::alive() const {
    if (kill(pid, 0) != 0 && errno == ESRCH) return false;
    char state = 0;
    uint64_t start_now = 0;
    if (!read_stat(pid, &state, &start_now)) return true;  // cannot tell (too many open files here, say)
    return start_now == start && state != 'Z' && state != 'X';
}
