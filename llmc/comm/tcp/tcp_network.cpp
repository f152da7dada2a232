// See tcp_network.h.
#include "llmc/comm/tcp/tcp_network.h"
#include <poll.h>
#include <sys/uio.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <sstream>
#include "llmc/base/check.h"          // ensure, format
#include "llmc/comm/tcp/hmac.h"       // random_bytes
#include "llmc/comm/tcp/tcp_ranks.h"  // TcpRanks

namespace {

constexpr size_t kSplitBytes = 256 << 10;      // messages of at least this size use all connections
constexpr size_t kAtOnceBytes = 1 << 20;       // in one direction, before the other one has its turn
constexpr double kControlPlaneSaysWhyS = 2.5;  // TcpRanks waits for a second, on two ranks one after the other

struct Label {
    uint64_t key, number, bytes;
    bool operator==(const Label&) const = default;
};

struct Peer {
    std::string name;  // "rank 2 (10.0.0.2:41000)"
    uint64_t key = 0;
    std::vector<Socket> lanes;
    uint64_t sent = 0, received = 0;  // numbers of messages
};

// A part of a message, in one direction of one connection.
struct Flow {
    int rank;
    Peer* peer;
    int fd;
    bool is_out;
    Label label, got;
    char* data;
    size_t done = 0;  // bytes of the label and the data

    size_t all() const { return sizeof(Label) + label.bytes; }
    bool over() const { return done == all(); }
};

class TcpNetwork : public HostNetwork {
public:
    TcpNetwork(TcpRanks& ranks, std::map<int, Peer> peers) : ranks_(ranks), peers_(std::move(peers)) {}
    const char* name() const override { return "TCP"; }

    void exchange(const void* send, size_t send_bytes, int to, void* receive, size_t receive_bytes, int from,
                  const Look& look) override {
        ensure(send_bytes <= 1 << 30 && receive_bytes <= 1 << 30);
        flows_.clear();
        if (send_bytes) begin(to, true, const_cast<char*>(static_cast<const char*>(send)), send_bytes);
        if (receive_bytes) begin(from, false, static_cast<char*>(receive), receive_bytes);
        while (!flows_.empty()) {
            bool moved = false;
            for (Flow& flow : flows_) moved |= advance(flow, look);
            std::erase_if(flows_, [](const Flow& flow) { return flow.over(); });
            if (flows_.empty()) break;
            if (!moved) wait();
            look(flows_.back().rank);  // the rank that has not sent yet, else the one that has not received
        }
    }

private:
    TcpRanks& ranks_;
    std::map<int, Peer> peers_;
    std::vector<Flow> flows_;
    std::vector<pollfd> waiting_;

    void begin(int rank, bool is_out, char* data, size_t bytes) {
        Peer& peer = peers_.at(rank);
        const size_t lanes = bytes < kSplitBytes ? 1 : peer.lanes.size();
        const uint64_t number = is_out ? peer.sent++ : peer.received++;
        const size_t part = (bytes + lanes - 1) / lanes;
        for (size_t lane = 0, at = 0; lane < lanes; lane++, at += part) {
            const Label label{peer.key, number, std::min(part, bytes - at)};
            flows_.push_back({rank, &peer, peer.lanes[lane].fd, is_out, label, label, data + at});
        }
    }

    // Whether any bytes were transferred.
    bool advance(Flow& flow, const Look& look) {
        // The rest of the label, and of the data after it.
        const size_t of_label = flow.done < sizeof(Label) ? sizeof(Label) - flow.done : 0;
        const size_t data_done = flow.done - (sizeof(Label) - of_label);
        std::array<iovec, 2> parts = {
            {{reinterpret_cast<char*>(&flow.got) + (sizeof(Label) - of_label), of_label},
             {flow.data + data_done, std::min(size_t(flow.label.bytes) - data_done, kAtOnceBytes)}}};
        msghdr message = {};
        message.msg_iov = parts.data() + (of_label ? 0 : 1);
        message.msg_iovlen = of_label ? 2 : 1;
        const ssize_t n = flow.is_out ? sendmsg(flow.fd, &message, MSG_DONTWAIT | kNoSigpipe)
                                      : recvmsg(flow.fd, &message, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
        if (n <= 0) lost(flow, n < 0 ? errno : 0, look);
        flow.done += size_t(n);
        if (of_label && flow.done >= sizeof(Label)) check(flow);
        return true;
    }

    static void check(const Flow& flow) {
        const auto text = [](const Label& label) { return format("%lu of %lu", label.number, label.bytes); };
        const char* const name = flow.peer->name.c_str();
        if (flow.got.key != flow.label.key)
            throw Error(kExitRank, format("%s sends something that is not of this run", name));
        if (!(flow.got == flow.label))
            throw Error(kExitRank, format("%s sends message %s bytes, and %s is expected: it is of another build, or "
                                          "makes other calls",
                                          name, text(flow.got).c_str(), text(flow.label).c_str()));
    }

    void wait() {
        waiting_.clear();
        for (const Flow& flow : flows_) waiting_.push_back({flow.fd, short(flow.is_out ? POLLOUT : POLLIN), 0});
        poll(waiting_.data(), nfds_t(waiting_.size()), 100);  // ms, so that `look` is called
    }

    [[noreturn]] void lost(const Flow& flow, int error, const Look& look) {
        for (const Deadline patience(kControlPlaneSaysWhyS); !patience.over(); poll(nullptr, 0, 10)) look(flow.rank);
        const std::string why = error ? format(" (%s)", std::strerror(error)) : "";
        ranks_.watchdog()->give_up(
            format("%s is gone: its connection is closed%s", flow.peer->name.c_str(), why.c_str()));
    }
};

// Strips the scope of "fe80::1%eth0": the names of interfaces differ between hosts.
std::string without_scope(const std::string& number) { return number.substr(0, number.find('%')); }
std::string scope_of(const std::string& number) { return number.substr(std::min(number.find('%'), number.size())); }

// This host's numeric addresses on its connections to the other leaders, or those of the --interface.
std::set<std::string> own_numbers(const TcpRanks& ranks, const std::vector<int>& leaders,
                                  const std::string& interface) {
    std::set<std::string> numbers;
    for (const int other : leaders)
        if (other != ranks.rank) numbers.insert(ranks.own_number(other));
    if (interface.empty()) return numbers;
    const std::vector<std::string> named = own_addresses(interface);
    return {named.begin(), named.end()};
}

// The addresses at which another leader listens, from its record, with this host's scopes.
std::vector<Address> place_of(const TcpRanks& ranks, int other, const std::string& record,
                              const std::string& interface) {
    std::vector<Address> place;
    std::istringstream words(record);
    for (Address address = {}; words >> address.host >> address.port;) {
        ranks.require_sense(is_number(address.host) && address.port > 0 && address.port < 65536, other, "its address");
        if (address.host.starts_with("fe80:"))
            address.host += interface.empty() ? scope_of(ranks.own_number(0)) : "%" + interface;
        place.push_back(address);
    }
    ranks.require_sense(!place.empty(), other, "its addresses");
    // Prefer the address by which this host is already connected to it.
    const auto known = std::find_if(place.begin(), place.end(), [&](const Address& address) {
        return other == 0 && address.host == ranks.peer_number(0);
    });
    if (known != place.end()) std::iter_swap(place.begin(), known);
    return place;
}

}  // namespace

std::unique_ptr<HostNetwork> make_tcp_network(TcpRanks& ranks, const std::vector<int>& leaders, Meeting meeting) {
    const size_t self = size_t(std::find(leaders.begin(), leaders.end(), ranks.rank) - leaders.begin());
    const bool leads = self < leaders.size();
    // In addition to the run's secret, if any: a key of this meeting, which only ranks of the run know.
    meeting.secret += ranks.broadcast(ranks.rank == 0 ? random_bytes(32) : "");
    meeting.of_hosts = true;
    Listeners listeners;
    std::string record, where;  // the addresses, for the other leaders and for messages
    share_errors(ranks, [&] {
        if (!leads || self + 1 == leaders.size()) return;
        for (const std::string& number : own_numbers(ranks, leaders, meeting.interface)) {
            const Address at = listen_at_number(number, listeners);
            record += format("%s %d ", without_scope(at.host).c_str(), at.port);
            where += (where.empty() ? "" : " and ") + text_of(at);
        }
    });
    const std::vector<std::string> records = ranks.all_gather(record);

    std::map<int, Peer> peers;
    const auto take = [&](Seat seat, uint64_t key) {
        Peer& peer = peers[seat.rank];
        peer.name = format("rank %d (%s)", seat.rank, seat.from.c_str());
        peer.key = key;
        prepare_for_data(seat.socket.fd);
        peer.lanes.push_back(std::move(seat.socket));
    };
    // First connects to the leaders below, which listen already: rank 0 waits for all, the next for all but one, etc.
    for (size_t host = 0; leads && host < self; host++) {
        meeting.listener = leaders[host];
        const std::vector<Address> place =
            place_of(ranks, meeting.listener, records[size_t(meeting.listener)], meeting.interface);
        for (int lane = 0; lane < kTcpLanes; lane++) {
            uint64_t key = 0;
            Seat seat = find_listener({ranks.rank, lane}, place, meeting, &key);
            take(std::move(seat), key);
        }
    }
    if (leads && self + 1 < leaders.size()) {
        uint64_t key = 0;
        std::memcpy(&key, random_bytes(sizeof(key)).data(), sizeof(key));
        meeting.listener = ranks.rank;
        std::vector<Seat> seats;
        const std::vector<int> above(leaders.begin() + int64_t(self) + 1, leaders.end());
        await_ranks(listeners, where, {above, kTcpLanes}, meeting, key, seats);
        for (Seat& seat : seats) take(std::move(seat), key);
    }
    return std::make_unique<TcpNetwork>(ranks, std::move(peers));
}
