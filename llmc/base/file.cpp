// See file.h. POSIX calls, each of them checked.
#include "llmc/base/file.h"
#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include "llmc/base/check.h"  // require
#include "llmc/base/hash.h"   // Hasher, hex64

std::string read_file(const std::string& path) {
    const MappedFile file(path);
    return std::string(file.data(), file.size());
}

void write_file_atomically(const std::string& path, std::string_view content) {
    const std::string tmp = path + ".tmp";
    try {
        FileWriter file(tmp);
        file.write(content.data(), content.size());
        file.sync_and_close();
        require(std::rename(tmp.c_str(), path.c_str()) == 0, "cannot rename %s to %s: %s", tmp.c_str(), path.c_str(),
                std::strerror(errno));
    } catch (...) {
        std::remove(tmp.c_str());
        throw;
    }
    const std::string folder = std::filesystem::path(path).parent_path();
    sync_folder(folder.empty() ? "." : folder);
}

void open_standard_files() {
    for (int fd = 0; fd <= 2; fd++)
        // The lowest number that is free is `fd`. Without a /dev/null any file does that cannot be written to.
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0 && open("/", O_RDONLY) < 0) _exit(kExitUsage);
}

void check_written(const std::string& path, uint64_t size_bytes, uint64_t hash) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    require(fd >= 0, "cannot read %s back: %s", path.c_str(), std::strerror(errno));
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    std::vector<char> piece(size_t(1) << 20);
    Hasher found;
    uint64_t found_bytes = 0;
    // Not mapped: a disk's error is then an errno.
    ssize_t n;
    while ((n = read(fd, piece.data(), piece.size())) > 0 || (n < 0 && errno == EINTR)) {
        if (n < 0) continue;
        found.update(piece.data(), size_t(n));
        found_bytes += uint64_t(n);
    }
    const int error = errno;
    close(fd);
    require(n == 0, "cannot read %s back: %s", path.c_str(), std::strerror(error));
    require(found_bytes == size_bytes && found.digest() == hash,
            "%s holds something else than was written to it just now (%llu bytes, expected %llu with the checksum %s): "
            "another program writes to it, or disk or memory are failing; checkpoints from before are kept",
            path.c_str(), static_cast<unsigned long long>(found_bytes), static_cast<unsigned long long>(size_bytes),
            hex64(hash).c_str());
}

void make_folders(const std::string& path) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    require(!error, "cannot create the folder %s: %s", path.c_str(), error.message().c_str());
}

void sync_folder(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY);
    require(fd >= 0, "cannot open the folder %s: %s", path.c_str(), std::strerror(errno));
    const int result = fsync(fd);
    const int error = errno;
    close(fd);
    require(result == 0, "cannot sync the folder %s: %s", path.c_str(), std::strerror(error));
}

FileWriter::FileWriter(const std::string& path)
    : path_(path), fd_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
    require(fd_ >= 0, "cannot write %s: %s", path.c_str(), std::strerror(errno));
}

FileWriter::~FileWriter() {
    if (fd_ >= 0) close(fd_);
}

void FileWriter::write(const void* data, size_t bytes) {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t written = ::write(fd_, from, bytes);
        if (written < 0 && errno == EINTR) continue;
        require(written > 0, "cannot write %s: %s", path_.c_str(), std::strerror(errno));
        from += written;
        bytes -= size_t(written);
    }
}

void FileWriter::sync_and_close() {
    require(fsync(fd_) == 0, "cannot write %s: %s", path_.c_str(), std::strerror(errno));
    const int fd = std::exchange(fd_, -1);
    require(close(fd) == 0, "cannot write %s: %s", path_.c_str(), std::strerror(errno));
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    require(fd >= 0, "cannot read %s: %s", path.c_str(), std::strerror(errno));
    struct stat info;
    const bool is_file = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    void* data =
        is_file && info.st_size > 0 ? mmap(nullptr, size_t(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0) : nullptr;
    close(fd);
    require(is_file, "cannot read %s: not a regular file", path.c_str());
    require(data != MAP_FAILED, "cannot read %s: %s", path.c_str(), std::strerror(errno));
    data_ = static_cast<const char*>(data);
    size_ = size_t(info.st_size);
}

MappedFile::~MappedFile() {
    if (data_) munmap(const_cast<char*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

std::vector<std::string> files_matching(const std::string& pattern) {
    glob_t found;
    std::vector<std::string> paths;
    if (glob(pattern.c_str(), 0, nullptr, &found) == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    globfree(&found);
    return paths;
}
