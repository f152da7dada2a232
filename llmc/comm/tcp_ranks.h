/*
Ranks that meet at an address: rank 0 listens there, and all others hold one connection to it.

  TcpRanks ranks(launch.rank, launch.world_size, {parse_address("node1:29500")}, {.secret = launch.secret});

Rank 0 collects the records, and sends to everybody what it makes of them; of an all-gather the records, of which equal
ones that follow each other travel once. A thread of each rank reads from its connections at all
times, so a rank that dies is noticed at once by rank 0, whatever the others are doing, and named to all of them; they
end with exit code 3. So it is when a watchdog gives up: all hear why. A rank that ends with an error of its own gives
the others a second to end with theirs: what is wrong with one is often wrong with all.

Who is let in is meeting.h's. Nothing in a record is executed or believed: what makes no sense ends the rank with exit
code 3 and the address that it came from.
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
#include "llmc/comm/meeting.h"   // Meeting
#include "llmc/comm/ranks.h"     // Ranks
#include "llmc/comm/tcp.h"       // Address, Listeners
#include "llmc/comm/watchdog.h"  // Watchdog

class TcpRanks : public Ranks {
public:
    // Returns when this rank is connected, rank 0 when all are. An Error if that takes too long. Rank 0 listens at
    // the first address of `place`, or where it does already; the others try one after the other.
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
    uint64_t sent_bytes() const { return sent_bytes_; }  // of messages to other ranks, since it met them
    // The numbers of the two hosts by which this one is connected to another rank, by way of rank 0 or directly.
    std::string own_number(int toward_rank) const;
    std::string peer_number(int of_rank) const;

private:
    // The rank at the other end of a connection: on rank 0 every other one, elsewhere rank 0.
    struct Peer {
        int rank = -1, socket = -1;
        std::string from;                      // its address
        std::deque<std::string> records = {};  // received and not yet asked for
        std::deque<std::string> pieces = {};   // the same
        int under_way = 0;                     // pieces sent to it and not yet taken
        bool ended = false;                    // it has said goodbye
        // Of whoever sends: messages of several threads must not mix.
        std::unique_ptr<std::mutex> sending = std::make_unique<std::mutex>();
    };
    static constexpr int kMostPieces = 2;  // under way to one rank
    Watchdog watchdog_;
    Meeting meeting_;
    uint64_t key_ = 0;
    std::string forwarded_;  // why another rank has given up, in its words
    std::vector<Peer> peers_;
    int wake_[2] = {-1, -1};  // a pipe that ends the reader
    Socket events_;           // what the reader waits for
    std::mutex mutex_;        // of Peer::records, pieces, under_way and ended, and the numbers of these peers:
    size_t without_record_ = 0, gone_ = 0;  // who have no record here, and those of them that have ended
    std::condition_variable arrived_;
    std::thread reader_;
    std::atomic<uint64_t> sent_bytes_ = 0;
    std::atomic<bool> leaving_ = false;  // this rank ends: whoever else ends now is not missed

    void number_anew();
    void close_all();
    void watch_peers();
    void read_records();
    bool read_one(Peer& peer);
    void count(const Peer& peer, int sign);  // -1 before its records or `ended` change, 1 afterward
    bool lost(const std::string& why);       // ends this rank, unless it is leaving; false
    void tell_all(const std::string& why);
    void send_to(const Peer& peer, Kind kind, const std::string& body);
    const Peer& peer_of(int rank) const { return peers_[size_t(this->rank == 0 ? rank - 1 : 0)]; }
    Peer& peer_of(int rank) { return peers_[size_t(this->rank == 0 ? rank - 1 : 0)]; }
    size_t turn_ = 0;       // whose piece is taken first
    std::string awaited();  // whose record this rank waits for
    std::string next_record(Peer& peer);
};
