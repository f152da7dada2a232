// See tcp_ranks.h.
#include "llmc/comm/tcp/tcp_ranks.h"
#include <poll.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <utility>
#include "llmc/base/check.h"            // ensure, format
#include "llmc/base/terminal.h"         // peer_text
#include "llmc/comm/tcp/hmac.h"         // random_bytes
#include "llmc/comm/tcp/tcp_network.h"  // make_tcp_network

static Meeting of_all(Meeting meeting, int world_size) {
    meeting.world_size = world_size;
    return meeting;
}

TcpRanks::TcpRanks(int rank, int world_size, const std::vector<Address>& place, const Meeting& meeting,
                   const Listeners* listeners)
    : watchdog_(rank, meeting.timeout_s), meeting_(of_all(meeting, world_size)) {
    this->rank = rank, this->world_size = world_size;
    host_ranks = {rank};
    watchdog_.add_hook([this](const std::string& why) { tell_all(forwarded_.empty() ? why : forwarded_); });
    std::vector<Seat> seats;
    const auto take_seats = [&] {
        for (Seat& seat : seats) peers_.push_back({.rank = seat.rank, .socket = seat.socket.take(), .from = seat.from});
    };
    try {
        if (rank == 0) {
            std::memcpy(&key_, random_bytes(sizeof(key_)).data(), sizeof(key_));
            Listeners own;
            if (!listeners) own = listen_for_ranks(place[0], meeting_);
            Expected others;
            for (int r = 1; r < world_size; r++) others.ranks.push_back(r);
            await_ranks(listeners ? *listeners : own, text_of(place[0]), others, meeting_, key_, seats);
        } else {
            seats.push_back(find_listener({rank}, place, meeting_, &key_));
        }
        take_seats();
        if (meeting.numbers_anew) number_anew();
        if (new_pipe(wake_) != 0) throw Error(kExitUsage, format("cannot make a pipe: %s", std::strerror(errno)));
        watch_peers();
        reader_ = std::thread([this] { read_records(); });
    } catch (const Error& error) {
        if (peers_.empty()) take_seats();
        tell_all(format("rank %d: %s", rank, error.what()));
        close_all();
        throw;
    }
}

// Renumbers the ranks. Called before the reader starts, so nothing else has seen the old numbers.
void TcpRanks::number_anew() {
    if (rank == 0) {
        world_size = int(peers_.size()) + 1;
        for (size_t i = 0; i < peers_.size(); i++) peers_[i].rank = int(i) + 1;
        for (const Peer& peer : peers_) send_to(peer, kRecord, format("%d %d", peer.rank, world_size));
    } else {
        // Long enough: rank 0 began to wait before this rank connected, and waits for timeout_s.
        const Deadline deadline(meeting_.timeout_s + 10);
        const Look look = [&] {
            if (const char* signal = meeting_.stop_signal())
                throw Error(
                    kExitRank,
                    format("rank %d: %s came while this rank waited for the others: nothing was done", rank, signal));
        };
        Header header = {};
        std::string body;
        if (!receive_bytes(peers_[0].socket, &header, sizeof(header), &deadline, look) || header.magic != kMagic ||
            header.key != key_ ||
            !receive_body(peers_[0].socket, body, std::min<uint64_t>(header.bytes, kMostPeerText)))
            throw Error(kExitRank, format("%s is gone before all ranks were there", name_of(0).c_str()));
        if (header.kind == kFailed) throw Error(kExitRank, "ended by " + peer_text(body));
        int number = 0, size = 0;
        require_sense(header.kind == kRecord && std::sscanf(body.c_str(), "%d %d", &number, &size) == 2 && number > 0 &&
                          number <= rank && number < size && size <= world_size,
                      0, "the numbers of the ranks");
        rank = number, world_size = size;
    }
    host_ranks = {rank};
    meeting_.world_size = world_size;
    watchdog_.set_rank(rank);
}

TcpRanks::~TcpRanks() {
    const bool in_order = std::uncaught_exceptions() == 0;
    // Others hang up when they learn of it, and their messages must not hide the error that ends this rank.
    leaving_ = true;
    for (const Peer& peer : peers_) {
        send_to(peer, in_order ? kGoodbye : kFailed, "");
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

std::string TcpRanks::name_of(int of_rank) const {
    if (of_rank == rank) return Ranks::name_of(of_rank);
    const Peer& peer = peer_of(of_rank);
    return format("rank %d (%s%s)", of_rank, peer.rank == of_rank ? "" : "by way of rank 0 at ", peer.from.c_str());
}

std::string TcpRanks::own_number(int toward_rank) const { return ::own_number(peer_of(toward_rank).socket); }
std::string TcpRanks::peer_number(int of_rank) const { return ::peer_number(peer_of(of_rank).socket); }

std::unique_ptr<HostNetwork> TcpRanks::connect_hosts(const std::vector<int>& leaders) {
    return make_tcp_network(*this, leaders, meeting_);
}

// ---- records -------------------------------------------------------------------------------------------------------

// Event 0 is the end of the reader, event i + 1 is peer i's.
void TcpRanks::watch_peers() {
    without_record_ = peers_.size();
    bool good = events_.is_open();
    for (size_t i = 0; i <= peers_.size() && good; i++)
        good = events_.watch(i == 0 ? wake_[0] : peers_[i - 1].socket, i, Poller::For::data);
    if (!good) throw Error(kExitUsage, format("cannot wait for other ranks: %s", std::strerror(errno)));
}

void TcpRanks::read_records() {
    for (size_t open = peers_.size(); open > 0;)
        for (const uint64_t from : events_.wait(peers_.size() + 1, -1)) {
            if (from == 0) return;
            if (read_one(peers_[from - 1])) continue;
            events_.watch(peers_[from - 1].socket, from, Poller::For::nothing);
            open--;
        }
}

void TcpRanks::count(const Peer& peer, int sign) {
    if (!peer.records.empty()) return;
    without_record_ += size_t(sign);
    if (peer.ended) gone_ += size_t(sign);
}

bool TcpRanks::lost(const std::string& why) {
    if (!leaving_) watchdog_.give_up(why);
    return false;
}

// False when the peer will send nothing more.
bool TcpRanks::read_one(Peer& peer) {
    Header header = {};
    const bool complete = receive_bytes(peer.socket, &header, sizeof(header));
    if (!complete) {
        const std::lock_guard lock(mutex_);
        return !peer.ended && lost(format("rank %d is gone: its connection is closed", peer.rank));
    }
    if (header.magic != kMagic || header.key != key_ || header.bytes > kMostBytes ||
        (header.kind != kRecord && header.kind != kGoodbye && header.kind != kFailed && header.kind != kPiece &&
         header.kind != kTaken) ||
        (header.kind == kPiece && header.bytes > kMostPieceBytes))
        return lost(format("what comes from %s is not of this run", name_of(peer.rank).c_str()));
    std::string body;
    const bool is_long = header.kind == kRecord || header.kind == kPiece;
    if (!receive_body(peer.socket, body, is_long ? header.bytes : std::min<uint64_t>(header.bytes, kMostPeerText)))
        return lost(format("rank %d is gone: its connection is closed", peer.rank));
    if (header.kind == kFailed) {
        if (!body.empty()) {
            forwarded_ = peer_text(body);
            return lost("ended by " + forwarded_);
        }
        // The same error may occur on this rank, which then has the better message.
        pollfd leaving{wake_[0], POLLIN, 0};
        if (poll(&leaving, 1, 1000) > 0) return false;
        return lost(format("rank %d has ended with an error, which it has printed", peer.rank));
    }
    std::unique_lock lock(mutex_);
    // Ranks work in lockstep: each waits for an answer before it sends again.
    if (header.kind == kRecord && peer.records.size() >= 2)
        return lost(format("%s sends records that nobody waits for", name_of(peer.rank).c_str()));
    if ((header.kind == kPiece && peer.pieces.size() >= size_t(kMostPieces)) ||
        (header.kind == kTaken && peer.under_way == 0))
        return lost(format("%s sends pieces of files that nobody waits for", name_of(peer.rank).c_str()));
    count(peer, -1);
    if (header.kind == kPiece) peer.pieces.push_back(std::move(body));
    if (header.kind == kTaken) peer.under_way--;
    if (header.kind == kGoodbye) peer.ended = true;
    if (header.kind == kRecord) peer.records.push_back(std::move(body));
    count(peer, 1);
    // A thread that waits for records waits until all have arrived, or until a rank ends that has not sent one. Other
    // events need not wake it.
    const bool is_news = header.kind != kRecord || without_record_ == 0 || gone_ > 0;
    lock.unlock();
    if (is_news) arrived_.notify_all();
    return true;
}

void TcpRanks::tell_all(const std::string& why) {
    const std::string message = message_of(kFailed, key_, why.substr(0, kMostPeerText));
    for (const Peer& peer : peers_) {
        // It must not be sent in the middle of another message, which gets a moment to end.
        bool is_free = peer.sending->try_lock();
        for (int tries = 0; !is_free && tries < 10; tries++) usleep(1000), is_free = peer.sending->try_lock();
        // A rank that cannot receive it now hangs or is gone.
        if (is_free) send(peer.socket, message.data(), message.size(), kNoSigpipe | MSG_DONTWAIT);
        if (is_free) peer.sending->unlock();
    }
}

void TcpRanks::send_to(const Peer& peer, Kind kind, const std::string& body) {
    const std::lock_guard lock(*peer.sending);
    // If the other end is gone, the reader ends this rank.
    sent_bytes_ += sizeof(Header) + body.size();
    send_message(peer.socket, kind, key_, body);
}

void TcpRanks::send_piece(int to, const std::string& bytes) {
    ensure((rank == 0) != (to == 0) && bytes.size() <= kMostPieceBytes);
    Peer& peer = peer_of(to);
    {
        const Watchdog::Missing missing = [&] { return rank_list({to}); };
        const Watchdog::Watch watch(&watchdog_, "sending of a checkpoint's parts", -1, &missing);
        std::unique_lock lock(mutex_);
        arrived_.wait(lock, [&] { return peer.under_way < kMostPieces || peer.ended; });
        if (peer.ended) watchdog_.give_up(format("rank %d has finished, and this rank has not", to));
        peer.under_way++;
    }
    send_to(peer, kPiece, bytes);
}

Ranks::Piece TcpRanks::next_piece() {
    const Watchdog::Missing missing = [this] { return awaited(); };
    const Watchdog::Watch watch(&watchdog_, "receiving of a checkpoint's parts", -1, rank == 0 ? nullptr : &missing);
    Peer* from = nullptr;
    Piece piece;
    {
        std::unique_lock lock(mutex_);
        arrived_.wait(lock, [&] {
            for (size_t i = 0; i < peers_.size() && !from; i++)
                if (Peer& peer = peers_[(turn_ + i) % peers_.size()]; !peer.pieces.empty()) from = &peer;
            return from != nullptr ||
                   std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.ended; });
        });
        if (!from) watchdog_.give_up("the other ranks have finished, and this rank has not");
        turn_ = size_t(from - peers_.data()) + 1;
        piece = {from->rank, std::move(from->pieces.front())};
        from->pieces.pop_front();
    }
    send_to(*from, kTaken, "");
    return piece;
}

std::string TcpRanks::awaited() {
    if (rank != 0) return "rank 0, or whom it waits for";
    const std::lock_guard lock(mutex_);
    std::vector<int> ranks;
    for (const Peer& peer : peers_)
        if (peer.records.empty()) ranks.push_back(peer.rank);
    return rank_list(ranks);
}

std::string TcpRanks::next_record(Peer& peer) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return !peer.records.empty() || peer.ended; });
    if (peer.records.empty()) watchdog_.give_up(format("rank %d has finished, and this rank has not", peer.rank));
    std::string record = std::move(peer.records.front());
    count(peer, -1);
    peer.records.pop_front();
    count(peer, 1);
    return record;
}

// Run-length encoding: each run of equal records as its length, the record's size, and the record.
static std::string packed_runs(const std::vector<std::string>& records) {
    std::string all;
    for (size_t begin = 0, end; begin < records.size(); begin = end) {
        end = begin + 1;
        while (end < records.size() && records[end] == records[begin]) end++;
        const uint64_t numbers[] = {end - begin, records[begin].size()};
        all.append(reinterpret_cast<const char*>(numbers), sizeof(numbers)) += records[begin];
    }
    return all;
}

std::vector<std::string> TcpRanks::all_gather(const std::string& record) {
    std::vector<std::string> records;
    const std::string all = ask_first(record, [&](const std::vector<std::string>& of_rank) {
        records = of_rank;
        return packed_runs(of_rank);
    });
    if (rank == 0) return records;
    constexpr const char* kWhat = "the records of all ranks";
    for (size_t at = 0; at < all.size();) {
        uint64_t numbers[2] = {};
        require_sense(all.size() - at >= sizeof(numbers), 0, kWhat);
        std::memcpy(numbers, all.data() + at, sizeof(numbers));
        at += sizeof(numbers);
        require_sense(numbers[0] <= size_t(world_size) - records.size() && numbers[1] <= all.size() - at, 0, kWhat);
        records.insert(records.end(), size_t(numbers[0]), all.substr(at, numbers[1]));
        at += numbers[1];
    }
    require_sense(records.size() == size_t(world_size), 0, kWhat);
    return records;
}

std::string TcpRanks::ask_first(const std::string& record, const Judge& judge) {
    ensure(record.size() <= kMostBytes / size_t(world_size));
    const Watchdog::Missing missing = [this] { return awaited(); };
    const Watchdog::Watch watch(&watchdog_, "exchange of records", -1, &missing);
    if (rank != 0) {
        send_to(peers_[0], kRecord, record);
        return next_record(peers_[0]);
    }
    std::vector<std::string> records(static_cast<size_t>(world_size));
    records[0] = record;
    // Records are taken only when all have arrived, so that `missing` can name the ranks that have not sent one.
    {
        std::unique_lock lock(mutex_);
        arrived_.wait(lock, [this] { return without_record_ == 0 || gone_ > 0; });
    }
    for (Peer& peer : peers_) records[size_t(peer.rank)] = next_record(peer);
    const std::string answer = judge(records);
    for (const Peer& peer : peers_) send_to(peer, kRecord, answer);
    return answer;
}
