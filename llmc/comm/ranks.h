/*
The control plane: the ranks of a run, and the small records in host memory that they exchange in lockstep. Large
buffers are moved by the data plane, Comm (comm.h).

  ranks.rank, ranks.world_size                  this one, and how many there are
  ranks.all_gather(record)                      every rank's record, in the order of ranks; waits for all
  ranks.all_gather_values(x, "its speed")       the same of numbers and structs
  ranks.broadcast(record, 0)                    rank 0's
  ranks.gather(record)                          every rank's record, for rank 0; the others need not look
  ranks.ask_first(record, judge)                what rank 0 makes of all records, for everybody
  ranks.barrier()                               waits for all
  ranks.watchdog()                              for whoever waits for other ranks in another way (watchdog.h)
  ranks.send_piece(0, bytes)                    beside all that, from any thread: of checkpoints (llmc/train/parts.h)
  ranks.connect_hosts({0, 4})                   what CPU ranks of several hosts exchange buffers over

What an all_gather costs grows with the square of the ranks where all records differ: 1024 ranks with 4 KB each are
4 GB. So what is large or differs from rank to rank goes to rank 0, which answers in a few bytes, and what should be the
same everywhere is compared by its hash first (check_alike).

Every rank must make the same calls in the same order. A rank that is dead, or does not come within --comm-timeout, ends
all the others with exit code 3 (watchdog.h). Around work on files it is --io-timeout (share_errors).

  OneRank           one rank: nothing to exchange
  LocalRanks        threads of one process (local.h)
  MpiRanks          processes that mpirun started: TcpRanks that MPI has brought together (mpi_ranks.h)
  TcpRanks          processes that know an address to meet at: torchrun, Slurm, --master (tcp_ranks.h)
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
#include "llmc/base/check.h"         // Error, ensure, format
#include "llmc/comm/host_network.h"  // HostNetwork
#include "llmc/comm/peer_text.h"     // peer_text
#include "llmc/comm/watchdog.h"      // Watchdog

class Ranks {
public:
    int rank = 0, world_size = 1;
    int local_rank = 0, local_size = 1;  // among those on the same host
    std::vector<int> host_ranks = {0};   // those, in order: they share memory and see each other's pids (host.h)
    int num_hosts = 1;
    int device = 0;  // which of the host's GPUs: what the launcher says (launch.h), else local_rank

    virtual ~Ranks() = default;
    virtual std::vector<std::string> all_gather(const std::string& record) = 0;
    // `judge` of all ranks' records; the same on every rank. It may be called on rank 0 alone, and decides by the
    // records alone.
    using Judge = std::function<std::string(const std::vector<std::string>&)>;
    virtual std::string ask_first(const std::string& record, const Judge& judge) { return judge(all_gather(record)); }
    virtual Watchdog* watchdog() { return nullptr; }  // null: nobody to wait for
    // Of a part of the ranks (islands.h), all of them: they share errors.
    virtual Ranks& all() { return *this; }
    virtual int number_in_all(int of_rank) const { return of_rank; }  // for messages

    // Up to most_piece_bytes() between rank 0 and another rank, in order, while records go their own way. Waits while
    // the other end has two that it has not taken: so memory is bounded, however slow its disk is. One thread at a time
    // sends, and one takes. Ranks of one process have one another's files and no use for it.
    struct Piece {
        int from = -1;
        std::string bytes;
    };
    virtual void send_piece(int /*to*/, const std::string& /*bytes*/) { ensure(false); }
    virtual Piece next_piece() { ensure(false); }  // rank 0: of whoever has one, in turns
    size_t most_piece_bytes() const {
        constexpr size_t kAll = size_t(128) << 20;  // what may lie on rank 0, over all ranks
        return std::clamp(kAll / (2 * size_t(world_size)), size_t(64) << 10, size_t(1) << 20);
    }
    // Connects the first ranks of several hosts, of which this rank need not be one: all call it.
    virtual std::unique_ptr<HostNetwork> connect_hosts(const std::vector<int>& /*leaders*/) { ensure(false); }
    // "rank 1 (10.0.0.2:41000)": with the address that its records come from, where there is one.
    virtual std::string name_of(int of_rank) const { return "rank " + std::to_string(of_rank); }

    // What a rank has sent does not mean what it should. An Error with exit code 3: records come from outside.
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

    // Every rank's value of a type that memcpy copies. `what` it is: for an Error about a record of another size.
    template <class T>
    std::vector<T> all_gather_values(const T& mine, const char* what) {
        return values_of<T>(all_gather(bytes_of(mine)), what);
    }
    // join(...join(rank 0's, rank 1's)..., last rank's), on every rank.
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

    // Who is where, from every rank's host.
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

// An error that every rank throws: rank 0 says it for all (in_world, llmc/train/world.h).
struct SharedError : Error {
    using Error::Error;
};

// Runs `body` on every rank; if it threw an Error on any of them, all throw the first rank's. Others wait for it as
// long as for a disk: reading and writing files is what ranks do between collectives.
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

// Runs `body` on rank 0, while the others wait; if it throws an Error, all do.
template <class Body>
void on_first_rank(Ranks& ranks, Body&& body) {
    share_errors(ranks, [&] {
        if (ranks.rank == 0) body();
    });
}
