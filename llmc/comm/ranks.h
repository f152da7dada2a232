/*
The control plane: the ranks of a run, and the small records in host memory that they exchange in lockstep. Large
buffers are moved by the data plane, Comm (comm.h).

  ranks.rank, ranks.world_size                  this rank's number, and the number of ranks
  ranks.all_gather(record)                      every rank's record, in the order of ranks; waits for all
  ranks.all_gather_values(x, "its speed")       the same for numbers and structs
  ranks.broadcast(record, 0)                    rank 0's record, on all ranks
  ranks.gather(record)                          every rank's record, on rank 0; on the others the result is undefined
  ranks.ask_first(record, judge)                rank 0 computes an answer from all records; all ranks receive it
  ranks.barrier()                               waits for all
  ranks.watchdog()                              for code that waits for other ranks in another way (watchdog.h)
  ranks.send_piece(0, bytes)                    file contents, independent of the records (llmc/checkpoint/parts.h)
  ranks.connect_hosts({0, 4})                   the network over which CPU ranks of several hosts exchange buffers

The cost of an all_gather of different records grows with the square of the number of ranks: 1024 ranks with 4 KB each
receive 4 GB in all. So large or differing records go to rank 0, which answers in a few bytes, and values that should be
equal everywhere are first compared by their hash (check_alike).

Every rank must make the same calls in the same order. If a rank is dead, or does not arrive within --comm-timeout, all
others end with exit code 3 (watchdog.h). For work on files the limit is io-timeout (share_errors).

  OneRank           one rank: nothing to exchange
  LocalRanks        threads of one process (local.h)
  MpiRanks          processes that mpirun started: TcpRanks that find each other by MPI (mpi_ranks.h)
  TcpRanks          processes that know the address of rank 0: torchrun, Slurm, --master (tcp_ranks.h)
*/
#pragma once
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <vector>
#include "llmc/base/check.h"     // Error, ensure, format
#include "llmc/base/terminal.h"  // peer_text
#include "llmc/comm/watchdog.h"  // Watchdog

// Traffic between hosts: one primitive, from which HostExchange builds all collectives between hosts (host_exchange.h).
//
//   network.exchange(send, bytes, 4, receive, bytes, 2, look);    sends to rank 4 and receives from rank 2 at the same
//                                                                 time; waits for both
//
// `look` is called repeatedly while waiting, with the awaited rank. It ends the program when waiting is pointless.
// TcpNetwork (tcp_network.h) is for ranks that met at an address, MpiNetwork (mpi_ranks.cpp) for those that mpirun
// started.
class HostNetwork {
public:
    using Look = std::function<void(int awaited)>;
    virtual ~HostNetwork() = default;
    virtual const char* name() const = 0;  // "TCP"
    // At most 2^30 bytes each way. 0 bytes: nothing is sent, and the other rank need not exist. Throws an Error if the
    // connection is lost.
    virtual void exchange(const void* send, size_t send_bytes, int to, void* receive, size_t receive_bytes, int from,
                          const Look& look) = 0;
};

class Ranks {
public:
    int rank = 0, world_size = 1;
    int local_rank = 0, local_size = 1;  // among those on the same host
    std::vector<int> host_ranks = {0};   // the ranks of this host, ascending: they share memory (host.h)
    int num_hosts = 1;
    int device = 0;  // this rank's GPU on its host: from the launcher (launch.h), else local_rank

    virtual ~Ranks() = default;
    virtual std::vector<std::string> all_gather(const std::string& record) = 0;
    // Returns judge(all ranks' records) on every rank. `judge` may be called on rank 0 only, so its result must depend
    // on nothing but the records.
    using Judge = std::function<std::string(const std::vector<std::string>&)>;
    virtual std::string ask_first(const std::string& record, const Judge& judge) { return judge(all_gather(record)); }
    virtual Watchdog* watchdog() { return nullptr; }  // null: there is no other process to wait for
    // For a part of the ranks (islands.h): all ranks of the run, among which errors are shared.
    virtual Ranks& all() { return *this; }
    virtual int number_in_all(int of_rank) const { return of_rank; }  // for messages

    // Sends up to most_piece_bytes() between rank 0 and another rank, in order and independent of records. Waits while
    // the receiver has two pieces that it has not taken, so memory is bounded however slow its disk is. Only one thread
    // at a time may send, and one receive. Not available to ranks in one process, which share a file system.
    struct Piece {
        int from = -1;
        std::string bytes;
    };
    virtual void send_piece(int /*to*/, const std::string& /*bytes*/) { ensure(false); }
    virtual Piece next_piece() { ensure(false); }  // on rank 0: from any rank that has sent one, round-robin
    size_t most_piece_bytes() const {
        constexpr size_t kAll = size_t(128) << 20;  // the pieces of all ranks that wait on rank 0
        return std::clamp(kAll / (2 * size_t(world_size)), size_t(64) << 10, size_t(1) << 20);
    }
    // Connects `leaders`, the first ranks of the hosts. Collective: the other ranks call it, too.
    virtual std::unique_ptr<HostNetwork> connect_hosts(const std::vector<int>& /*leaders*/) { ensure(false); }
    // "rank 1 (10.0.0.2:41000)": with the address from which its records come, if there is one.
    virtual std::string name_of(int of_rank) const { return "rank " + std::to_string(of_rank); }

    // Throws an Error (exit code 3) unless `makes_sense`: a rank has sent a malformed record. Records come from other
    // processes and are not trusted.
    void require_sense(bool makes_sense, int of_rank, const char* what) const {
        if (!makes_sense)
            throw Error(kExitRank, format("what %s sent as %s makes no sense: either it is no rank of this run, or it "
                                          "is of another build",
                                          name_of(of_rank).c_str(), what));
    }

    std::string broadcast(const std::string& record, int root = 0) {
        return ask_first(rank == root ? record : "",
                         [root](const std::vector<std::string>& records) { return records[size_t(root)]; });
    }
    std::vector<std::string> gather(const std::string& record) {
        std::vector<std::string> all(static_cast<size_t>(world_size));
        ask_first(record, [&](const std::vector<std::string>& records) {
            all = records;
            return std::string();
        });
        return all;
    }
    void barrier() {
        ask_first("", [](const std::vector<std::string>&) { return std::string(); });
    }

    // Every rank's value of a trivially copyable type. `what`, for the Error about a record of another size: "its
    // speed".
    template <class T>
    std::vector<T> all_gather_values(const T& mine, const char* what) {
        return values_of<T>(all_gather(bytes_of(mine)), what);
    }
    // The left fold over all ranks' values, on every rank: join(... join(rank 0's, rank 1's) ..., the last rank's).
    template <class T, class Join>
    T joined_value(const T& mine, const char* what, const Join& join) {
        const std::string answer = ask_first(bytes_of(mine), [&](const std::vector<std::string>& records) {
            const std::vector<T> all = values_of<T>(records, what);
            T result = all[0];
            for (size_t r = 1; r < all.size(); r++) result = join(result, all[r]);
            return bytes_of(result);
        });
        return value_of<T>(answer, 0, what);
    }

    // Sets the members about hosts from the name of every rank's host.
    void set_hosts(const std::vector<std::string>& hosts) {
        host_ranks.clear();
        for (int r = 0; r < world_size; r++)
            if (hosts[size_t(r)] == hosts[size_t(rank)]) host_ranks.push_back(r);
        local_size = int(host_ranks.size());
        local_rank = device = int(std::find(host_ranks.begin(), host_ranks.end(), rank) - host_ranks.begin());
        num_hosts = int(std::set<std::string>(hosts.begin(), hosts.end()).size());
    }

    template <class T>
    static std::string bytes_of(const T& value) {
        static_assert(std::is_trivially_copyable_v<T>);
        return {reinterpret_cast<const char*>(&value), sizeof value};
    }
    template <class T>
    T value_of(const std::string& record, int of_rank, const char* what) const {
        T value;
        require_sense(record.size() == sizeof value, of_rank, what);
        std::memcpy(&value, record.data(), sizeof value);
        return value;
    }

private:
    template <class T>
    std::vector<T> values_of(const std::vector<std::string>& records, const char* what) const {
        std::vector<T> values;
        for (size_t r = 0; r < records.size(); r++) values.push_back(value_of<T>(records[r], int(r), what));
        return values;
    }
};

class OneRank : public Ranks {
public:
    std::vector<std::string> all_gather(const std::string& record) override { return {record}; }
};

// An error that every rank throws; only rank 0 prints it (in_world, llmc/train/world.h).
struct SharedError : Error {
    using Error::Error;
};

// Runs `body` on every rank. If it throws an Error on any rank, all throw the lowest such rank's as a SharedError.
// Collective. Ranks wait for each other for up to io-timeout, because `body` may read and write files.
template <class Body>
void share_errors(Ranks& part, Body&& body) {
    Ranks& ranks = part.all();
    std::string mine;  // the exit code and the message
    try {
        body();
    } catch (const Error& error) {
        mine = std::to_string(error.exit_code) + " " + error.what();
    }
    const Watchdog::Patience patience(ranks.watchdog());
    const std::string first = ranks.ask_first(mine, [](const std::vector<std::string>& all) {
        for (size_t r = 0; r < all.size(); r++)
            if (!all[r].empty()) return std::to_string(r) + " " + all[r];
        return std::string();
    });
    if (first.empty()) return;
    const size_t space = first.find(' ');
    const int r = std::atoi(first.c_str());
    const std::string error = first.substr(std::min(space, first.size() - 1) + 1);
    ranks.require_sense(space < 8 && r >= 0 && r < ranks.world_size, 0, "the first error");
    ranks.require_sense(error.size() > 2 && error[0] > '0' && error[0] <= '9' && error[1] == ' ', r, "its error");
    const std::string what = r == ranks.rank ? error.substr(2) : peer_text(error.substr(2));
    throw SharedError(error[0] - '0', r == 0 ? what : "rank " + std::to_string(r) + ": " + what);
}

// Runs `body` on rank 0 while the others wait. If it throws an Error, all ranks throw it.
template <class Body>
void on_first_rank(Ranks& ranks, Body&& body) {
    share_errors(ranks, [&] {
        if (ranks.rank == 0) body();
    });
}
