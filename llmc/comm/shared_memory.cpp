// Memory of processes on one host: memfd_create, mmap, /proc.
#include "llmc/comm/shared_memory.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>
#include "llmc/base/check.h"  // format, require, ensure

SharedMemory SharedMemory::create(size_t bytes) {
    SharedMemory memory;
    memory.bytes_ = std::max<size_t>(bytes, 1);
    memory.fd_ = memfd_create("anvil", MFD_CLOEXEC);
    require(memory.fd_ >= 0 && ftruncate(memory.fd_, off_t(memory.bytes_)) == 0,
            "cannot allocate %.1f MiB of shared memory: %s", double(bytes) / (1 << 20), std::strerror(errno));
    memory.map(false);
    return memory;
}

SharedMemory SharedMemory::open(const std::string& record) {
    int pid = 0, fd = 0;
    SharedMemory memory;
    ensure(std::sscanf(record.c_str(), "%d %d %zu", &pid, &fd, &memory.bytes_) == 3);
    const std::string path = format("/proc/%d/fd/%d", pid, fd);
    memory.fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    require(memory.fd_ >= 0,
            "%s, memory of another rank on this host, cannot be opened: %s. The ranks of a host must run as one user "
            "and see each other's processes",
            path.c_str(), std::strerror(errno));
    memory.map(true);
    memory.close();
    return memory;
}

// Another's memory is there already: its pages are mapped at once instead of one by one in the first collective.
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

// The state and the start time of a process: fields 3 and 22 of /proc/PID/stat. The second is a name in parentheses,
// which may hold anything.
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
    if (!read_stat(pid, &state, &start_now)) return true;  // too many open files here, say: nothing against it
    return start_now == start && state != 'Z' && state != 'X';
}
