/*
Islands: groups of consecutive ranks. Each island trains a copy of the model, and from time to time all islands combine
their weights over a slow network (DiLoCo, Douillard et al., 2023, arXiv:2311.08105): llmc/optim/outer_state.h.

  const IslandPlace place{.islands = 2, .world_size = 8, .rank = 5};     in island 1 (ranks 4 to 7), as its rank 1
  IslandRanks island(ranks, 2);                       the ranks of this rank's island, as if there were no others
  IslandLink link(ranks, 2, true);                    connects the ranks with the same place in all islands
  const std::vector<std::string> all = link.all_gather(bytes);           these ranks' bytes, in the order of islands

An island's ranks exchange gradients among themselves in every step. There is still one control plane: IslandRanks
forwards to that of all ranks. So all islands must make the same calls of it, which they do at the start of a run.
*/
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>
#include "llmc/base/check.h"  // format
#include "llmc/comm/ranks.h"  // Ranks, HostNetwork

// The place of a rank among the islands.
struct IslandPlace {
    int islands = 0;  // 0: all ranks train together, as one
    int world_size = 1, rank = 0;

    int count() const { return islands > 0 ? islands : 1; }
    int size() const { return world_size / count(); }
    int island() const { return island_of(rank); }
    int island_of(int other) const { return other / size(); }
    int local(int other) const { return other % size(); }  // a rank's number in its island

    // "island 1 (ranks 4 to 7)"
    std::string name_of(int island) const {
        const int first = island * size(), last = first + size() - 1;
        return first == last ? format("island %d (rank %d)", island, first)
                             : format("island %d (ranks %d to %d)", island, first, last);
    }
};

// The control plane of an island. Errors are shared with all ranks, and messages number ranks as in `world`.
class IslandRanks : public Ranks {
public:
    // Throws an Error, the same on all ranks, if the ranks cannot be divided into this many islands.
    IslandRanks(Ranks& world, int islands);

    std::vector<std::string> all_gather(const std::string& record) override;
    Watchdog* watchdog() override { return world_.watchdog(); }
    std::string name_of(int of_rank) const override { return world_.name_of(first_ + of_rank); }
    Ranks& all() override { return world_; }
    int number_in_all(int of_rank) const override { return first_ + of_rank; }

    int first() const { return first_; }  // this island's first rank, numbered as in the world

private:
    Ranks& world_;
    int first_ = 0;
};

// Communication between islands: each rank with the ranks at its place in the other islands.
class IslandLink {
public:
    // Collective over all ranks. `in_process`: ranks are threads of one process, which need no network.
    IslandLink(Ranks& world, int islands, bool in_process);

    // All ranks must pass the same number of bytes.
    std::vector<std::string> all_gather(const std::string& mine);

private:
    Ranks& world_;
    IslandPlace place_;
    std::unique_ptr<HostNetwork> network_;  // null: in one process

    void exchange(const char* send, size_t send_bytes, int to, char* receive, size_t receive_bytes, int from);
    int counterpart(int island) const { return island * place_.size() + place_.local(place_.rank); }
};
