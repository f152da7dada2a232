/*
Between a program and its files: with LD_PRELOAD it counts the system calls that change files below a folder, and at one
of them does what a crash, a full disk or a bad one would. Compiled and used by dev/torture.

  TORTURE_DIR=FOLDER     which files
  TORTURE_COUNT=FILE     how many calls there were, when the program ends by itself
  TORTURE_TRACE=FILE     each call with all its data, for crash_states.py, which has the form
  TORTURE_AT=N           the N-th call, from 1 on, is the one to which TORTURE_DO is done:
  TORTURE_DO=before      SIGKILL before it
             inside      SIGKILL when half of what it writes is written
             after       SIGKILL after it
             eio         it fails: EIO
             short       half of what it writes is written, and that is what it returns
             enospc      it and all later ones fail, the disk is full: ENOSPC
  TORTURE_SLOW_US=N      every call takes so long
  TORTURE_CLOCK=SEED     the wall clock jumps back and forth by years

Built with: g++ -shared -fPIC -O1 system_calls.cpp -o FILE.so -ldl
*/
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

namespace {

template <class F>
F* real(const char* name) {
    return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}
#define REAL(name) real<decltype(name)>(#name)

struct Settings {
    std::string folder, what;
    long at = 0, slow_us = 0;
    int trace = -1;
    std::string count_path;

    Settings() {
        const auto text = [](const char* name) {
            const char* value = getenv(name);
            return std::string(value ? value : "");
        };
        folder = text("TORTURE_DIR");
        what = text("TORTURE_DO");
        at = atol(text("TORTURE_AT").c_str());
        slow_us = atol(text("TORTURE_SLOW_US").c_str());
        count_path = text("TORTURE_COUNT");
        if (const std::string path = text("TORTURE_TRACE"); !path.empty()) {
            const int fd = REAL(open)(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
            trace = fcntl(fd, F_DUPFD_CLOEXEC, 900);
            REAL(close)(fd);
        }
    }
};
// Never destroyed: other threads may still write when the program ends.
Settings& settings() {
    static Settings& all = *new Settings;
    return all;
}
std::recursive_mutex& lock() {
    static std::recursive_mutex& it = *new std::recursive_mutex;
    return it;
}
long calls = 0;
bool disk_is_full = false;

struct AtEnd {
    ~AtEnd() {
        const std::string& path = settings().count_path;
        if (path.empty()) return;
        FILE* file = fopen(path.c_str(), "w");
        if (file) fprintf(file, "%ld\n", calls), fclose(file);
    }
} at_end;

std::string absolute(int folder_fd, const char* path) {
    if (!path) return "";
    if (path[0] == '/') return path;
    char base[PATH_MAX] = "";
    const std::string link = folder_fd == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/" + std::to_string(folder_fd);
    const ssize_t n = readlink(link.c_str(), base, sizeof base - 1);
    return n < 0 ? "" : std::string(base, size_t(n)) + "/" + path;
}
std::string path_of(int fd) {
    char path[PATH_MAX] = "";
    const ssize_t n = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path - 1);
    return n < 0 ? "" : std::string(path, size_t(n));
}
bool is_ours(const std::string& path) {
    const std::string& folder = settings().folder;
    return !folder.empty() && path.compare(0, folder.size(), folder) == 0 &&
           (path.size() == folder.size() || path[folder.size()] == '/');
}

[[noreturn]] void die() {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

// One call that changes files. `half` does half of it and says how much, or is empty where there is no half.
// "KIND PATH\tOTHER\tNUMBER\tBYTES\n" and the bytes, if it was done.
class Point {
public:
    Point() : guard_(lock()) {
        calls++;
        const Settings& all = settings();
        if (all.slow_us) usleep(useconds_t(all.slow_us));
        is_it_ = calls == all.at;
        if (is_it_ && all.what == "before") die();
        if (is_it_ && all.what == "enospc") disk_is_full = true;
    }
    // errno if it fails
    int fault(const std::string& kind = "", const std::string& to = "") const {
        if (disk_is_full) return ENOSPC;
        const Settings& all = settings();
        if (is_it_ && all.what == "eio") return EIO;
        if (!all.at || calls < all.at) return 0;
        const bool removes = kind == "unlink" || kind == "rmdir" || to.find(".tmp") != std::string::npos;
        if (all.what == "eacces" && removes && kind != "symlink") return EACCES;
        if (all.what == "enotempty" && kind == "rmdir") return ENOTEMPTY;
        return all.what == "eperm" && kind == "symlink" ? EPERM : 0;
    }
    bool is_halved() const { return is_it_ && (settings().what == "inside" || settings().what == "short"); }
    void halved() const {
        if (settings().what == "inside") die();
    }
    void done(const char* kind, const std::string& path, const std::string& other = "", long number = 0,
              const void* data = nullptr, size_t bytes = 0) const {
        if (const int fd = settings().trace; fd >= 0) {
            const std::string line = std::string(kind) + " " + path + "\t" + other + "\t" + std::to_string(number) +
                                     "\t" + std::to_string(bytes) + "\n";
            const auto put = [fd](const void* from, size_t n) {
                if (REAL(write)(fd, from, n) != ssize_t(n)) die();
            };
            put(line.data(), line.size());
            if (bytes) put(data, bytes);
        }
        over();
    }
    // Done or failed: a file that should be removed and is not there, say.
    void over() const {
        if (is_it_ && (settings().what == "after" || settings().what == "inside")) die();
    }

private:
    std::lock_guard<std::recursive_mutex> guard_;
    bool is_it_ = false;
};

int failed(int error) {
    errno = error;
    return -1;
}

template <class Open>
int opened(const std::string& path, int flags, Open&& open) {
    if (!(flags & (O_CREAT | O_TRUNC)) || !is_ours(path)) return open();
    struct stat info;
    const bool is_new = stat(path.c_str(), &info) != 0;
    if (!is_new && !(flags & O_TRUNC)) return open();
    const Point point;
    if (const int error = point.fault()) return failed(error);
    const int fd = open();
    if (fd >= 0) point.done(is_new ? "create" : "truncate", path);
    return fd;
}

template <class Write>
ssize_t written(int fd, const void* data, size_t bytes, off_t at, Write&& write) {
    const std::string path = path_of(fd);
    if (bytes == 0 || !is_ours(path)) return write(bytes);
    const Point point;
    if (const int error = point.fault()) return failed(error);
    off_t offset = at;
    if (at < 0) {
        const bool appends = fcntl(fd, F_GETFL) & O_APPEND;
        struct stat info = {};
        fstat(fd, &info);
        offset = appends ? info.st_size : lseek(fd, 0, SEEK_CUR);
    }
    const ssize_t n = write(point.is_halved() ? (bytes + 1) / 2 : bytes);
    if (point.is_halved()) point.halved();
    if (n > 0) point.done("write", path, "", offset, data, size_t(n));
    return n;
}

template <class Call>
int changed(const char* kind, const std::string& path, const std::string& other, long number, Call&& call) {
    if (!is_ours(path)) return call();
    const Point point;
    if (const int error = point.fault(kind, other)) return failed(error);
    const int result = call();
    if (result == 0) point.done(kind, path, other, number);
    point.over();
    return result;
}

int mode_of(int flags, va_list arguments) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, int) : 0; }

}  // namespace

#define MODE                                    \
    va_list arguments;                          \
    va_start(arguments, flags);                 \
    const int mode = mode_of(flags, arguments); \
    va_end(arguments)

extern "C" {

int open(const char* path, int flags, ...) {
    MODE;
    return opened(absolute(AT_FDCWD, path), flags, [&] { return REAL(open)(path, flags, mode); });
}
int open64(const char* path, int flags, ...) {
    MODE;
    return opened(absolute(AT_FDCWD, path), flags, [&] { return REAL(open64)(path, flags, mode); });
}
int openat(int folder, const char* path, int flags, ...) {
    MODE;
    return opened(absolute(folder, path), flags, [&] { return REAL(openat)(folder, path, flags, mode); });
}
int openat64(int folder, const char* path, int flags, ...) {
    MODE;
    return opened(absolute(folder, path), flags, [&] { return REAL(openat64)(folder, path, flags, mode); });
}
ssize_t write(int fd, const void* data, size_t bytes) {
    return written(fd, data, bytes, -1, [&](size_t n) { return REAL(write)(fd, data, n); });
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t at) {
    return written(fd, data, bytes, at, [&](size_t n) { return REAL(pwrite)(fd, data, n, at); });
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t at) {
    return written(fd, data, bytes, at, [&](size_t n) { return REAL(pwrite64)(fd, data, n, at); });
}
int fsync(int fd) {
    return changed("fsync", path_of(fd), "", 0, [&] { return REAL(fsync)(fd); });
}
int fdatasync(int fd) {
    return changed("fsync", path_of(fd), "", 0, [&] { return REAL(fdatasync)(fd); });
}
int ftruncate(int fd, off_t size) {
    return changed("resize", path_of(fd), "", size, [&] { return REAL(ftruncate)(fd, size); });
}
int ftruncate64(int fd, off64_t size) {
    return changed("resize", path_of(fd), "", size, [&] { return REAL(ftruncate64)(fd, size); });
}
int rename(const char* from, const char* to) {
    return changed("rename", absolute(AT_FDCWD, from), absolute(AT_FDCWD, to), 0,
                   [&] { return REAL(rename)(from, to); });
}
int symlink(const char* target, const char* path) {
    return changed("symlink", absolute(AT_FDCWD, path), target, 0, [&] { return REAL(symlink)(target, path); });
}
int mkdir(const char* path, mode_t mode) {
    return changed("mkdir", absolute(AT_FDCWD, path), "", 0, [&] { return REAL(mkdir)(path, mode); });
}
int unlink(const char* path) {
    return changed("unlink", absolute(AT_FDCWD, path), "", 0, [&] { return REAL(unlink)(path); });
}
int rmdir(const char* path) {
    return changed("rmdir", absolute(AT_FDCWD, path), "", 0, [&] { return REAL(rmdir)(path); });
}
int remove(const char* path) {
    struct stat info;
    const bool is_folder = lstat(path, &info) == 0 && S_ISDIR(info.st_mode);
    return changed(is_folder ? "rmdir" : "unlink", absolute(AT_FDCWD, path), "", 0, [&] { return REAL(remove)(path); });
}
int unlinkat(int folder, const char* path, int flags) {
    return changed(flags & AT_REMOVEDIR ? "rmdir" : "unlink", absolute(folder, path), "", 0,
                   [&] { return REAL(unlinkat)(folder, path, flags); });
}

int clock_gettime(clockid_t clock, struct timespec* time) {
    static const auto ask = REAL(clock_gettime);
    static const char* const seed = getenv("TORTURE_CLOCK");
    const int result = ask(clock, time);
    if (seed && clock == CLOCK_REALTIME && result == 0) {
        static std::atomic<uint64_t> state = strtoull(seed, nullptr, 10) * 2 + 1;
        uint64_t x = state.load();
        while (!state.compare_exchange_weak(x, x * 6364136223846793005ULL + 1442695040888963407ULL)) {
        }
        constexpr long kYear = 365L * 24 * 3600;
        time->tv_sec += long(x >> 33) % (40 * kYear) - 20 * kYear;
    }
    return result;
}
}
