// See platform.h and sockets.h: Linux, with glibc.
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include "llmc/platform/platform.h"
#include "llmc/platform/sockets.h"

// ---- this program and its processes --------------------------------------------------------------------------------

namespace {
constexpr const char* kProgram = "/proc/self/exe";

__attribute__((format(printf, 1, 2))) std::string text(const char* form, ...) {
    char written[256];
    va_list values;
    va_start(values, form);
    std::vsnprintf(written, sizeof written, form, values);
    va_end(values);
    return written;
}
}  // namespace

std::string program_path() {
    std::error_code ignored;
    return std::filesystem::read_symlink(kProgram, ignored);
}
void execute_again(char* const* arguments) { execv(kProgram, arguments); }
void set_process_name() { prctl(PR_SET_NAME, program_invocation_short_name); }
void end_with_parent() { prctl(PR_SET_PDEATHSIG, SIGKILL); }
void disable_core_dumps() { prctl(PR_SET_DUMPABLE, 0); }

// Fields 3 and 22 of /proc/PID/stat. Field 2 is a name in parentheses, which may contain any character.
std::optional<uint64_t> start_of(pid_t process) {
    if (kill(process, 0) != 0 && errno == ESRCH) return 0;
    std::FILE* file = std::fopen(text("/proc/%d/stat", int(process)).c_str(), "re");
    if (!file) return {};  // too many open files here, say
    char fields[1024];
    fields[std::fread(fields, 1, sizeof fields - 1, file)] = 0;
    std::fclose(file);
    const char* after_name = std::strrchr(fields, ')');
    constexpr const char* kForm =
        ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %" SCNu64;
    char state = 0;
    uint64_t start = 0;
    if (!after_name || std::sscanf(after_name, kForm, &state, &start) != 2) return {};
    return state == 'Z' || state == 'X' ? 0 : start;
}

int next_signal(const sigset_t& signals, double timeout_s) {
    const auto seconds = time_t(timeout_s);
    const timespec wait = {seconds, long((timeout_s - double(seconds)) * 1e9)};
    const int signal = sigtimedwait(&signals, nullptr, timeout_s < 0 ? nullptr : &wait);
    return signal < 0 && errno == EAGAIN ? 0 : signal;
}

// ---- processor -----------------------------------------------------------------------------------------------------

namespace {
cpu_set_t noted;  // empty: not known

// The dynamic linker calls this before the constructors of libraries, of which libgomp's binds the main thread. Neither
// the C library nor a sanitizer has started, so this is one system call.
#if __has_attribute(disable_sanitizer_instrumentation)  // clang: no_sanitize("memory") still calls for its shadow
__attribute__((disable_sanitizer_instrumentation))
#else
__attribute__((no_sanitize("address", "thread", "undefined")))
#endif
void note_cores(int, char**, char**) {
    syscall(SYS_sched_getaffinity, 0, sizeof noted, &noted);
}
__attribute__((section(".preinit_array"), used)) void (*const before_libraries)(int, char**, char**) = note_cores;

std::string content_of(const char* path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
}
}  // namespace

std::vector<int> given_cores() {
    cpu_set_t set = noted;
    if (CPU_COUNT(&set) == 0 && sched_getaffinity(0, sizeof set, &set) != 0) CPU_ZERO(&set);  // more than 1024 cores
    std::vector<int> cores;
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &set)) cores.push_back(core);
    return cores;
}

void use_given_cores() {
    if (CPU_COUNT(&noted) > 0) sched_setaffinity(0, sizeof noted, &noted);
}

void let_threads_use_given_cores() {
    pthread_attr_t attributes;
    cpu_set_t now;
    if (CPU_COUNT(&noted) == 0 || sched_getaffinity(0, sizeof now, &now) != 0 || CPU_EQUAL(&now, &noted)) return;
    if (pthread_getattr_default_np(&attributes) != 0) return;
    if (pthread_attr_setaffinity_np(&attributes, sizeof noted, &noted) == 0) pthread_setattr_default_np(&attributes);
    pthread_attr_destroy(&attributes);
}

void run_when_idle() {
    const sched_param none = {};
    sched_setscheduler(0, SCHED_IDLE, &none);  // only this thread
}

std::string cpuinfo() { return content_of("/proc/cpuinfo"); }
long l2_bytes_of_core() { return std::max(0L, sysconf(_SC_LEVEL2_CACHE_SIZE)); }

bool permit_amx() {
#if defined(__x86_64__)
    // One request permits tiles for the whole process, including threads created later.
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, Linux 5.16
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
    return false;
#endif
}

// ---- memory and files ----------------------------------------------------------------------------------------------

size_t peak_memory_bytes() {
    const std::string status = content_of("/proc/self/status"), name = "\nVmHWM:";
    const size_t at = status.find(name);  // "VmHWM:     1234 kB"
    return at == std::string::npos ? 0 : std::stoull(status.substr(at + name.size())) * 1024;
}

void prefer_huge_pages(void* data, size_t bytes) { madvise(data, bytes, MADV_HUGEPAGE); }

std::string kernel_identity() {
    std::string all = content_of("/proc/sys/kernel/random/boot_id");  // empty where /proc is hidden
    // Such links read "net:[4026531840]".
    for (const char* space : {"net", "pid"}) {
        std::error_code hidden;
        all += "\n" + std::filesystem::read_symlink(std::string("/proc/self/ns/") + space, hidden).string();
    }
    return all;
}

// An anonymous file, which other processes open as /proc/PID/fd/N.
int create_shared_memory(size_t bytes, std::string& name) {
    const int fd = memfd_create("anvil", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    if (ftruncate(fd, off_t(bytes)) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        const int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    name = text("%d %d", int(getpid()), fd);
    return fd;
}

void forget_shared_memory(const std::string&) {}

int open_shared_memory(const std::string& name, size_t bytes, std::string& why) {
    int pid = 0, fd = 0, end = 0;
    if (std::sscanf(name.c_str(), "%d %d%n", &pid, &fd, &end) != 2 || size_t(end) != name.size() || pid <= 0 || fd < 0)
        return why = "expected the numbers of a process and a file", -1;
    // First only O_PATH: opening a device or a FIFO may have side effects.
    const std::string path = text("/proc/%d/fd/%d", pid, fd);
    const int found = open(path.c_str(), O_PATH | O_CLOEXEC);
    if (found < 0) {
        why = path + ": " + std::strerror(errno) + " (ranks of a host run as one user and see each other's processes)";
        return -1;
    }
    struct stat process = {}, file = {};
    int opened = -1;
    if (stat(text("/proc/%d", pid).c_str(), &process) != 0 || process.st_uid != geteuid())
        why = text("process %d is not of user %d", pid, int(geteuid()));
    else if (fstat(found, &file) != 0 || !S_ISREG(file.st_mode) || file.st_uid != geteuid())
        why = path + text(" is no memory of user %d", int(geteuid()));
    else
        opened = open(text("/proc/self/fd/%d", found).c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    close(found);
    if (!why.empty()) return -1;
    // Only a memfd can have this seal: files on disk have none, and files in /dev/shm have only F_SEAL_SEAL.
    const int seals = opened >= 0 ? fcntl(opened, F_GET_SEALS) : -1;
    if (seals < 0 || !(seals & F_SEAL_SHRINK))
        why = path + " is a file, or memory that can shrink";
    else if (uint64_t(file.st_size) < bytes)
        why = path + text(" has %ld bytes, expected %zu", file.st_size, bytes);
    if (!why.empty() && opened >= 0) close(opened);
    return why.empty() ? opened : -1;
}

char* map_shared(int fd, size_t bytes, bool populate) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (populate ? MAP_POPULATE : 0), fd, 0);
    return data == MAP_FAILED ? nullptr : static_cast<char*>(data);
}

// Not FUTEX_WAIT_PRIVATE: the word is shared between processes.
void sleep_while(std::atomic<uint32_t>& word, uint32_t value, int timeout_ms) {
    const timespec limit = {timeout_ms / 1000, timeout_ms % 1000 * 1'000'000L};
    syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}
void wake_all(std::atomic<uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0); }

int sync_to_disk(int fd) { return fsync(fd); }
void drop_cached_pages(int fd) { posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); }
std::string change_times(const struct stat& file) {
    return text("%ld.%09ld:%ld.%09ld", file.st_mtim.tv_sec, file.st_mtim.tv_nsec, file.st_ctim.tv_sec,
                file.st_ctim.tv_nsec);
}

// ---- sockets -------------------------------------------------------------------------------------------------------

int new_tcp_socket(int family) { return socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }
int accept_tcp(int listener, sockaddr* from, socklen_t* length) {
    return accept4(listener, from, length, SOCK_CLOEXEC);
}
int new_pipe(int (&ends)[2]) { return pipe2(ends, O_CLOEXEC); }
const int kNoSigpipe = MSG_NOSIGNAL;

void limit_silence(int fd, int idle_s, int interval_s, int probes, int unacknowledged_s) {
    const auto set = [fd](int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof value); };
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
    set(IPPROTO_TCP, TCP_KEEPIDLE, idle_s);
    set(IPPROTO_TCP, TCP_KEEPINTVL, interval_s);
    set(IPPROTO_TCP, TCP_KEEPCNT, probes);
    set(IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * unacknowledged_s);
}

Poller::Poller() : fd_(epoll_create1(EPOLL_CLOEXEC)) {}
Poller::~Poller() {
    if (fd_ >= 0) close(fd_);
}

bool Poller::watch(int fd, uint64_t tag, For what) {
    if (what == For::nothing) return epoll_ctl(fd_, EPOLL_CTL_DEL, fd, nullptr) == 0 || errno == ENOENT;
    epoll_event event = {};
    event.events = what == For::data ? EPOLLIN : EPOLLRDHUP, event.data.u64 = tag;
    return epoll_ctl(fd_, EPOLL_CTL_ADD, fd, &event) == 0 ||
           (errno == EEXIST && epoll_ctl(fd_, EPOLL_CTL_MOD, fd, &event) == 0);
}

std::vector<uint64_t> Poller::wait(size_t most, int wait_ms) const {
    std::vector<epoll_event> events(most);
    const int n = epoll_wait(fd_, events.data(), int(most), wait_ms);
    std::vector<uint64_t> tags;
    for (int i = 0; i < n; i++) tags.push_back(uint64_t{events[size_t(i)].data.u64});  // a copy: the struct is packed
    return tags;
}

// For a connection within this host (network namespace), the kernel lists both ends, each with its user.
namespace {

const sockaddr* base_of(const sockaddr_storage& address) { return reinterpret_cast<const sockaddr*>(&address); }

// Asks about this one connection (sock_diag(7)). Reading the table of all would take 1 ms per 1000 connections, for
// each of them. nullopt: this system does not answer.
std::optional<OtherEnd> asked_end(const sockaddr_storage& there, const sockaddr_storage& here) {
    struct {
        nlmsghdr header;
        inet_diag_req_v2 wanted;
    } question = {};
    question.header = {.nlmsg_len = sizeof(question),
                       .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                       .nlmsg_flags = NLM_F_REQUEST,
                       .nlmsg_seq = 0,
                       .nlmsg_pid = 0};
    inet_diag_req_v2& wanted = question.wanted;
    wanted.sdiag_family = uint8_t(there.ss_family), wanted.sdiag_protocol = IPPROTO_TCP, wanted.idiag_states = ~0u;
    wanted.id.idiag_sport = htons(uint16_t(port_of(there))), wanted.id.idiag_dport = htons(uint16_t(port_of(here)));
    wanted.id.idiag_cookie[0] = wanted.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    if (there.ss_family == AF_INET6) {
        const auto& from = reinterpret_cast<const sockaddr_in6&>(there);
        std::memcpy(wanted.id.idiag_src, &from.sin6_addr, sizeof(from.sin6_addr));
        std::memcpy(wanted.id.idiag_dst, &reinterpret_cast<const sockaddr_in6&>(here).sin6_addr, sizeof(in6_addr));
        wanted.id.idiag_if = from.sin6_scope_id;
    } else {
        wanted.id.idiag_src[0] = reinterpret_cast<const sockaddr_in&>(there).sin_addr.s_addr;
        wanted.id.idiag_dst[0] = reinterpret_cast<const sockaddr_in&>(here).sin_addr.s_addr;
    }
    const int asking = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (asking < 0) return {};
    alignas(nlmsghdr) char answer[1024];
    const bool asked = send(asking, &question, sizeof(question), 0) == sizeof(question);
    const ssize_t got = asked ? recv(asking, answer, sizeof(answer), 0) : -1;
    close(asking);
    if (got < ssize_t(sizeof(nlmsghdr))) return {};
    nlmsghdr header;
    std::memcpy(&header, answer, sizeof(header));
    const OtherEnd absent = is_loopback(base_of(there)) ? OtherEnd::nobody : OtherEnd::elsewhere;
    if (header.nlmsg_type == NLMSG_ERROR && got >= ssize_t(NLMSG_LENGTH(sizeof(nlmsgerr)))) {
        nlmsgerr error;
        std::memcpy(&error, answer + NLMSG_HDRLEN, sizeof(error));
        if (error.error == -ENOENT) return absent;
        return {};
    }
    if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY || got < ssize_t(NLMSG_LENGTH(sizeof(inet_diag_msg)))) return {};
    inet_diag_msg found;
    std::memcpy(&found, answer + NLMSG_HDRLEN, sizeof(found));
    // If there is no such connection, the kernel returns a listener at its port.
    if (found.idiag_state == TCP_LISTEN) return absent;
    if (found.idiag_state != TCP_ESTABLISHED || found.idiag_inode == 0) return OtherEnd::nobody;
    return found.idiag_uid == geteuid() ? OtherEnd::this_user : OtherEnd::another_user;
}

// An address as /proc/net/tcp writes it: "0100007F:7350".
std::string table_text(const sockaddr_storage& address) {
    if (address.ss_family == AF_INET)
        return text("%08X:%04X", reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr, port_of(address));
    uint32_t words[4];
    std::memcpy(words, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, sizeof(words));
    return text("%08X%08X%08X%08X:%04X", words[0], words[1], words[2], words[3], port_of(address));
}

}  // namespace

OtherEnd other_end(int fd, bool asks) {
    sockaddr_storage here = {}, there = {};
    socklen_t here_bytes = sizeof(here), there_bytes = sizeof(there);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_bytes) != 0 ||
        getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_bytes) != 0)
        return OtherEnd::nobody;
    if (const std::optional<OtherEnd> known = asks ? asked_end(there, here) : std::nullopt) return *known;
    const std::string wanted = " " + table_text(there) + " " + table_text(here) + " ";
    bool readable = false;
    // Lines that come and go during reading can hide another, so a missing one is looked for three times.
    for (int tries = 0; tries < 3; tries++) {
        errno = 0;
        std::ifstream table(there.ss_family == AF_INET6 ? "/proc/self/net/tcp6" : "/proc/self/net/tcp");
        if (errno == EMFILE || errno == ENFILE) return OtherEnd::another_user;  // refuse, to be safe
        for (std::string line; std::getline(table, line);) {
            readable = true;
            const size_t at = line.find(wanted);
            unsigned state = 0, user = 0;
            unsigned long inode = 0;
            // After the addresses: state, queues, timer, retransmits, user, timeout, inode. A socket that no process
            // holds any more is listed as root's, with inode 0.
            if (at == std::string::npos ||
                std::sscanf(line.c_str() + at + wanted.size(), "%x %*s %*s %*s %u %*s %lu", &state, &user, &inode) != 3)
                continue;
            if (state != TCP_ESTABLISHED || inode == 0) return OtherEnd::nobody;
            return user == geteuid() ? OtherEnd::this_user : OtherEnd::another_user;
        }
    }
    return readable && is_loopback(base_of(there)) ? OtherEnd::nobody : OtherEnd::elsewhere;
}
