/*
TCP between ranks: sockets, addresses, and messages of a header and a body. Who may speak is meeting.h's.

On the wire, in the byte order of the machines, which must be alike: a header of 24 bytes {magic, kind, key, bytes} and
the bytes of the body. The key is rank 0's random number for this run: what a connection carries belongs to it.
*/
#pragma once
#include <sys/socket.h>
#include <unistd.h>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

inline constexpr int kDefaultPort = 29500;
struct Address {
    std::string host;
    int port;
};
std::string text_of(const Address& address);  // "node1:29500", "[::1]:29500"

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

struct Deadline {
    using Clock = std::chrono::steady_clock;
    Clock::time_point at;
    explicit Deadline(double seconds)
        : at(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}
    int left_ms() const;
    bool over() const { return Clock::now() >= at; }
};

// Called while waiting, every tenth of a second and after every signal; throws to end the wait.
using Look = std::function<void()>;

// ---- connections ---------------------------------------------------------------------------------------------------

// Where rank 0 listens: if the address says localhost, only there; else in the network of an interface, or on every
// one, since a host does not always know the address that others reach it by. An Error if it cannot.
struct Listeners {
    std::vector<Socket> sockets;
    int port = 0;
    bool local = false;  // only this host can connect
};
Listeners listen_at(const Address& master, const std::string& interface = "");
Listeners listen_anywhere(bool local);                                // at a port that the system chooses
Address listen_at_number(const std::string& number, Listeners& all);  // adds one, at a port that the system chooses

// The numbers of this host by which others may reach it: those of its interfaces that are up, or of one of them; an
// Error if that has none.
std::vector<std::string> own_addresses(const std::string& interface = "");

// Whether it is one of IPv4 or IPv6, and no name.
bool is_number(const std::string& host);

// Whether a name means an address yet; `why` it does not.
bool is_known(const Address& address, std::string* why);
// What it means, the best first: "10.0.0.1:29500". None: nobody knows it yet, and `why`.
std::vector<Address> numbers_of(const Address& address, std::string* why);

// The next connection, or nothing; errno tells why.
struct Connection {
    Socket socket;
    std::string from;  // "10.0.0.2:41000"
};
Connection accept_from(const Socket& listener);

// Connects to any of the host's addresses, by an interface of this host or by any, or not: `why` the last one failed.
Socket connect_to(const Address& address, const std::string& interface, const Deadline& deadline, const Look& look,
                  std::string* why);

// Small records without delay; a host that has lost power is noticed after a minute.
void prepare(int fd);
// The same of a connection that a busy rank may leave unread for as long as it likes.
void prepare_for_data(int fd);

// The numbers of its ends: "10.0.0.1".
std::string own_number(int fd);
std::string peer_number(int fd);

// Who holds the other end, as far as this host knows.
enum class OtherEnd {
    this_user,
    another_user,  // of this host
    nobody,        // of this host holds it any more
    elsewhere,     // on another host, or this system does not tell (no sock_diag, /proc/net/tcp is hidden)
};
// By the kernel's answer about this connection (sock_diag), or, where it gives none or is not asked, by its table of
// all.
OtherEnd other_end(int fd, bool asks = true);

// ---- messages ------------------------------------------------------------------------------------------------------

enum Kind : uint32_t {
    kHello = 1,    // body: Hello (meeting.h)
    kWelcome = 2,  // key: that of the run from here on; body: rank 0's proof
    kRefused = 3,  // body: why
    kRecord = 4,
    kGoodbye = 5,    // this rank has finished
    kFailed = 6,     // this rank ends at once; body: "rank 1: WHY"; empty: with an error of its own
    kChallenge = 7,  // body: Challenge
    kProof = 8,      // body: Proof
    kPiece = 9,      // body: some bytes of a file, beside the records
    kTaken = 10,     // a piece has been taken: there is room for another
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
// False if the other end is gone, or it took too long.
bool receive_bytes(int fd, void* data, size_t bytes, const Deadline* deadline = nullptr, const Look& look = {});
// The body of a message of this size: memory is taken as it comes, so that a header alone takes none.
bool receive_body(int fd, std::string& body, uint64_t bytes);
