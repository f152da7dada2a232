/*
The ranks of a run, and their small talk: records of any bytes in host memory, exchanged in lockstep. What they do
together to large buffers is Comm's (comm.h).

  ranks.rank, ranks.world_size                  this one, and how many there are
  ranks.all_gather(record)                      every rank's record, in the order of ranks; waits for all
  ranks.broadcast(record, 0)                    rank 0's
  ranks.barrier()                               waits for all
  ranks.watchdog()                              for whoever waits for other ranks in another way (watchdog.h)

Every rank must make the same calls in the same order. A rank that is dead, or does not come within --comm-timeout, ends
all the others with exit code 3 (watchdog.h). Around work on files it is --io-timeout (share_errors).

  OneRank           one rank: nothing to exchange
  LocalRanks        threads of one process (local.h)
  MpiRanks          processes that mpirun started (mpi_ranks.h)
  TcpRanks          processes that know an address to meet at: torchrun, Slurm, --master (tcp_ranks.h)
*/
#pragma once
#include <algorithm>
#include <set>
#include <string>
#include <vector>
#include "llmc/base/check.h"     // Error
#include "llmc/comm/watchdog.h"  // Watchdog

class Ranks {
public:
    int rank = 0, world_size = 1;
    int local_rank = 0, local_size = 1;  // among those on the same host
    std::vector<int> host_ranks = {0};   // those, in order: they share memory and see each other's pids (host.h)
    int num_hosts = 1;
    int device = 0;  // which of the host's GPUs: what the launcher says (launch.h), else local_rank

    virtual ~Ranks() = default;
    virtual std::vector<std::string> all_gather(const std::string& record) = 0;
    virtual Watchdog* watchdog() { return nullptr; }  // null: nobody to wait for

    std::string broadcast(const std::string& record, int root = 0) {
        return all_gather(rank == root ? record : "")[size_t(root)];
    }
    void barrier() { all_gather(""); }

    // Who is where, from every rank's host.
    void set_hosts(const std::vector<std::string>& hosts) {
        host_ranks.clear();
        for (int r = 0; r < world_size; r++)
            if (hosts[size_t(r)] == hosts[size_t(rank)]) host_ranks.push_back(r);
        local_size = int(host_ranks.size());
        local_rank = device = int(std::find(host_ranks.begin(), host_ranks.end(), rank) - host_ranks.begin());
        num_hosts = int(std::set<std::string>(hosts.begin(), hosts.end()).size());
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

// Runs `work` on every rank; if it threw an Error on any of them, all throw the first rank's. Others wait for it as
// long as for a disk: reading and writing files is what ranks do between exchanges.
template <class Work>
void share_errors(Ranks& ranks, Work&& work) {
    std::string mine;  // the exit code and the message
    try {
        work();
    } catch (const Error& error) {
        mine = std::to_string(error.exit_code) + " " + error.what();
    }
    const Watchdog::Patience patience(ranks.watchdog());
    const std::vector<std::string> all = ranks.all_gather(mine);
    for (size_t r = 0; r < all.size(); r++) {
        if (all[r].empty()) continue;
        const std::string what = all[r].substr(all[r].find(' ') + 1);
        throw SharedError(std::stoi(all[r]), r == 0 ? what : "rank " + std::to_string(r) + ": " + what);
    }
}

// Runs `work` on rank 0, while the others wait; if it throws an Error, all do.
template <class Work>
void on_first_rank(Ranks& ranks, Work&& work) {
    share_errors(ranks, [&] {
        if (ranks.rank == 0) work();
    });
}
