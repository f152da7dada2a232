/*
Sockets and pipes beyond POSIX. All are closed in programs that this one starts.
*/
#pragma once
#include <netinet/in.h>
#include <sys/socket.h>
#include <cstddef>
#include <cstdint>
#include <vector>

// -1 and errno if these fail. A new socket does not block; an accepted one does.
int new_tcp_socket(int family);
int accept_tcp(int listener, sockaddr* from, socklen_t* length);
int new_pipe(int (&ends)[2]);

// For send(): when the other end is gone, that is an error, and no SIGPIPE comes.
extern const int kNoSigpipe;

// A connection ends when `probes` of an idle one are not answered, or data is not acknowledged in time; 0: no limit.
void limit_silence(int fd, int idle_s, int interval_s, int probes, int unacknowledged_s);

inline bool is_loopback(const sockaddr* address) {
    if (address->sa_family == AF_INET)
        return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == 127;
    return address->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}
inline int port_of(const sockaddr_storage& address) {
    return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                               : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

// The owner of a connection's other end, as far as this host knows.
enum class OtherEnd {
    this_user,     // a process of this user on this host
    another_user,  // a process of another user on this host
    nobody,        // it was on this host and is closed
    elsewhere,     // another host, or this system does not tell (Darwin; no sock_diag, and /proc/net/tcp is hidden)
};
// Asks the kernel about this connection (sock_diag). If `asks` is false, or there is no answer, reads /proc/net/tcp.
OtherEnd other_end(int fd, bool asks = true);

// Waits for many files at once. A turn costs as much as it has events: with poll() and a scan of all, each connection
// took 1 ms with 1000 ranks.
class Poller {
public:
    enum class For { nothing, data, hangup };  // hangup: the other end sends nothing more
    Poller();
    ~Poller();
    Poller(const Poller&) = delete;
    Poller& operator=(const Poller&) = delete;
    bool is_open() const { return fd_ >= 0; }  // else errno says why
    // From now on, or instead of what was watched. A closed file is forgotten by itself. False, and errno, if it fails.
    bool watch(int fd, uint64_t tag, For what);
    // The tags of at most `most` files for which something has happened; none after wait_ms, or a signal. -1: no limit.
    std::vector<uint64_t> wait(size_t most, int wait_ms) const;

private:
    int fd_ = -1;
};
