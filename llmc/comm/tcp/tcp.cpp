// See tcp.h.
#include "llmc/comm/tcp/tcp.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include "llmc/base/check.h"  // require, format

namespace {

void set_option(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof(value)); }

sockaddr* base(sockaddr_storage& address) { return reinterpret_cast<sockaddr*>(&address); }

std::string host_text(const sockaddr* address, socklen_t length) {
    char host[NI_MAXHOST] = "?";
    getnameinfo(address, length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
    return host;
}

struct Resolved {
    addrinfo* first = nullptr;
    std::string why;  // why nothing was found
    Resolved(const Address& address, int flags) {
        addrinfo hints = {};
        hints.ai_family = AF_UNSPEC, hints.ai_socktype = SOCK_STREAM, hints.ai_flags = flags;
        const int error = getaddrinfo(address.host.empty() ? nullptr : address.host.c_str(),
                                      std::to_string(address.port).c_str(), &hints, &first);
        if (error) first = nullptr, why = format("no such host is known here: %s", gai_strerror(error));
    }
    Resolved(const Resolved&) = delete;
    ~Resolved() {
        if (first) freeaddrinfo(first);
    }
};

// An address of one of this host's interfaces that are up.
struct OwnAddress {
    std::string interface;
    sockaddr_storage storage;

    const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&storage); }
    socklen_t length() const { return storage.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6); }
    std::string number() const { return host_text(address(), length()); }
    bool is_link_local() const {
        return storage.ss_family == AF_INET6 &&
               IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr);
    }
};

// IPv4 addresses come first.
std::vector<OwnAddress> own_interfaces() {
    std::vector<OwnAddress> all;
    ifaddrs* first = nullptr;
    if (getifaddrs(&first) != 0) return all;
    for (const int family : {AF_INET, AF_INET6})
        for (const ifaddrs* each = first; each; each = each->ifa_next) {
            if (!each->ifa_addr || each->ifa_addr->sa_family != family || !(each->ifa_flags & IFF_UP)) continue;
            OwnAddress own{each->ifa_name, {}};
            std::memcpy(&own.storage, each->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
            all.push_back(own);
        }
    freeifaddrs(first);
    return all;
}

// Binds a socket to an address of the interface, of the same family as `to`, if there is one.
bool bind_to(int fd, const std::string& interface, const sockaddr* to) {
    const bool to_link =
        to->sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(to)->sin6_addr);
    errno = EADDRNOTAVAIL;
    for (const OwnAddress& own : own_interfaces())
        if (own.interface == interface && own.storage.ss_family == to->sa_family && own.is_link_local() == to_link)
            return bind(fd, own.address(), own.length()) == 0;
    return false;
}

// On failure the socket is -1, and errno says why.
Socket listen_on(const sockaddr* address, socklen_t length) {
    Socket s(new_tcp_socket(address->sa_family));
    if (s.fd < 0) return s;  // a kernel without IPv6, say
    set_option(s.fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (address->sa_family == AF_INET6) set_option(s.fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    if (bind(s.fd, address, length) == 0 && listen(s.fd, SOMAXCONN) == 0) return s;
    const int error = errno;
    s = Socket();
    errno = error;
    return s;
}

}  // namespace

std::string text_of(const Address& address) {
    const bool v6 = address.host.find(':') != std::string::npos;
    return (v6 ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

int Deadline::left_ms() const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(at - Clock::now());
    return int(std::clamp<int64_t>(left.count(), 0, 1 << 30));
}

// ---- connections ---------------------------------------------------------------------------------------------------

Listeners listen_at(const Address& master, const std::string& interface) {
    const Resolved named(master, 0);
    const bool is_number =
        master.host.find(':') != std::string::npos || master.host.find_first_not_of("0123456789.") == std::string::npos;
    Listeners all;
    all.port = master.port;
    all.local = named.first && (is_number || master.host == "localhost");
    for (const addrinfo* each = named.first; each; each = each->ai_next)
        all.local = all.local && is_loopback(each->ai_addr);
    // On Debian a host's own name resolves to 127.0.1.1.
    std::vector<std::string> hosts = {all.local ? master.host : ""};
    if (!all.local && !interface.empty()) hosts = own_addresses(interface);
    std::string why;
    for (const std::string& host : hosts) {
        const Resolved any({host, master.port}, host.empty() ? AI_PASSIVE : 0);
        if (!any.first) why = any.why;
        for (const addrinfo* each = any.first; each; each = each->ai_next) {
            Socket s = listen_on(each->ai_addr, each->ai_addrlen);
            if (s.fd < 0) {
                require(errno != EADDRINUSE,
                        "--master %s: port %d is in use on this host, perhaps by another run: give another port",
                        text_of(master).c_str(), master.port);
                require(errno != EACCES, "--master %s: this user may not listen at port %d: give one above 1023",
                        text_of(master).c_str(), master.port);
                why = std::strerror(errno);
                continue;
            }
            all.sockets.push_back(std::move(s));
        }
    }
    require(!all.sockets.empty(), "--master %s: rank 0 cannot listen there (%s): it must run on that host",
            text_of(master).c_str(), why.c_str());
    return all;
}

// Adds a socket that listens at a port which the system has chosen.
static void add_with_port(Listeners& all, Socket s) {
    sockaddr_storage bound = {};
    socklen_t length = sizeof(bound);
    getsockname(s.fd, base(bound), &length);
    all.port = port_of(bound);
    all.sockets.push_back(std::move(s));
}

Listeners listen_anywhere(bool local) {
    Listeners all;
    all.local = local;
    sockaddr_in v4 = {};
    v4.sin_family = AF_INET, v4.sin_addr.s_addr = htonl(local ? INADDR_LOOPBACK : INADDR_ANY);
    Socket s = listen_on(reinterpret_cast<const sockaddr*>(&v4), sizeof(v4));
    require(s.fd >= 0, "rank 0 cannot listen at any port: %s", std::strerror(errno));
    add_with_port(all, std::move(s));
    sockaddr_in6 v6 = {};
    v6.sin6_family = AF_INET6, v6.sin6_addr = in6addr_any, v6.sin6_port = htons(uint16_t(all.port));
    Socket also = local ? Socket() : listen_on(reinterpret_cast<const sockaddr*>(&v6), sizeof(v6));
    if (also.fd >= 0) all.sockets.push_back(std::move(also));
    return all;
}

Address listen_at_number(const std::string& number, Listeners& all) {
    const Resolved resolved({number, 0}, AI_NUMERICHOST);
    Socket s = resolved.first ? listen_on(resolved.first->ai_addr, resolved.first->ai_addrlen) : Socket();
    require(s.fd >= 0, "cannot listen at %s, an address of this host: %s", number.c_str(), std::strerror(errno));
    add_with_port(all, std::move(s));
    return {number, all.port};
}

std::vector<std::string> own_addresses(const std::string& interface) {
    std::vector<std::string> all;
    std::string others;
    for (const OwnAddress& each : own_interfaces()) {
        const bool is_usual = !is_loopback(each.address()) && !each.is_link_local();  // other hosts cannot use these
        if (interface.empty() ? is_usual : each.interface == interface) all.push_back(each.number());
        others += (others.empty() ? "" : ", ") + each.interface + " (" + each.number() + ")";
    }
    require(interface.empty() || !all.empty(),
            "--interface %s: no interface of this host has this name, is up and has an address; there are: %s",
            interface.c_str(), others.c_str());
    return all;
}

bool is_number(const std::string& host) {
    in6_addr number;
    return inet_pton(AF_INET, host.c_str(), &number) == 1 || inet_pton(AF_INET6, host.c_str(), &number) == 1;
}

bool is_known(const Address& address, std::string* why) {
    const Resolved resolved(address, 0);
    *why = resolved.why;
    return resolved.first != nullptr;
}

std::vector<Address> numbers_of(const Address& address, std::string* why) {
    const Resolved resolved(address, 0);
    *why = resolved.why;
    std::vector<Address> numbers;
    for (const addrinfo* each = resolved.first; each; each = each->ai_next)
        numbers.push_back({host_text(each->ai_addr, each->ai_addrlen), address.port});
    return numbers;
}

Connection accept_from(const Socket& listener) {
    sockaddr_storage from = {};
    socklen_t length = sizeof(from);
    Connection connection{Socket(accept_tcp(listener.fd, base(from), &length)), ""};
    if (connection.socket.fd >= 0) connection.from = text_of(Address{host_text(base(from), length), port_of(from)});
    return connection;
}

Socket connect_to(const Address& address, const std::string& interface, const Deadline& deadline, const Look& look,
                  std::string* why) {
    const Resolved resolved(address, 0);
    *why = resolved.why;
    for (const addrinfo* each = resolved.first; each; each = each->ai_next) {
        Socket s(new_tcp_socket(each->ai_family));
        if (s.fd < 0 || (!interface.empty() && !bind_to(s.fd, interface, each->ai_addr))) {
            *why = std::strerror(errno);
            continue;
        }
        if (connect(s.fd, each->ai_addr, each->ai_addrlen) != 0) {
            int error = errno;
            if (error == EINPROGRESS) {
                pollfd waiting{s.fd, POLLOUT, 0};
                const Deadline patience(std::min(5., deadline.left_ms() * 1e-3));
                do {
                    look();
                    poll(&waiting, 1, std::min(patience.left_ms(), 100));
                } while (!waiting.revents && !patience.over());
                socklen_t length = sizeof(error);
                if (waiting.revents == 0)
                    error = ETIMEDOUT;
                else
                    getsockopt(s.fd, SOL_SOCKET, SO_ERROR, &error, &length);
            }
            if (error != 0) {
                *why = std::strerror(error);
                continue;
            }
        }
        fcntl(s.fd, F_SETFL, fcntl(s.fd, F_GETFL) & ~O_NONBLOCK);
        return s;
    }
    return Socket();
}

namespace {
void prepare(int fd, int unacknowledged_s) {
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    limit_silence(fd, 30, 10, 3, unacknowledged_s);
}
}  // namespace

// The limit would count time in which the other end does not read.
void prepare_for_data(int fd) { prepare(fd, 0); }
void prepare(int fd) { prepare(fd, 60); }

std::string own_number(int fd) {
    sockaddr_storage here = {};
    socklen_t length = sizeof(here);
    return getsockname(fd, base(here), &length) == 0 ? host_text(base(here), length) : "";
}

std::string peer_number(int fd) {
    sockaddr_storage there = {};
    socklen_t length = sizeof(there);
    return getpeername(fd, base(there), &length) == 0 ? host_text(base(there), length) : "";
}

// ---- messages ------------------------------------------------------------------------------------------------------

std::string message_of(Kind kind, uint64_t key, const std::string& body) {
    const Header header{kMagic, kind, key, body.size()};
    return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + body;
}

bool send_message(int fd, Kind kind, uint64_t key, const std::string& body) {
    const std::string message = message_of(kind, key, body);
    for (size_t at = 0; at < message.size();) {
        const ssize_t sent = send(fd, message.data() + at, message.size() - at, kNoSigpipe);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return false;
        at += size_t(sent);
    }
    return true;
}

bool receive_bytes(int fd, void* data, size_t bytes, const Deadline* deadline, const Look& look) {
    char* at = static_cast<char*>(data);
    while (bytes > 0) {
        if (deadline) {
            if (look) look();
            pollfd waiting{fd, POLLIN, 0};
            const int ready = poll(&waiting, 1, std::min(deadline->left_ms(), 100));
            if (ready <= 0 && (ready == 0 || errno == EINTR) && !deadline->over()) continue;
            if (ready <= 0) return false;
        }
        const ssize_t got = recv(fd, at, bytes, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got, bytes -= size_t(got);
    }
    return true;
}

bool receive_body(int fd, std::string& body, uint64_t bytes) {
    constexpr uint64_t kPiece = 1 << 20;
    body.clear();
    while (body.size() < bytes) {
        const size_t at = body.size(), n = size_t(std::min<uint64_t>(bytes - at, kPiece));
        body.resize(at + n);
        if (!receive_bytes(fd, body.data() + at, n)) return false;
    }
    return true;
}
