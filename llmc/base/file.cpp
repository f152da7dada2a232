// See file.h. Every POSIX call is checked.
#include "llmc/base/file.h"
#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <utility>
#include "llmc/base/check.h"         // require
#include "llmc/base/hash.h"          // Hasher, hex64
#include "llmc/platform/platform.h"  // sync_to_disk, drop_cached_pages

std::string reason_of(int error) {
    const std::string text = std::strerror(error);
    if (error == EACCES || error == EPERM) return text + "; change its owner or mode, or use another path";
    if (error == EROFS) return text + "; use a path on another disk";
    if (error == ENOSPC || error == EDQUOT) return text + "; delete what is not needed there, or use another disk";
    if (error == ENAMETOOLONG) return text + "; use a shorter path";
    if (error == EMFILE) return text + "; raise the limit with ulimit -n";
    return text;
}

static const char* kind_of(mode_t mode) {
    return S_ISDIR(mode)    ? "a folder"
           : S_ISFIFO(mode) ? "a pipe"
           : S_ISSOCK(mode) ? "a socket"
           : S_ISREG(mode)  ? "a file"
                            : "a device";
}

std::string read_file(const std::string& path) {
    const MappedFile file(path);
    return std::string(file.data(), file.size());
}

void write_file_atomically(const std::string& path, std::string_view content) {
    // The rename below would put a file where /dev/null was.
    struct stat info;
    require(stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode), "cannot write %s: it is %s, not a regular file",
            path.c_str(), kind_of(info.st_mode));
    const std::string tmp = path + ".tmp";
    try {
        FileWriter file(tmp);
        file.write(content.data(), content.size());
        file.sync_and_close();
        require(std::rename(tmp.c_str(), path.c_str()) == 0, "cannot rename %s to %s: %s", tmp.c_str(), path.c_str(),
                reason_of(errno).c_str());
    } catch (...) {
        std::remove(tmp.c_str());
        throw;
    }
    const std::string folder = std::filesystem::path(path).parent_path();
    sync_folder(folder.empty() ? "." : folder);
}

void open_standard_files() {
    for (int fd = 0; fd <= 2; fd++)
        // open() returns the lowest free descriptor, which is `fd`. If there is no /dev/null, any file that cannot be
        // written to will do.
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0 && open("/", O_RDONLY) < 0) _exit(kExitUsage);
}

void check_written(const std::string& path, uint64_t size_bytes, uint64_t hash) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    require(fd >= 0, "cannot read %s back: %s", path.c_str(), reason_of(errno).c_str());
    drop_cached_pages(fd);
    std::vector<char> piece(size_t(1) << 20);
    Hasher found;
    uint64_t found_bytes = 0;
    // Read, not mapped, so that a disk error is an errno.
    ssize_t n;
    while ((n = read(fd, piece.data(), piece.size())) > 0 || (n < 0 && errno == EINTR)) {
        if (n < 0) continue;
        found.update(piece.data(), size_t(n));
        found_bytes += uint64_t(n);
    }
    const int error = errno;
    close(fd);
    require(n == 0, "cannot read %s back: %s", path.c_str(), reason_of(error).c_str());
    require(found_bytes == size_bytes && found.digest() == hash,
            "%s holds something else than was written to it just now (%lu bytes, expected %lu with the checksum %s): "
            "another program writes to it, or disk or memory are failing; checkpoints from before are kept",
            path.c_str(), found_bytes, size_bytes, hex64(hash).c_str());
}

void make_folders(const std::string& path) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    require(!error, "cannot create the folder %s: %s", path.c_str(), reason_of(error.value()).c_str());
}

void sync_folder(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY);
    require(fd >= 0, "cannot open the folder %s: %s", path.c_str(), reason_of(errno).c_str());
    const int result = sync_to_disk(fd);
    const int error = errno;
    close(fd);
    require(result == 0, "cannot sync the folder %s: %s", path.c_str(), reason_of(error).c_str());
}

FileWriter::FileWriter(const std::string& path)
    : path_(path), fd_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
    require(fd_ >= 0, "cannot write %s: %s", path.c_str(), reason_of(errno).c_str());
}

FileWriter::~FileWriter() {
    if (fd_ >= 0) close(fd_);
}

void FileWriter::write(const void* data, size_t bytes) {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t written = ::write(fd_, from, bytes);
        if (written < 0 && errno == EINTR) continue;
        require(written > 0, "cannot write %s: %s", path_.c_str(), reason_of(errno).c_str());
        from += written;
        bytes -= size_t(written);
    }
}

void FileWriter::sync_and_close() {
    require(sync_to_disk(fd_) == 0, "cannot write %s: %s", path_.c_str(), reason_of(errno).c_str());
    const int fd = std::exchange(fd_, -1);
    require(close(fd) == 0, "cannot write %s: %s", path_.c_str(), reason_of(errno).c_str());
}

namespace {
// What the SIGBUS handler reads: it can neither lock nor allocate. A slot is in use if its size is not 0, so the size
// is written last and cleared first.
struct Mapped {
    std::atomic<bool> taken = false, cut = false;
    std::atomic<size_t> size = 0;
    const char* data = nullptr;
    IfCut if_cut = IfCut::end;
    char path[1000] = "";
};
constexpr int kMostMapped = 4096;  // beyond this, the handler cannot name the file
Mapped mapped_files[kMostMapped];

int take_slot(const char* data, size_t size, IfCut if_cut, const std::string& path) {
    for (int i = 0; i < kMostMapped; i++) {
        Mapped& slot = mapped_files[i];
        if (slot.taken.exchange(true)) continue;
        slot.data = data;
        slot.if_cut = if_cut;
        slot.cut = false;
        slot.path[path.copy(slot.path, sizeof slot.path - 1)] = '\0';
        slot.size = size;
        return i;
    }
    return -1;
}

void give_slot_back(int i) {
    mapped_files[i].size = 0;
    mapped_files[i].taken = false;
}

void say(const char* text) {
    for (size_t left = std::strlen(text); left > 0;) {
        const ssize_t written = write(STDERR_FILENO, text, left);
        if (written <= 0) return;
        text += written;
        left -= size_t(written);
    }
}

// Calls only async-signal-safe functions.
void on_bus_error(int, siginfo_t* info, void*) {
    const char* const at = static_cast<const char*>(info->si_addr);
    for (Mapped& slot : mapped_files) {
        const size_t size = slot.size;
        if (size == 0 || at < slot.data || at >= slot.data + size) continue;
        const size_t page = size_t(sysconf(_SC_PAGESIZE)), begin = size_t(at - slot.data) / page * page;
        if (slot.if_cut == IfCut::read_zeros && mmap(const_cast<char*>(slot.data) + begin, size - begin, PROT_READ,
                                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED) {
            slot.cut = true;
            return;
        }
        say("error: ");
        say(slot.path);
        say(" was cut short, or cannot be read any more, while this program read it: put the whole file back, and "
            "start again\n");
        _exit(kExitUsage);
    }
    say("error: bus error: memory that was promised is not there. Shared memory may be full (df /dev/shm; in a "
        "container --shm-size or --ipc=host), or a disk with a mapped file failing\n");
    std::signal(SIGBUS, SIG_DFL);  // the access faults again and ends the program
}
}  // namespace

void catch_cut_files() {
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &action, nullptr);
}

MappedFile::MappedFile(const std::string& path, IfCut if_cut) : path_(path) {
    // O_NONBLOCK: opening a pipe would otherwise wait for a writer. It has no effect on regular files.
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const int error = errno;
    struct stat info = {};
    const bool found = (fd >= 0 ? fstat(fd, &info) : stat(path.c_str(), &info)) == 0;  // sockets cannot be opened
    const bool is_file = found && S_ISREG(info.st_mode);
    void* data = fd >= 0 && is_file && info.st_size > 0
                     ? mmap(nullptr, size_t(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0)
                     : nullptr;
    const int map_error = errno;
    if (fd >= 0) close(fd);
    require(!found || is_file || (fd < 0 && error == EACCES),
            "cannot read %s: it is %s, not a regular file; copy what it holds to a file", path.c_str(),
            kind_of(info.st_mode));
    require(fd >= 0, "cannot read %s: %s", path.c_str(), reason_of(error).c_str());
    require(data != MAP_FAILED, "cannot read %s: %s", path.c_str(), reason_of(map_error).c_str());
    data_ = static_cast<const char*>(data);
    size_ = size_t(info.st_size);
    device_ = info.st_dev;
    inode_ = info.st_ino;
    if (size_ > 0) slot_ = take_slot(data_, size_, if_cut, path);
}

MappedFile::~MappedFile() {
    if (slot_ >= 0) give_slot_back(slot_);
    if (data_) munmap(const_cast<char*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(device_, other.device_);
    std::swap(inode_, other.inode_);
    std::swap(slot_, other.slot_);
    return *this;
}

void MappedFile::check_uncut() const {
    // Within its last page a truncated file reads as zeros without a signal.
    struct stat now;
    const bool is_shorter =
        stat(path_.c_str(), &now) == 0 && now.st_dev == device_ && now.st_ino == inode_ && size_t(now.st_size) < size_;
    require(!is_shorter && !(slot_ >= 0 && mapped_files[slot_].cut),
            "%s was cut short, or cannot be read any more, while it was in use (it had %zu bytes): put the whole file "
            "back; a file that is in use can be replaced by mv, but not by cp",
            path_.c_str(), size_);
}

static std::string without_wildcards(const std::string& text) {
    std::string escaped;
    for (const char c : text) escaped += (std::strchr("*?[\\", c) ? "\\" : "") + std::string(1, c);
    return escaped;
}

std::vector<std::string> files_matching(const std::string& pattern) {
    std::error_code ignored;
    if (std::filesystem::exists(pattern, ignored)) return {pattern};
    const std::string folder = std::filesystem::path(pattern).parent_path();
    const bool is_folder = !folder.empty() && std::filesystem::is_directory(folder, ignored);
    const std::string asked = is_folder ? without_wildcards(folder) + pattern.substr(folder.size()) : pattern;
    glob_t found;
    std::vector<std::string> paths;
    if (glob(asked.c_str(), 0, nullptr, &found) == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    globfree(&found);
    return paths;
}
