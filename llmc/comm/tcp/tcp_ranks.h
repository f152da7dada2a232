/*
Ranks that meet at an address: rank 0 listens there, and all others hold one connection to it.

  TcpRanks ranks(launch.rank, launch.world_size, {parse_address("node1:29500")}, {.secret = launch.secret});

Rank 0 collects the records and sends the answer to all. The answer of an all-gather is the records; a run of equal ones
is sent once. A thread of each rank reads from its connections at all times. So rank 0 notices a dead rank at once,
whatever the others are doing, and names it to all of them; they end with exit code 3. The same happens when a watchdog
gives up: all ranks receive the reason. A rank that ends with an error of its own leaves the others a second to end with
theirs, because an error on one rank often occurs on all.

Authentication is in meeting.h. Nothing in a record is executed or trusted: a malformed record ends the rank with exit
code 3 and an error that names the address from which it came.
*/
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>
#include "llmc/comm/ranks.h"        // Ranks
#include "llmc/comm/tcp/meeting.h"  // Meeting
#include "llmc/comm/tcp/tcp.h"      // Address, Listeners
#include "llmc/comm/watchdog.h"     // Watchdog

class TcpRanks : public Ranks {
public:
    // Returns when this rank is connected; on rank 0, when all are. Throws an Error if that takes too long. Rank 0
    // listens at the first address of `place`, or has `listeners` already; the others try the addresses in turn.
    TcpRanks(int rank, int world_size, const std::vector<Address>& place, const Meeting& meeting,
             const Listeners* listeners = nullptr);
    ~TcpRanks() override;

    std::vector<std::string> all_gather(const std::string& record) override;
    std::string ask_first(const std::string& record, const Judge& judge) override;
    void send_piece(int to, const std::string& bytes) override;
    Piece next_piece() override;
    Watchdog* watchdog() override { return &watchdog_; }
    std::unique_ptr<HostNetwork> connect_hosts(const std::vector<int>& leaders) override;
    std::string name_of(int of_rank) const override;
    uint64_t sent_bytes() const { return sent_bytes_; }  // of all messages to other ranks so far
    // The numeric addresses of the two ends of the connection to another rank; of that to rank 0, if there is no direct
    // one.
    std::string own_number(int toward_rank) const;
    std::string peer_number(int of_rank) const;

private:
    // The rank at the other end of a connection: on rank 0 every other one, elsewhere rank 0.
    struct Peer {
        int rank = -1, socket = -1;
        std::string from;                      // its address
        std::deque<std::string> records = {};  // received, but not taken by this rank yet
        std::deque<std::string> pieces = {};   // the same
        int under_way = 0;                     // pieces sent to it that it has not taken yet
        bool ended = false;                    // it has sent kGoodbye
        // Held while sending: messages of several threads must not mix.
        std::unique_ptr<std::mutex> sending = std::make_unique<std::mutex>();
    };
    static constexpr int kMostPieces = 2;  // in flight to one rank
    Watchdog watchdog_;
    Meeting meeting_;
    uint64_t key_ = 0;
    std::string forwarded_;  // the reason for which another rank gave up, in its words
    std::vector<Peer> peers_;
    int wake_[2] = {-1, -1};  // a pipe that ends the reader
    Poller events_;           // the reader's
    std::mutex mutex_;        // guards Peer::records, pieces, under_way and ended, and these numbers of peers:
    size_t without_record_ = 0, gone_ = 0;  // those without a record here, and how many of them have ended
    std::condition_variable arrived_;
    std::thread reader_;
    std::atomic<uint64_t> sent_bytes_ = 0;
    std::atomic<bool> leaving_ = false;  // this rank is ending: other ranks that end now are not an error

    void number_anew();
    void close_all();
    void watch_peers();
    void read_records();
    bool read_one(Peer& peer);
    void count(const Peer& peer, int sign);  // call with -1 before its records or `ended` change, with 1 afterward
    bool lost(const std::string& why);       // ends this rank, unless it is leaving; false
    void tell_all(const std::string& why);
    void send_to(const Peer& peer, Kind kind, const std::string& body);
    const Peer& peer_of(int rank) const { return peers_[size_t(this->rank == 0 ? rank - 1 : 0)]; }
    Peer& peer_of(int rank) { return peers_[size_t(this->rank == 0 ? rank - 1 : 0)]; }
    size_t turn_ = 0;       // the peer whose piece is taken next
    std::string awaited();  // the ranks whose records this one waits for
    std::string next_record(Peer& peer);
};
