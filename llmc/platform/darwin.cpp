// See platform.h and sockets.h: Darwin, the kernel of macOS. Compiled by the public man pages, and never run.
#include <errno.h>
#include <fcntl.h>
#include <libproc.h>
#include <limits.h>
#include <mach-o/dyld.h>
#include <netinet/tcp.h>
#include <pthread/qos.h>
#include <stdlib.h>
#include <sys/event.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysctl.h>
#include <unistd.h>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <thread>
#include "llmc/platform/platform.h"
#include "llmc/platform/sockets.h"

// ---- this program and its processes --------------------------------------------------------------------------------

namespace {

std::string fact_text(const char* name) {
    char value[256] = "";
    size_t bytes = sizeof value - 1;
    return sysctlbyname(name, value, &bytes, nullptr, 0) == 0 ? value : "";
}
long fact(const char* name) {
    int64_t value = 0;  // the kernel writes four or eight bytes of it
    size_t bytes = sizeof value;
    return sysctlbyname(name, &value, &bytes, nullptr, 0) == 0 ? long(value) : 0;
}

bool close_on_exec(int fd) { return fcntl(fd, F_SETFD, FD_CLOEXEC) == 0; }

}  // namespace

std::string program_path() {
    char given[PATH_MAX], real[PATH_MAX];
    uint32_t bytes = sizeof given;
    return _NSGetExecutablePath(given, &bytes) == 0 && realpath(given, real) ? real : "";
}
void execute_again(char* const* arguments) { execv(program_path().c_str(), arguments); }
void set_process_name() {}
void end_with_parent() {}
void disable_core_dumps() {
    const rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
}

std::optional<uint64_t> start_of(pid_t process) {
    proc_bsdinfo info = {};
    if (proc_pidinfo(process, PROC_PIDTBSDINFO, 0, &info, sizeof info) == sizeof info)
        return info.pbi_status == SZOMB ? 0 : info.pbi_start_tvsec * 1'000'000 + info.pbi_start_tvusec;
    if (errno == ESRCH) return 0;
    return {};
}

// There is no sigtimedwait().
int next_signal(const sigset_t& signals, double timeout_s) {
    // An ignored signal does not stay pending, even if it is blocked, and SIGCHLD is ignored by default.
    struct sigaction kept = {};
    kept.sa_handler = [](int) {};
    if (sigismember(&signals, SIGCHLD)) sigaction(SIGCHLD, &kept, nullptr);
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
    for (;;) {
        sigset_t pending;
        sigemptyset(&pending);
        sigpending(&pending);
        for (int signal = 1; signal < NSIG; signal++) {
            sigset_t one;
            sigemptyset(&one);
            sigaddset(&one, signal);
            int taken = 0;
            if (sigismember(&signals, signal) && sigismember(&pending, signal) && sigwait(&one, &taken) == 0)
                return taken;
        }
        if (timeout_s >= 0 && std::chrono::steady_clock::now() > end) return 0;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
}

// ---- processor -----------------------------------------------------------------------------------------------------

std::vector<int> given_cores() {
    std::vector<int> cores(std::thread::hardware_concurrency());
    std::iota(cores.begin(), cores.end(), 0);
    return cores;
}
void use_given_cores() {}
void let_threads_use_given_cores() {}
void run_when_idle() { pthread_set_qos_class_self_np(QOS_CLASS_BACKGROUND, 0); }

std::string cpuinfo() { return "model name\t: " + fact_text("machdep.cpu.brand_string") + "\n"; }
long l2_bytes_of_core() { return fact("hw.l2cachesize"); }  // of a cluster of cores
bool permit_amx() { return false; }

// ---- memory and files ----------------------------------------------------------------------------------------------

size_t peak_memory_bytes() {
    rusage usage = {};
    return getrusage(RUSAGE_SELF, &usage) == 0 ? size_t(usage.ru_maxrss) : 0;
}
void prefer_huge_pages(void*, size_t) {}
std::string kernel_identity() { return fact_text("kern.bootsessionuuid"); }

// A killed process leaves what it has not forgotten yet until the next boot.
int create_shared_memory(size_t bytes, std::string& name) {
    uint64_t random = 0;
    if (getentropy(&random, sizeof random) != 0) return -1;
    char text[32];  // 31 characters at most
    std::snprintf(text, sizeof text, "/anvil%016llx", static_cast<unsigned long long>(random));
    const int fd = shm_open(text, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0) return -1;
    if (ftruncate(fd, off_t(bytes)) != 0) {  // no second one: the size is fixed
        const int error = errno;
        shm_unlink(text), close(fd);
        errno = error;
        return -1;
    }
    close_on_exec(fd);
    name = text;
    return fd;
}

int open_shared_memory(const std::string& name, size_t bytes, std::string& why) {
    if (name.size() != 22 || !name.starts_with("/anvil")) return why = "expected the name of memory", -1;
    const int fd = shm_open(name.c_str(), O_RDWR, 0);
    struct stat file = {};
    if (fd < 0)
        why = std::string("it cannot be opened: ") + std::strerror(errno);
    else if (fstat(fd, &file) != 0 || file.st_uid != geteuid())
        why = "it is no memory of this user";
    else if (uint64_t(file.st_size) < bytes)
        why = "it is smaller than expected";
    if (why.empty()) return close_on_exec(fd), fd;
    if (fd >= 0) close(fd);
    return -1;
}

void forget_shared_memory(const std::string& name) { shm_unlink(name.c_str()); }

char* map_shared(int fd, size_t bytes, bool) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return data == MAP_FAILED ? nullptr : static_cast<char*>(data);
}

// Public calls between processes (os_sync_wait_on_address) are of macOS 14.4; a short sleep serves all.
void sleep_while(std::atomic<uint32_t>& word, uint32_t value, int timeout_ms) {
    using Clock = std::chrono::steady_clock;
    for (const auto end = Clock::now() + std::chrono::milliseconds(timeout_ms); word == value && Clock::now() < end;)
        std::this_thread::sleep_for(std::chrono::microseconds(20));
}
void wake_all(std::atomic<uint32_t>&) {}

// fsync() alone leaves the data in the disk's cache. Not every file system has F_FULLFSYNC.
int sync_to_disk(int fd) { return fcntl(fd, F_FULLFSYNC) == 0 ? 0 : fsync(fd); }
void drop_cached_pages(int fd) { fcntl(fd, F_NOCACHE, 1); }
std::string change_times(const struct stat& file) {
    const auto text = [](const timespec& at) { return std::to_string(at.tv_sec) + "." + std::to_string(at.tv_nsec); };
    return text(file.st_mtimespec) + ":" + text(file.st_ctimespec);
}

// ---- sockets -------------------------------------------------------------------------------------------------------

namespace {
// Not atomic: what another thread starts in between gets the file, too.
int prepared(int fd, bool blocks) {
    if (fd < 0) return -1;
    const int on = 1, flags = fcntl(fd, F_GETFL);
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
    fcntl(fd, F_SETFL, blocks ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
    close_on_exec(fd);
    return fd;
}
}  // namespace

int new_tcp_socket(int family) { return prepared(socket(family, SOCK_STREAM, 0), false); }
// Unlike Linux's, it would not block if the listener does not.
int accept_tcp(int listener, sockaddr* from, socklen_t* length) {
    return prepared(accept(listener, from, length), true);
}
int new_pipe(int (&ends)[2]) {
    if (pipe(ends) != 0) return -1;
    close_on_exec(ends[0]), close_on_exec(ends[1]);
    return 0;
}
const int kNoSigpipe = 0;

void limit_silence(int fd, int idle_s, int interval_s, int probes, int unacknowledged_s) {
    const auto set = [fd](int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof value); };
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
    set(IPPROTO_TCP, TCP_KEEPALIVE, idle_s);
    set(IPPROTO_TCP, TCP_KEEPINTVL, interval_s);
    set(IPPROTO_TCP, TCP_KEEPCNT, probes);
    set(IPPROTO_TCP, TCP_RXT_CONNDROPTIME, unacknowledged_s);
}

OtherEnd other_end(int, bool) { return OtherEnd::elsewhere; }

namespace {
constexpr uint64_t kHangup = uint64_t(1) << 63;  // a bit of tags
}  // namespace

Poller::Poller() : fd_(kqueue()) {
    if (fd_ >= 0) close_on_exec(fd_);
}
Poller::~Poller() {
    if (fd_ >= 0) close(fd_);
}

bool Poller::watch(int fd, uint64_t tag, For what) {
    const bool ends = what == For::hangup;
    struct kevent change = {};
    change.ident = uintptr_t(fd), change.filter = EVFILT_READ;
    change.flags = what == For::nothing ? EV_DELETE : ends ? EV_ADD | EV_CLEAR : EV_ADD;
    // A low-water mark that little data reaches.
    change.fflags = ends ? NOTE_LOWAT : 0, change.data = ends ? INT_MAX : 0;
    change.udata = reinterpret_cast<void*>(ends ? tag | kHangup : tag);
    return kevent(fd_, &change, 1, nullptr, 0, nullptr) == 0 || (what == For::nothing && errno == ENOENT);
}

std::vector<uint64_t> Poller::wait(size_t most, int wait_ms) const {
    std::vector<struct kevent> events(most);
    const timespec limit = {wait_ms / 1000, wait_ms % 1000 * 1'000'000L};
    const int n = kevent(fd_, nullptr, 0, events.data(), int(most), wait_ms < 0 ? nullptr : &limit);
    std::vector<uint64_t> tags;
    for (int i = 0; i < n; i++) {
        const auto tag = uint64_t(reinterpret_cast<uintptr_t>(events[size_t(i)].udata));
        if (!(tag & kHangup) || events[size_t(i)].flags & EV_EOF) tags.push_back(tag & ~kHangup);
    }
    return tags;
}
