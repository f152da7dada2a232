// See tcp_ranks.h.
#include "llmc/comm/tcp_ranks.h"
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <random>
#include <utility>
#include "llmc/base/check.h"  // require, ensure, format
#include "llmc/base/hash.h"   // xxh3
#include "llmc/comm/host.h"   // raise_file_limit

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kMagic = 0x6c76'6e61;  // "anvl"
enum Kind : uint32_t {
    kHello = 1,    // body: Hello
    kWelcome = 2,  // key: that of the run from here on
    kRefused = 3,  // body: why
    kRecord = 4,
    kGoodbye = 5,  // this rank has finished
    kFailed = 6,   // this rank ends at once; body: "rank 1: WHY"; empty: with an error of its own
};
struct Header {
    uint32_t magic, kind;
    uint64_t key, bytes;
};
struct Hello {
    uint64_t run_hash;
    int32_t rank, world_size;
};
constexpr uint64_t kMostBytes = uint64_t(1) << 30;
constexpr double kGreetingS = 10;  // for rank 0 to answer
constexpr double kQuietS = 5;      // before waiting is worth a line

struct Deadline {
    Clock::time_point at;
    explicit Deadline(double seconds)
        : at(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}
    int left_ms() const {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(at - Clock::now());
        return int(std::clamp<int64_t>(left.count(), 0, 1 << 30));
    }
    bool over() const { return Clock::now() >= at; }
};

// A socket that is closed unless it is taken.
struct Socket {
    int fd = -1;
    explicit Socket(int fd = -1) : fd(fd) {}
    Socket(Socket&& other) noexcept : fd(other.take()) {}
    Socket& operator=(Socket&& other) noexcept {
        std::swap(fd, other.fd);
        return *this;
    }
    ~Socket() {
        if (fd >= 0) close(fd);
    }
    int take() { return std::exchange(fd, -1); }
};

void set_option(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof(value)); }

// Small records without delay; a host that has lost power is noticed after a minute.
void prepare(int fd) {
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 60'000);
}

// False if the other end is gone.
bool send_bytes(int fd, const void* data, size_t bytes) {
    const char* at = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return false;
        at += sent, bytes -= size_t(sent);
    }
    return true;
}

bool send_message(int fd, Kind kind, uint64_t key, const std::string& body) {
    const Header header{kMagic, kind, key, body.size()};
    std::string message(reinterpret_cast<const char*>(&header), sizeof(header));
    message += body;
    return send_bytes(fd, message.data(), message.size());
}

// False if the other end is gone, or it took too long.
bool receive_bytes(int fd, void* data, size_t bytes, const Deadline* deadline = nullptr) {
    char* at = static_cast<char*>(data);
    while (bytes > 0) {
        if (deadline) {
            pollfd waiting{fd, POLLIN, 0};
            const int ready = poll(&waiting, 1, deadline->left_ms());
            if (ready < 0 && errno == EINTR) continue;
            if (ready <= 0) return false;
        }
        const ssize_t got = recv(fd, at, bytes, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got, bytes -= size_t(got);
    }
    return true;
}

std::string text_of(const Address& address) {
    const bool v6 = address.host.find(':') != std::string::npos;
    return (v6 ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

std::string text_of(const sockaddr_storage& address, socklen_t length) {
    char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
    getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof(host), port, sizeof(port),
                NI_NUMERICHOST | NI_NUMERICSERV);
    return text_of(Address{host, std::atoi(port)});
}

bool is_loopback(const sockaddr* address) {
    if (address->sa_family == AF_INET) {
        in_addr_t v4 = reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr;
        return ntohl(v4) >> 24 == 127;
    }
    return address->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

struct Resolved {
    addrinfo* first = nullptr;
    // Nothing at first if the name server asks for patience.
    Resolved(const Address& address, int flags) {
        addrinfo hints = {};
        hints.ai_family = AF_UNSPEC, hints.ai_socktype = SOCK_STREAM, hints.ai_flags = flags;
        const int error = getaddrinfo(address.host.empty() ? nullptr : address.host.c_str(),
                                      std::to_string(address.port).c_str(), &hints, &first);
        if (error == EAI_AGAIN) first = nullptr;
        require(error == 0 || error == EAI_AGAIN,
                "--master %s: no such host is known here (%s): give the name or the number of the host of "
                "rank 0",
                address.host.c_str(), gai_strerror(error));
    }
    Resolved(const Resolved&) = delete;
    ~Resolved() {
        if (first) freeaddrinfo(first);
    }
};

// Where rank 0 listens: if the address says localhost, only there; else on every network, since a host does not always
// know the address that others reach it by. Debian lets its own name mean 127.0.1.1.
std::vector<Socket> listen_at(const Address& master) {
    const Resolved named(master, 0);
    const bool is_number =
        master.host.find(':') != std::string::npos || master.host.find_first_not_of("0123456789.") == std::string::npos;
    bool local = is_number || master.host == "localhost";
    for (const addrinfo* each = named.first; each; each = each->ai_next) local = local && is_loopback(each->ai_addr);
    const Resolved any(local ? master : Address{"", master.port}, local ? 0 : AI_PASSIVE);
    std::vector<Socket> sockets;
    std::string why;
    for (const addrinfo* each = any.first; each; each = each->ai_next) {
        Socket s(socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (s.fd < 0) continue;  // a kernel without IPv6, say
        set_option(s.fd, SOL_SOCKET, SO_REUSEADDR, 1);
        if (each->ai_family == AF_INET6) set_option(s.fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
        if (bind(s.fd, each->ai_addr, each->ai_addrlen) != 0 || listen(s.fd, SOMAXCONN) != 0) {
            require(errno != EADDRINUSE,
                    "--master %s: port %d is in use on this host, perhaps by another run: give another port",
                    text_of(master).c_str(), master.port);
            require(errno != EACCES, "--master %s: this user may not listen at port %d: give one above 1023",
                    text_of(master).c_str(), master.port);
            why = std::strerror(errno);
            continue;
        }
        sockets.push_back(std::move(s));
    }
    require(!sockets.empty(), "--master %s: rank 0 cannot listen there (%s): it must run on that host",
            text_of(master).c_str(), why.c_str());
    return sockets;
}

std::string no_more_connections(int has, int world_size, int error) {
    const std::string whose = error == ENFILE ? "the system allows no more open files (sysctl fs.file-max)"
                                              : format("a process here may open %zu files", raise_file_limit());
    return format(
        "rank 0 can take no more than %d connections and needs %d, one for each other rank: %s. Start it "
        "where the hard limit is higher (ulimit -Hn; LimitNOFILE of systemd, --ulimit nofile of docker)",
        has, world_size - 1, whose.c_str());
}

std::string one_line(std::string text) {
    for (char& c : text)
        if (c < ' ' || c > '~') c = ' ';
    return text;
}

}  // namespace

TcpRanks::TcpRanks(int rank, int world_size, const Address& master, const std::string& run_key, double timeout_s)
    : watchdog_(rank, timeout_s), master_(master) {
    this->rank = rank, this->world_size = world_size;
    host_ranks = {rank};
    watchdog_.add_hook([this](const std::string& why) { tell_all(forwarded_.empty() ? why : forwarded_); });
    try {
        if (rank == 0)
            await_others(run_key);
        else
            connect_to_first(run_key);
        if (pipe2(wake_, O_CLOEXEC) != 0)
            throw Error(kExitUsage, format("cannot make a pipe: %s", std::strerror(errno)));
        reader_ = std::thread([this] { read_records(); });
    } catch (const Error& error) {
        tell_all(format("rank %d: %s", rank, error.what()));
        close_all();
        throw;
    }
}

TcpRanks::~TcpRanks() {
    const bool in_order = std::uncaught_exceptions() == 0;
    for (const Peer& peer : peers_) {
        send_message(peer.socket, in_order ? kGoodbye : kFailed, key_, "");
        shutdown(peer.socket, SHUT_WR);
    }
    close_all();
}

void TcpRanks::close_all() {
    if (reader_.joinable()) {
        close(std::exchange(wake_[1], -1));
        reader_.join();
    }
    for (const int end : wake_)
        if (end >= 0) close(end);
    for (const Peer& peer : peers_) close(peer.socket);
}

// ---- how the ranks meet --------------------------------------------------------------------------------------------

void TcpRanks::await_others(const std::string& run_key) {
    std::random_device random;
    key_ = uint64_t(random()) << 32 | random();
    const std::vector<Socket> listeners = listen_at(master_);
    struct Guest {
        Socket socket;
        std::string from, said;
    };
    std::vector<Guest> guests;  // connected, and not yet known: they keep nobody waiting
    const auto missing = [&] {
        std::vector<int> ranks;
        for (int r = 1; r < world_size; r++)
            if (std::none_of(peers_.begin(), peers_.end(), [&](const Peer& peer) { return peer.rank == r; }))
                ranks.push_back(r);
        return ranks;
    };
    // True when the guest is dealt with: it has become a peer, or has been sent away.
    const auto greet = [&](Guest& guest) {
        constexpr size_t kBytes = sizeof(Header) + sizeof(Hello);
        char data[kBytes];
        const ssize_t got = recv(guest.socket.fd, data, kBytes - guest.said.size(), MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
        if (got > 0) guest.said.append(data, size_t(got));
        Header header = {};
        Hello hello = {};
        std::memcpy(&header, guest.said.data(), std::min(guest.said.size(), sizeof(header)));
        const bool strange = guest.said.size() >= sizeof(header.magic) &&
                             (header.magic != kMagic || (guest.said.size() >= sizeof(header) &&
                                                         (header.kind != kHello || header.bytes != sizeof(hello))));
        if (got <= 0 || strange) {
            // Whoever only looks whether the port is open says nothing and is worth no word.
            if (!guest.said.empty())
                std::fprintf(stderr, "warning: rank 0: %s connected to port %d and is no rank of Anvil's: ignored\n",
                             guest.from.c_str(), master_.port);
            return true;
        }
        if (guest.said.size() < kBytes) return false;
        std::memcpy(&hello, guest.said.data() + sizeof(header), sizeof(hello));
        const auto is_there = [&](const Peer& peer) { return peer.rank == hello.rank; };
        std::string why;
        if (hello.run_hash != xxh3(run_key.data(), run_key.size()))
            why = format("port %d belongs to another run: give each run a port of its own", master_.port);
        else if (hello.world_size != world_size)
            why = format("it was told that there are %d ranks, and rank 0 that there are %d: start all alike",
                         hello.world_size, world_size);
        else if (hello.rank < 1 || hello.rank >= world_size)
            why = format("its rank is %d, and those to come are 1 to %d", hello.rank, world_size - 1);
        else if (std::any_of(peers_.begin(), peers_.end(), is_there))
            why = format(
                "another process is rank %d already: each needs a number of its own, and each run a port of "
                "its own",
                hello.rank);
        if (why.empty()) {
            prepare(guest.socket.fd);
            Peer peer;
            peer.rank = hello.rank, peer.socket = guest.socket.take();
            send_message(peer.socket, kWelcome, key_, "");
            peers_.push_back(std::move(peer));
        } else {
            std::fprintf(stderr, "warning: rank 0: refused a rank %d from %s: %s\n", hello.rank, guest.from.c_str(),
                         why.c_str());
            send_message(guest.socket.fd, kRefused, 0, why);
        }
        return true;
    };

    const Deadline deadline(watchdog_.timeout_s), quiet(kQuietS);
    bool said = false;
    while (int(peers_.size()) < world_size - 1) {
        if (deadline.over())
            throw Error(
                kExitRank,
                format("%s did not come to %s within %g s (--comm-timeout): was it started, with the same "
                       "--master, and does the network let it through to port %d?",
                       rank_list(missing()).c_str(), text_of(master_).c_str(), watchdog_.timeout_s, master_.port));
        if (!said && quiet.over()) {
            std::fprintf(stderr, "rank 0: waiting at %s for %s\n", text_of(master_).c_str(),
                         rank_list(missing()).c_str());
            said = true;
        }
        std::vector<pollfd> waiting;
        for (const Socket& listener : listeners) waiting.push_back({listener.fd, POLLIN, 0});
        for (const Guest& guest : guests) waiting.push_back({guest.socket.fd, POLLIN, 0});
        poll(waiting.data(), nfds_t(waiting.size()), std::min(deadline.left_ms(), 100));
        for (size_t i = guests.size(); i-- > 0;)
            if (waiting[listeners.size() + i].revents && greet(guests[i])) guests.erase(guests.begin() + int64_t(i));
        for (const Socket& listener : listeners) {
            sockaddr_storage from = {};
            socklen_t length = sizeof(from);
            const int fd = accept4(listener.fd, reinterpret_cast<sockaddr*>(&from), &length, SOCK_CLOEXEC);
            if (fd >= 0) guests.push_back({Socket(fd), text_of(from, length), {}});
            // Else nothing has come after all, or whoever came has left; but what this process lacks stays lacking.
            if (fd < 0 && (errno == EMFILE || errno == ENFILE))
                throw Error(kExitUsage, no_more_connections(int(peers_.size() + guests.size()), world_size, errno));
        }
    }
    std::sort(peers_.begin(), peers_.end(), [](const Peer& a, const Peer& b) { return a.rank < b.rank; });
}

void TcpRanks::connect_to_first(const std::string& run_key) {
    const std::string where = text_of(master_);
    const Deadline deadline(watchdog_.timeout_s), quiet(kQuietS);
    bool said = false;
    // The reason why nobody is there yet. Everything else is an Error, or leaves a socket.
    const auto try_once = [&](Socket& connected) -> std::string {
        const Resolved resolved(master_, 0);
        int reason = 0;
        for (const addrinfo* each = resolved.first; each && connected.fd < 0; each = each->ai_next) {
            Socket s(socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
            if (s.fd < 0) continue;
            if (connect(s.fd, each->ai_addr, each->ai_addrlen) != 0) {
                int error = errno;
                if (error == EINPROGRESS) {
                    pollfd waiting{s.fd, POLLOUT, 0};
                    poll(&waiting, 1, std::min(deadline.left_ms(), 5000));
                    socklen_t length = sizeof(error);
                    if (waiting.revents == 0)
                        error = ETIMEDOUT;
                    else
                        getsockopt(s.fd, SOL_SOCKET, SO_ERROR, &error, &length);
                }
                if (error != 0) {
                    reason = error;
                    continue;
                }
            }
            fcntl(s.fd, F_SETFL, fcntl(s.fd, F_GETFL) & ~O_NONBLOCK);
            connected = std::move(s);
        }
        require(connected.fd >= 0 || (reason != ENETUNREACH && reason != EHOSTUNREACH),
                "--master %s: no way leads there from this host (%s): give an address of rank 0's host in a network "
                "that both are in",
                where.c_str(), std::strerror(reason));
        if (connected.fd < 0) return std::strerror(reason);
        prepare(connected.fd);
        const Hello hello{xxh3(run_key.data(), run_key.size()), rank, world_size};
        const std::string body(reinterpret_cast<const char*>(&hello), sizeof(hello));
        const Deadline patience(std::min(kGreetingS, std::max(0.1, deadline.left_ms() * 1e-3)));
        Header header = {};
        const bool answered = send_message(connected.fd, kHello, 0, body) &&
                              receive_bytes(connected.fd, &header.magic, sizeof(header.magic), &patience);
        if (!answered) return connected = Socket(), std::string("it does not answer");
        require(header.magic == kMagic && receive_bytes(connected.fd, &header.kind, sizeof(header) - 4, &patience) &&
                    header.bytes <= kMostBytes,
                "--master %s: whoever listens there is no rank 0 of Anvil's: give a port that nothing else uses",
                where.c_str());
        std::string why(header.bytes, ' ');
        if (header.kind != kWelcome) {
            receive_bytes(connected.fd, why.data(), why.size(), &patience);
            throw Error(kExitUsage,
                        format("rank 0 at %s refused rank %d: %s", where.c_str(), rank, one_line(why).c_str()));
        }
        key_ = header.key;
        return "";
    };
    for (int pause_ms = 10;; pause_ms = std::min(2 * pause_ms, 500)) {
        Socket connected;
        const std::string reason = try_once(connected);
        if (reason.empty()) {
            Peer peer;
            peer.rank = 0, peer.socket = connected.take();
            peers_.push_back(std::move(peer));
            return;
        }
        if (deadline.over())
            throw Error(kExitRank, format("rank 0 was not at %s within %g s (--comm-timeout; %s): was it started, with "
                                          "the same --master, and does the network let others through to port %d?",
                                          where.c_str(), watchdog_.timeout_s, reason.c_str(), master_.port));
        if (!said && quiet.over()) {
            std::fprintf(stderr, "rank %d: waiting for rank 0 at %s (%s)\n", rank, where.c_str(), reason.c_str());
            said = true;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(std::min(pause_ms, deadline.left_ms() + 1)));
    }
}

// ---- records -------------------------------------------------------------------------------------------------------

void TcpRanks::read_records() {
    size_t open = peers_.size();
    std::vector<pollfd> waiting{{wake_[0], POLLIN, 0}};
    for (const Peer& peer : peers_) waiting.push_back({peer.socket, POLLIN, 0});
    while (open > 0) {
        if (poll(waiting.data(), nfds_t(waiting.size()), -1) < 0) continue;  // EINTR
        if (waiting[0].revents) return;
        for (size_t i = 0; i < peers_.size(); i++)
            if (waiting[i + 1].revents && !read_one(peers_[i])) waiting[i + 1].fd = -1, open--;
    }
}

// False when there is no more to come.
bool TcpRanks::read_one(Peer& peer) {
    Header header = {};
    const bool complete = receive_bytes(peer.socket, &header, sizeof(header));
    if (!complete) {
        const std::lock_guard lock(mutex_);
        if (!peer.ended) watchdog_.give_up(format("rank %d is gone: its connection is closed", peer.rank));
        return false;
    }
    if (header.magic != kMagic || header.key != key_ || header.bytes > kMostBytes)
        watchdog_.give_up(format("what comes from rank %d is not of this run", peer.rank));
    std::string body(header.bytes, ' ');
    if (!receive_bytes(peer.socket, body.data(), body.size()))
        watchdog_.give_up(format("rank %d is gone: its connection is closed", peer.rank));
    if (header.kind == kFailed) {
        if (!body.empty()) {
            forwarded_ = one_line(body);
            watchdog_.give_up("ended by " + forwarded_);
        }
        // What is wrong there may be wrong here as well, and then this rank says it better itself.
        pollfd leaving{wake_[0], POLLIN, 0};
        if (poll(&leaving, 1, 1000) > 0) return false;
        watchdog_.give_up(format("rank %d has ended with an error, which it has printed", peer.rank));
    }
    const std::lock_guard lock(mutex_);
    if (header.kind == kGoodbye) peer.ended = true;
    if (header.kind == kRecord) peer.records.push_back(std::move(body));
    arrived_.notify_all();
    return true;
}

void TcpRanks::tell_all(const std::string& why) {
    const Header header{kMagic, kFailed, key_, why.size()};
    std::string message(reinterpret_cast<const char*>(&header), sizeof(header));
    message += why;
    // Whoever does not take it now hangs, or is gone.
    for (const Peer& peer : peers_) send(peer.socket, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void TcpRanks::send_record(const Peer& peer, const std::string& record) {
    // If the other end is gone, the reader ends this rank.
    send_message(peer.socket, kRecord, key_, record);
}

std::string TcpRanks::next_record(Peer& peer) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return !peer.records.empty() || peer.ended; });
    if (peer.records.empty()) watchdog_.give_up(format("rank %d has finished, and this rank has not", peer.rank));
    std::string record = std::move(peer.records.front());
    peer.records.pop_front();
    return record;
}

std::vector<std::string> TcpRanks::all_gather(const std::string& record) {
    ensure(record.size() <= kMostBytes / size_t(world_size));
    std::vector<std::string> records(static_cast<size_t>(world_size));
    if (rank != 0) {
        const Watchdog::Watch watch(&watchdog_, "exchange of records");
        send_record(peers_[0], record);
        // All of them, each with its size before it
        const std::string all = next_record(peers_[0]);
        size_t at = 0;
        for (std::string& each : records) {
            uint64_t bytes = 0;
            ensure(at + sizeof(bytes) <= all.size());
            std::memcpy(&bytes, all.data() + at, sizeof(bytes));
            ensure(bytes <= all.size() - at - sizeof(bytes));
            each = all.substr(at + sizeof(bytes), bytes);
            at += sizeof(bytes) + bytes;
        }
        return records;
    }
    const Watchdog::Missing missing = [this] {
        const std::lock_guard lock(mutex_);
        std::vector<int> ranks;
        for (const Peer& peer : peers_)
            if (peer.records.empty()) ranks.push_back(peer.rank);
        return rank_list(ranks);
    };
    const Watchdog::Watch watch(&watchdog_, "exchange of records", -1, &missing);
    records[0] = record;
    // Taken only when all have come, so that `missing` can tell who has not.
    {
        std::unique_lock lock(mutex_);
        arrived_.wait(lock, [this] {
            const auto has_come = [](const Peer& peer) { return !peer.records.empty(); };
            const auto will_not = [](const Peer& peer) { return peer.records.empty() && peer.ended; };
            return std::all_of(peers_.begin(), peers_.end(), has_come) ||
                   std::any_of(peers_.begin(), peers_.end(), will_not);
        });
    }
    for (Peer& peer : peers_) records[size_t(peer.rank)] = next_record(peer);
    std::string all;
    for (const std::string& each : records) {
        const uint64_t bytes = each.size();
        all.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes)) += each;
    }
    for (const Peer& peer : peers_) send_record(peer, all);
    return records;
}
