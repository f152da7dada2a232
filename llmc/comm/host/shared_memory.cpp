// Memory shared by processes of one host.
#include "llmc/comm/host/shared_memory.h"
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include "llmc/base/check.h"         // format, require, ensure
#include "llmc/base/terminal.h"      // peer_text
#include "llmc/platform/platform.h"  // create_shared_memory, start_of

SharedMemory SharedMemory::create(size_t bytes) {
    SharedMemory memory;
    memory.bytes_ = std::max<size_t>(bytes, 1);
    memory.fd_ = create_shared_memory(memory.bytes_, memory.name_);
    require(memory.fd_ >= 0, "cannot allocate %.1f MiB of shared memory: %s", double(bytes) / (1 << 20),
            std::strerror(errno));
    memory.map(false);
    return memory;
}

SharedMemory SharedMemory::open(const std::string& record, size_t bytes, const std::string& who) {
    const auto refuse = [&](const std::string& why) {
        throw Error(kExitRank,
                    format("%s names memory that this rank does not open: %s. Either it is no rank of this run, "
                           "or it is of another build",
                           who.c_str(), peer_text(why).c_str()));
    };
    const size_t blank = std::min(record.rfind(' '), record.size());
    SharedMemory memory;
    int end = 0;
    if (std::sscanf(record.c_str() + blank, " %zu%n", &memory.bytes_, &end) != 1 ||
        size_t(end) != record.size() - blank)
        refuse("expected NAME and BYTES, found " + record.substr(0, 64));
    if (memory.bytes_ != std::max<size_t>(bytes, 1))
        refuse(format("expected %zu bytes, found %zu", std::max<size_t>(bytes, 1), memory.bytes_));
    std::string why;
    memory.fd_ = open_shared_memory(record.substr(0, blank), memory.bytes_, why);
    if (memory.fd_ < 0) refuse(why);
    memory.map(true);
    memory.close();
    return memory;
}

// `populate`, for another process's memory: maps all pages now, instead of one by one in the first collective.
void SharedMemory::map(bool populate) {
    data_ = map_shared(fd_, bytes_, populate);
    require(data_, "cannot map %.1f MiB of shared memory: %s. Lower --batch-size or --seq-len",
            double(bytes_) / (1 << 20), std::strerror(errno));
    prefer_huge_pages(data_, bytes_);
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
    std::swap(name_, other.name_);
    return *this;
}

std::string SharedMemory::record() const {
    ensure(fd_ >= 0);
    return name_ + format(" %zu", bytes_);
}

void SharedMemory::close() {
    if (!name_.empty()) forget_shared_memory(name_);
    name_.clear();
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
}

Process Process::current() {
    const std::optional<uint64_t> start = start_of(getpid());
    ensure(start);
    return {getpid(), *start};
}

bool Process::alive() const {
    const std::optional<uint64_t> now = start_of(pid);
    return !now || *now == start;
}
