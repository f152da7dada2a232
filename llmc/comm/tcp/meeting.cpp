// See meeting.h.
#include "llmc/comm/tcp/meeting.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include "llmc/base/check.h"     // require, format
#include "llmc/base/terminal.h"  // peer_text
#include "llmc/comm/host.h"      // raise_file_limit
#include "llmc/comm/tcp/hmac.h"  // hmac_sha256, random_bytes
#include "llmc/comm/watchdog.h"  // rank_list

namespace {

constexpr double kQuietS = 5;         // wait before the first line about waiting
constexpr double kQuietAgainS = 30;   // wait before a line with another reason
constexpr int kMostWarnings = 20;     // about guests, since anybody on the network can cause them
constexpr size_t kLeastSecret = 16;   // bytes
constexpr size_t kMostSecret = 4096;  // bytes of a file

using Nonce = std::array<uint8_t, 32>;
struct Hello {
    Nonce nonce;
    uint64_t run_hash;  // hash of the run's name and the nonce
    int32_t rank, world_size;
    uint32_t lane, has_secret, numbers_anew, unused;
};
struct Challenge {
    Nonce nonce;
};

template <class T>
std::string bytes_of(const T& value) {
    return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

Nonce new_nonce() {
    Nonce nonce;
    std::memcpy(nonce.data(), random_bytes(nonce.size()).data(), nonce.size());
    return nonce;
}

uint64_t run_hash(const Meeting& meeting, const Nonce& nonce) {
    const Digest digest = hmac_sha256(meeting.run_key, bytes_of(nonce));
    uint64_t hash = 0;
    std::memcpy(&hash, digest.data(), sizeof(hash));
    return hash;
}

// The HMAC by which an end proves that it knows the secret. `whose` differs between the two ends, so that neither can
// send the other's proof back.
Digest proof(const Meeting& meeting, const char* whose, const Hello& hello, const Challenge& challenge) {
    return hmac_sha256(meeting.secret + '\n' + meeting.run_key, whose + ('\n' + bytes_of(hello)) + bytes_of(challenge));
}
constexpr const char* kOfRank = "anvil: a rank";
constexpr const char* kOfFirst = "anvil: rank 0";

constexpr const char* kKeyAdvice = "give all ranks the same ANVIL_KEY";

// The beginning of messages of a listener.
std::string place_text(const Meeting& meeting, const std::string& where) {
    return meeting.of_hosts ? format("rank %d at %s", meeting.listener, where.c_str()) : "--master " + where;
}
constexpr const char* kNetworkAdvice =
    "does the network let it through to any port of that host (a firewall), and is "
    "it the right one of several (--interface)?";

std::string no_more_connections(size_t has, const Expected& expected, const Meeting& meeting, int error) {
    const std::string whose = error == ENFILE ? "the system allows no more open files (sysctl fs.file-max)"
                                              : format("a process here may open %zu files", raise_file_limit());
    return format(
        "rank %d can take no more than %zu connections and needs %zu, %s: %s. Start it "
        "where the hard limit is higher (ulimit -Hn; LimitNOFILE of systemd, --ulimit nofile of docker)",
        meeting.listener, has, expected.ranks.size() * size_t(expected.lanes),
        meeting.of_hosts ? format("%d for each host after it", expected.lanes).c_str() : "one for each other rank",
        whose.c_str());
}

// ---- the listener ---------------------------------------------------------------------------------------------------

class Reception {
public:
    Reception(const Listeners& listeners, const Expected& expected, const Meeting& meeting, uint64_t key,
              std::vector<Seat>& seats)
        : listeners_(listeners),
          expected_(expected),
          expected_ranks_(expected.ranks.begin(), expected.ranks.end()),
          meeting_(meeting),
          key_(key),
          seats_(seats) {
        if (!events_.is_open()) throw Error(kExitUsage, no_more_connections(0, expected_, meeting_, errno));
        for (const Socket& listener : listeners_.sockets) watch(listener.fd, For::data, Whose::listener);
    }

    bool full() const { return seats_.size() == expected_.ranks.size() * size_t(expected_.lanes); }
    std::vector<int> missing() const {
        std::vector<int> ranks;
        for (const int r : expected_.ranks)
            for (int lane = 0; lane < expected_.lanes; lane++)
                if (!is_there(r, lane)) {
                    ranks.push_back(r);
                    break;
                }
        return ranks;
    }

    // One turn: handles what guests and seats have sent, and accepts new connections.
    void attend(int wait_ms) {
        // All events, so that none is left for another turn.
        const size_t most = listeners_.sockets.size() + seats_.size() + guests_.size();
        std::set<int> speak;
        // Seats first, so that a rank that comes for a seat that was just freed finds it free.
        for (const uint64_t from : events_.wait(most, is_closed_ ? std::min(wait_ms, 10) : wait_ms)) {
            if (Whose(from >> 32) == Whose::seat) free_seat(int(from));
            if (Whose(from >> 32) == Whose::guest) speak.insert(int(from));
        }
        for (size_t i = guests_.size(); i-- > 0;)
            if ((speak.contains(guests_[i].socket.fd) && hear(guests_[i])) || is_late(guests_[i]))
                guests_.erase(guests_.begin() + int64_t(i));
        is_crowded_ = false;
        for (const Socket& listener : listeners_.sockets)
            while (has_room() && admit(listener)) continue;
        if (const bool closed = is_crowded_ || !has_room(); closed != std::exchange(is_closed_, closed))
            for (const Socket& listener : listeners_.sockets)
                watch(listener.fd, closed ? For::nothing : For::data, Whose::listener);
    }

private:
    using For = Poller::For;
    enum class Whose { listener, seat, guest };  // to which an event belongs
    struct Guest {
        Socket socket;
        std::string from, said;
        Deadline until;
        bool was_asked = false;  // it has sent Hello and received Challenge
        Hello hello = {};
        Challenge challenge = {};
    };
    const Listeners& listeners_;
    const Expected& expected_;
    const std::set<int> expected_ranks_;
    const Meeting& meeting_;
    const uint64_t key_;
    std::vector<Seat>& seats_;
    std::set<std::pair<int, int>> taken_;  // (rank, lane) of each seat
    std::vector<Guest> guests_;            // in the order of their arrival
    Poller events_;
    Socket spare_ = Socket(open("/dev/null", O_RDONLY | O_CLOEXEC));  // for other_end, when no more files are allowed
    bool is_crowded_ = false;  // this process cannot open more files: guests have a tenth of their time
    bool is_closed_ = false;   // new connections are not accepted at the moment
    int warnings_ = 0;

    bool is_late(const Guest& guest) const {
        return guest.until.left_ms() <= (is_crowded_ ? 900 * meeting_.greeting_s : 0);
    }

    // A guest is not dropped in the first hundredth of its time. Otherwise ranks that connect all at once would
    // displace each other again and again.
    bool is_fresh(const Guest& guest) const { return guest.until.left_ms() > 990 * meeting_.greeting_s; }
    bool has_room() const {
        return !is_crowded_ && (guests_.size() < meeting_.most_guests || !is_fresh(guests_.front()));
    }

    bool is_there(int rank, int lane) const { return taken_.contains({rank, lane}); }

    void watch(int fd, For what, Whose whose) { ensure(events_.watch(fd, uint64_t(whose) << 32 | uint32_t(fd), what)); }

    void warn(const std::string& text) {
        if (++warnings_ > kMostWarnings) return;
        std::fprintf(stderr, "warning: rank %d: %s%s\n", meeting_.listener, text.c_str(),
                     warnings_ == kMostWarnings ? " (more such warnings are left out)" : "");
    }

    void free_seat(int fd) {
        const auto seat =
            std::find_if(seats_.begin(), seats_.end(), [&](const Seat& seat) { return seat.socket.fd == fd; });
        warn(format("rank %d (%s) is gone before all were there: waiting for another", seat->rank, seat->from.c_str()));
        taken_.erase({seat->rank, seat->lane});
        seats_.erase(seat);
    }

    // Accepts a connection. False: there was none.
    bool admit(const Socket& listener) {
        Connection connection = accept_from(listener);
        const int error = errno;
        if (connection.socket.fd >= 0) {
            watch(connection.socket.fd, For::data, Whose::guest);
            guests_.push_back({std::move(connection.socket), connection.from, {}, Deadline(meeting_.greeting_s)});
            if (guests_.size() > meeting_.most_guests) drop_one();
            return true;
        }
        if (error == EMFILE || error == ENFILE) {
            if (guests_.empty())
                throw Error(kExitUsage, no_more_connections(seats_.size(), expected_, meeting_, error));
            is_crowded_ = true;
        }  // else the connection is gone already
        return false;
    }

    // Drops the oldest guest that has sent nothing, unless it is fresh, else the oldest guest. A rank that was dropped
    // connects again.
    void drop_one() {
        const auto silent =
            std::find_if(guests_.begin(), guests_.end(), [](const Guest& guest) { return !guest.was_asked; });
        guests_.erase(silent == guests_.end() || is_fresh(*silent) ? guests_.begin() : silent);
    }

    // Handles what a guest has sent. True: the guest is done, because it has a seat or was refused.
    bool hear(Guest& guest) {
        const size_t body_bytes = guest.was_asked ? sizeof(Digest) : sizeof(Hello), bytes = sizeof(Header) + body_bytes;
        char data[sizeof(Header) + std::max(sizeof(Digest), sizeof(Hello))];
        const ssize_t got = recv(guest.socket.fd, data, bytes - guest.said.size(), MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
        if (got > 0) guest.said.append(data, size_t(got));
        Header header = {};
        std::memcpy(&header, guest.said.data(), std::min(guest.said.size(), sizeof(header)));
        const bool has_header = guest.said.size() >= sizeof(header);
        const bool is_ours = guest.said.size() < sizeof(header.magic) || header.magic == kMagic;
        if (got > 0 && is_ours && has_header && header.kind == kHello && header.bytes != sizeof(Hello))
            return refuse(guest, "it is of another build: start all ranks with the same program");
        if (got <= 0 || !is_ours ||
            (has_header && (header.kind != (guest.was_asked ? kProof : kHello) || header.bytes != body_bytes))) {
            // No warning about a port scan, which sends nothing.
            if (!guest.said.empty())
                warn(format("%s connected to port %d and is no rank of Anvil's: ignored", guest.from.c_str(),
                            listeners_.port));
            return true;
        }
        if (guest.said.size() < bytes) return false;
        const std::string body = guest.said.substr(sizeof(header));
        guest.said.clear();
        return guest.was_asked ? take_proof(guest, body) : take_hello(guest, body);
    }

    bool take_hello(Guest& guest, const std::string& body) {
        std::memcpy(&guest.hello, body.data(), sizeof(guest.hello));
        if (guest.hello.run_hash != run_hash(meeting_, guest.hello.nonce))
            return refuse(guest,
                          format("port %d belongs to another run: give each run a port of its own", listeners_.port));
        if (bool(guest.hello.has_secret) != !meeting_.secret.empty())
            return refuse(guest, format("rank %d %s a key, and this rank %s: %s", meeting_.listener,
                                        meeting_.secret.empty() ? "has not" : "has",
                                        meeting_.secret.empty() ? "has" : "has not", kKeyAdvice));
        if (bool(guest.hello.numbers_anew) != meeting_.numbers_anew)
            return refuse(guest, format("rank %d %s --supervise, and this rank %s: give it to all ranks, or to none",
                                        meeting_.listener, meeting_.numbers_anew ? "has" : "has not",
                                        meeting_.numbers_anew ? "has not" : "has"));
        if (meeting_.secret.empty()) {
            spare_ = Socket();
            const OtherEnd end = other_end(guest.socket.fd);
            spare_ = Socket(open("/dev/null", O_RDONLY | O_CLOEXEC));
            if (end == OtherEnd::nobody) return true;
            if (end == OtherEnd::another_user)
                return refuse(guest, format("it is of another user of this host: %s", kKeyAdvice));
        }
        guest.was_asked = true;
        guest.challenge.nonce = new_nonce();
        send_message(guest.socket.fd, kChallenge, 0, bytes_of(guest.challenge));
        return false;
    }

    bool take_proof(Guest& guest, const std::string& body) {
        const Hello& hello = guest.hello;
        // If this end was slow, the rank may have hung up and connected again. Then this connection must not get a
        // seat.
        char more;
        errno = 0;
        if (recv(guest.socket.fd, &more, 1, MSG_PEEK | MSG_DONTWAIT) <= 0 && errno != EAGAIN) return true;
        Digest given;
        std::memcpy(given.data(), body.data(), given.size());
        if (!equal_digests(given, proof(meeting_, kOfRank, hello, guest.challenge)))
            return refuse(guest, format("its key is not that of rank %d: %s", meeting_.listener, kKeyAdvice));
        if (hello.world_size != meeting_.world_size)
            return refuse(guest, format("it was told that there are %d ranks, and rank %d that there are %d: start all "
                                        "alike",
                                        hello.world_size, meeting_.listener, meeting_.world_size));
        if (!expected_ranks_.contains(hello.rank) || hello.lane >= uint32_t(expected_.lanes))
            return refuse(guest, format("its rank is %d, and those to come are %s", hello.rank,
                                        rank_list(expected_.ranks).c_str()));
        if (is_there(hello.rank, int(hello.lane)))
            return refuse(guest, format("another process is rank %d already: each needs a number of its own, and each "
                                        "run a port of its own",
                                        hello.rank));
        prepare(guest.socket.fd);
        send_message(guest.socket.fd, kWelcome, key_, bytes_of(proof(meeting_, kOfFirst, hello, guest.challenge)));
        watch(guest.socket.fd, For::hangup, Whose::seat);
        taken_.insert({hello.rank, int(hello.lane)});
        seats_.push_back({hello.rank, int(hello.lane), std::move(guest.socket), guest.from});
        return true;
    }

    bool refuse(const Guest& guest, const std::string& why) {
        warn(format("refused a rank %d from %s: %s", guest.hello.rank, guest.from.c_str(), why.c_str()));
        send_message(guest.socket.fd, kRefused, 0, why);
        return true;
    }
};

// ---- the other ranks ----------------------------------------------------------------------------------------------

struct Caller {
    const Seat& self;
    const Meeting& meeting;
    const Deadline deadline;
    const Look look;
    uint64_t key = 0;

    // Connects and authenticates. Returns "" and sets `connected`, or returns why the listener is not there yet. Throws
    // an Error on anything else.
    std::string greet(const Address& address, Socket& connected) {
        const std::string where = text_of(address), place = place_text(meeting, where);
        const Deadline patience(std::min(meeting.greeting_s, std::max(0.1, deadline.left_ms() * 1e-3)));
        prepare(connected.fd);
        Hello hello = {
            new_nonce(),          0, self.rank, meeting.world_size, uint32_t(self.lane), !meeting.secret.empty(),
            meeting.numbers_anew, 0};
        hello.run_hash = run_hash(meeting, hello.nonce);
        const std::string silent = "it does not answer";
        Header header = {};
        const auto answered = [&](Kind kind, size_t bytes) {
            if (!receive_bytes(connected.fd, &header.magic, sizeof(header.magic), &patience, look)) return false;
            require(header.magic == kMagic &&
                        receive_bytes(connected.fd, &header.kind, sizeof(header) - 4, &patience, look) &&
                        (header.kind == kRefused || (header.kind == kind && header.bytes == bytes)),
                    "%s: whoever listens there is no rank %d of Anvil's, or of another build: give a port that "
                    "nothing else uses, and start all ranks with the same program",
                    place.c_str(), meeting.listener);
            if (header.kind == kind) return true;
            std::string why(std::min<uint64_t>(header.bytes, kMostPeerText), ' ');
            receive_bytes(connected.fd, why.data(), why.size(), &patience, look);
            why = peer_text(why);
            why.erase(why.find_last_not_of(' ') + 1);  // fewer bytes arrived than were announced
            throw Error(kExitUsage, format("rank %d at %s refused rank %d: %s", meeting.listener, where.c_str(),
                                           self.rank, why.c_str()));
        };
        Challenge challenge;
        if (!send_message(connected.fd, kHello, 0, bytes_of(hello)) || !answered(kChallenge, sizeof(challenge)) ||
            !receive_bytes(connected.fd, &challenge, sizeof(challenge), &patience, look))
            return silent;
        // Only now: the kernel does not know the owner of the other end before it has accepted the connection.
        const OtherEnd end = meeting.secret.empty() ? other_end(connected.fd) : OtherEnd::elsewhere;
        if (end == OtherEnd::nobody) return silent;
        require(end != OtherEnd::another_user, "%s: another user of this host listens there: give another port, or %s",
                place.c_str(), kKeyAdvice);
        Digest given;
        if (!send_message(connected.fd, kProof, 0, bytes_of(proof(meeting, kOfRank, hello, challenge))) ||
            !answered(kWelcome, sizeof(given)) ||
            !receive_bytes(connected.fd, given.data(), given.size(), &patience, look))
            return silent;
        require(equal_digests(given, proof(meeting, kOfFirst, hello, challenge)),
                "%s: whoever listens there does not know this run's key: %s", place.c_str(), kKeyAdvice);
        key = header.key;
        return "";
    }
};

// The addresses to which the names of a place resolve. Cached for some seconds, because resolving costs more than a
// refused connection, and a thousand ranks that wait for rank 0 would keep its cores busy.
class RankNumbers {
public:
    const std::vector<Address>& of(const Address& address, std::string* why) {
        Known& known = of_[text_of(address)];
        if (known.numbers.empty() || known.until.over())
            known = {numbers_of(address, &known.why), known.why, Deadline(kQuietS)};
        *why = known.why;
        return known.numbers;
    }

private:
    struct Known {
        std::vector<Address> numbers = {};
        std::string why = {};
        Deadline until = Deadline(0);
    };
    std::map<std::string, Known> of_;
};

// A Look that throws an Error once a signal has arrived.
Look look_for_signal(int rank, const Meeting& meeting, const std::string& waits_for) {
    return [=, &meeting] {
        if (const char* signal = meeting.stop_signal())
            throw Error(kExitRank, format("rank %d: %s came while this rank waited for %s: nothing was done", rank,
                                          signal, waits_for.c_str()));
    };
}

}  // namespace

Listeners listen_for_ranks(const Address& master, const Meeting& meeting) {
    const Look look = look_for_signal(0, meeting, "the name of its host, " + master.host);
    const Deadline deadline(meeting.timeout_s), quiet(kQuietS);
    bool said = false;
    for (std::string why; !is_known(master, &why); poll(nullptr, 0, 100)) {
        look();
        if (deadline.over())
            throw Error(kExitRank, format("--master %s: %s, for %g s (--comm-timeout): give the name or the number of "
                                          "the host of rank 0",
                                          text_of(master).c_str(), why.c_str(), meeting.timeout_s));
        if (!said && quiet.over()) {
            std::fprintf(stderr, "rank 0: waiting for the name of its host, %s (%s)\n", master.host.c_str(),
                         why.c_str());
            said = true;
        }
    }
    for (;; poll(nullptr, 0, 100)) {
        try {
            return listen_at(master, meeting.interface);
        } catch (const Error& error) {
            if (!meeting.waits_for_port || deadline.over()) throw;
            if (!said && quiet.over()) std::fprintf(stderr, "rank 0: waiting, since %s\n", error.what());
            said |= quiet.over();
        }
        look();
    }
}

void await_ranks(const Listeners& listeners, const std::string& where, const Expected& expected, const Meeting& meeting,
                 uint64_t key, std::vector<Seat>& seats) {
    if (!listeners.local && meeting.secret.empty())
        std::fprintf(stderr, "warning: rank 0: any host that reaches port %d can join this run: %s (doc/security.md)\n",
                     listeners.port, kKeyAdvice);
    Reception reception(listeners, expected, meeting, key, seats);
    const Deadline deadline(meeting.timeout_s), quiet(kQuietS);
    bool said = false;
    while (!reception.full()) {
        look_for_signal(meeting.listener, meeting, rank_list(reception.missing()))();
        if (deadline.over() && meeting.may_go_without) {
            std::fprintf(stderr, "warning: %s did not come back to %s within %g s (--comm-timeout): going on without\n",
                         rank_list(reception.missing()).c_str(), where.c_str(), meeting.timeout_s);
            break;
        }
        if (deadline.over()) {
            const std::string advice =
                meeting.of_hosts ? kNetworkAdvice
                                 : format(
                                       "was it started, with the same --master, and does the network let it through "
                                       "to port %d?",
                                       listeners.port);
            throw Error(kExitRank, format("%s did not come to %s within %g s (--comm-timeout): %s",
                                          rank_list(reception.missing()).c_str(), where.c_str(), meeting.timeout_s,
                                          advice.c_str()));
        }
        if (!said && quiet.over()) {
            std::fprintf(stderr, "rank %d: waiting at %s for %s\n", meeting.listener, where.c_str(),
                         rank_list(reception.missing()).c_str());
            said = true;
        }
        reception.attend(std::min(deadline.left_ms(), 100));
    }
    std::sort(seats.begin(), seats.end(),
              [](const Seat& a, const Seat& b) { return std::pair(a.rank, a.lane) < std::pair(b.rank, b.lane); });
}

Seat find_listener(const Seat& self, const std::vector<Address>& place, const Meeting& meeting, uint64_t* key) {
    const std::string where = text_of(place[0]), who = format("rank %d", meeting.listener);
    Caller caller{self, meeting, Deadline(meeting.timeout_s),
                  look_for_signal(self.rank, meeting, who + " at " + where)};
    Deadline quiet(kQuietS);
    RankNumbers known;
    std::string said;
    for (int pause_ms = 10;; pause_ms = std::min(2 * pause_ms, 500)) {
        std::string why;
        for (const Address& address : place) {
            Socket connected;
            for (const Address& number : known.of(address, &why)) {
                connected =
                    connect_to(number, meeting.of_hosts ? meeting.interface : "", caller.deadline, caller.look, &why);
                if (connected.fd >= 0) break;
            }
            if (connected.fd < 0) continue;
            why = caller.greet(address, connected);
            if (!why.empty()) continue;
            *key = caller.key;
            return {meeting.listener, self.lane, std::move(connected), text_of(address)};
        }
        if (caller.deadline.over()) {
            const std::string advice =
                meeting.of_hosts ? kNetworkAdvice
                                 : format(
                                       "was it started, with the same --master, and does the network let others "
                                       "through to port %d?",
                                       place[0].port);
            throw Error(kExitRank, format("%s was not at %s within %g s (--comm-timeout; %s): %s", who.c_str(),
                                          where.c_str(), meeting.timeout_s, why.c_str(), advice.c_str()));
        }
        if (said != why && quiet.over()) {
            std::fprintf(stderr, "rank %d: waiting for %s at %s (%s)\n", self.rank, who.c_str(), where.c_str(),
                         why.c_str());
            said = why, quiet = Deadline(kQuietAgainS);
        }
        for (int left_ms = std::min(pause_ms, caller.deadline.left_ms() + 1); left_ms > 0; left_ms -= 100) {
            caller.look();
            poll(nullptr, 0, std::min(left_ms, 100));
        }
    }
}

std::string given_secret(const std::function<const char*(const char*)>& environment) {
    const char* const key = environment("ANVIL_KEY");
    const char* const path = environment("ANVIL_KEY_FILE");
    std::string secret = key ? key : "", from = "ANVIL_KEY";
    if (secret.empty() && path && *path) {
        from = format("ANVIL_KEY_FILE=%s", path);
        const Socket file(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
        struct stat status = {};
        require(file.fd >= 0 && fstat(file.fd, &status) == 0, "%s: cannot be read: %s", from.c_str(),
                std::strerror(errno));
        require(S_ISREG(status.st_mode), "%s: expected a file", from.c_str());
        require(!(status.st_mode & 077) && (status.st_uid == geteuid() || status.st_uid == 0),
                "%s: others can read or change it (mode %03o, user %d): chmod 600, and make it your own", from.c_str(),
                unsigned(status.st_mode & 0777), int(status.st_uid));
        secret.resize(kMostSecret);
        const ssize_t got = read(file.fd, secret.data(), secret.size());
        require(got >= 0, "%s: cannot be read: %s", from.c_str(), std::strerror(errno));
        secret.resize(size_t(got));
        while (!secret.empty() && std::strchr(" \t\r\n", secret.back())) secret.pop_back();
        require(!secret.empty(), "%s: the file is empty: write a key into it (openssl rand -hex 32)", from.c_str());
    }
    require(secret.empty() || secret.size() >= kLeastSecret,
            "%s: a key of %zu bytes can be guessed, expected at least %zu: make one by openssl rand -hex 32",
            from.c_str(), secret.size(), kLeastSecret);
    return secret;
}
