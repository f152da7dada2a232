/*
TCP between ranks: sockets, addresses, and messages of a header and a body. Authentication is in meeting.h.

On the wire: a header of 24 bytes {magic, kind, key, bytes}, then the bytes of the body, in the machines' byte order,
which must be the same on all hosts. The key is a random number that rank 0 chooses for the run; every message has it.
*/
#pragma once
#include <unistd.h>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>
#include "llmc/platform/sockets.h"  // other_end

inline constexpr int kDefaultPort = 29500;
struct Address {
    std::string host;
    int port;
};
std::string text_of(const Address& address);  // "node1:29500", "[::1]:29500"

// A socket that is closed on destruction, unless take() has taken it.
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

struct Deadline {
    using Clock = std::chrono::steady_clock;
    Clock::time_point at;
    explicit Deadline(double seconds)
        : at(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}
    int left_ms() const;
    bool over() const { return Clock::now() >= at; }
};

// Called while waiting, every 0.1 s and after every signal. It throws to end the wait.
using Look = std::function<void()>;

// ---- connections ---------------------------------------------------------------------------------------------------

// The listening sockets of rank 0. At localhost if the address says so; else on the given interface, or on all
// interfaces, because a host does not always know by which address others reach it. Throws an Error if it cannot
// listen.
struct Listeners {
    std::vector<Socket> sockets;
    int port = 0;
    bool local = false;  // only this host can connect
};
Listeners listen_at(const Address& master, const std::string& interface = "");
Listeners listen_anywhere(bool local);                                // at a port that the system chooses
Address listen_at_number(const std::string& number, Listeners& all);  // adds a socket at a port that the system chooses

// In this file a "number" is a numeric IP address. The numbers by which other hosts may reach this one: of all its
// interfaces that are up, or of the given one. Throws an Error if the given one has none.
std::vector<std::string> own_addresses(const std::string& interface = "");

// Whether `host` is a numeric IPv4 or IPv6 address, not a name.
bool is_number(const std::string& host);

// Whether the name resolves; if not, sets `why`.
bool is_known(const Address& address, std::string* why);
// The addresses to which the name resolves, the best first: "10.0.0.1:29500". Empty, and sets `why`, if it does not.
std::vector<Address> numbers_of(const Address& address, std::string* why);

// Accepts the next connection. If there is none, the socket is invalid and errno says why.
struct Connection {
    Socket socket;
    std::string from;  // "10.0.0.2:41000"
};
Connection accept_from(const Socket& listener);

// Connects to any of the host's addresses, by the given interface of this host ("": any). On failure the socket is
// invalid, and `why` says why the last address failed.
Socket connect_to(const Address& address, const std::string& interface, const Deadline& deadline, const Look& look,
                  std::string* why);

// Sets options for a connection of records: no delay, and keepalive, so that a host without power is noticed after a
// minute.
void prepare(int fd);
// The same for a connection that a busy rank may leave unread for any time.
void prepare_for_data(int fd);

// The numeric addresses of a connection's two ends: "10.0.0.1".
std::string own_number(int fd);
std::string peer_number(int fd);

// ---- messages ------------------------------------------------------------------------------------------------------

enum Kind : uint32_t {
    kHello = 1,    // body: Hello (meeting.cpp)
    kWelcome = 2,  // key: the run's key from here on; body: rank 0's proof
    kRefused = 3,  // body: the reason
    kRecord = 4,
    kGoodbye = 5,    // this rank has finished
    kFailed = 6,     // this rank ends at once; body: "rank 1: WHY", or empty if it ends with an error of its own
    kChallenge = 7,  // body: Challenge
    kProof = 8,      // body: Proof
    kPiece = 9,      // body: bytes of a file, independent of the records
    kTaken = 10,     // the receiver has taken a piece: there is room for another
};
struct Header {
    uint32_t magic, kind;
    uint64_t key, bytes;
};
inline constexpr uint32_t kMagic = 0x6c76'6e61;  // "anvl"
inline constexpr uint64_t kMostBytes = uint64_t(1) << 30;
inline constexpr uint64_t kMostPieceBytes = (uint64_t(1) << 20) + 64;

std::string message_of(Kind kind, uint64_t key, const std::string& body);
// False if the other end is gone.
bool send_message(int fd, Kind kind, uint64_t key, const std::string& body);
// False if the other end is gone, or if the deadline has passed.
bool receive_bytes(int fd, void* data, size_t bytes, const Deadline* deadline = nullptr, const Look& look = {});
// Receives the body of a message. Allocates memory as bytes arrive, so that a forged header cannot make it allocate
// `bytes` at once. False if the other end is gone.
bool receive_body(int fd, std::string& body, uint64_t bytes);
