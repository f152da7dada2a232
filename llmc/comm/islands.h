/*
Islands: groups of consecutive ranks that train a model each, and meet now and then over a thin wire (DiLoCo, Douillard
et al., 2023, arXiv:2311.08105; what they do then is llmc/optim/outer_state.h).

  const IslandPlace place{.islands = 2, .world_size = 8, .rank = 5};     island 1, ranks 4 to 7; its rank 1
  IslandRanks island(ranks, 2);                       the ranks of this one's island, as if there were no others
  IslandLink link(ranks, 2, true);                    connects ranks of the same place in all islands
  const std::vector<std::string> all = link.all_gather(bytes);           from each of them, in the order of islands

An island's ranks exchange gradients among themselves, every step. The control plane stays one: what IslandRanks passes
on goes through that of all ranks, so all islands make the same calls of it, at the start.
*/
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>
#include "llmc/base/check.h"         // format
#include "llmc/comm/host_network.h"  // HostNetwork
#include "llmc/comm/ranks.h"         // Ranks

// Who is where.
struct IslandPlace {
    int islands = 0;  // 0: all ranks train together, as one
    int world_size = 1, rank = 0;

    int count() const { return islands > 0 ? islands : 1; }
    int size() const { return world_size / count(); }
    int island() const { return island_of(rank); }
    int island_of(int other) const { return other / size(); }
    int local(int other) const { return other % size(); }  // its rank in its island

    // "island 1 (ranks 4 to 7)"
    std::string name_of(int island) const {
        const int first = island * size(), last = first + size() - 1;
        return first == last ? format("island %d (rank %d)", island, first)
                             : format("island %d (ranks %d to %d)", island, first, last);
    }
};

// Errors are shared with all ranks: they are numbered as in `world`.
class IslandRanks : public Ranks {
public:
    // An Error, the same on all ranks, if as many islands cannot be made of them.
    IslandRanks(Ranks& world, int islands);

    std::vector<std::string> all_gather(const std::string& record) override;
    Watchdog* watchdog() override { return world_.watchdog(); }
    std::string name_of(int of_rank) const override { return world_.name_of(first_ + of_rank); }
    Ranks& all() override { return world_; }
    int number_in_all(int of_rank) const override { return first_ + of_rank; }

    int first() const { return first_; }  // of this island's, in the world

private:
    Ranks& world_;
    int first_ = 0;
};

// What islands exchange, each rank with those of its own place in the others.
class IslandLink {
public:
    // Collective, over all ranks. `in_process`: they are threads of one process, which have no network.
    IslandLink(Ranks& world, int islands, bool in_process);

    // All give as many bytes.
    std::vector<std::string> all_gather(const std::string& mine);

private:
    Ranks& world_;
    IslandPlace place_;
    std::unique_ptr<HostNetwork> network_;  // null: in one process

    void exchange(const char* send, size_t send_bytes, int to, char* receive, size_t receive_bytes, int from);
    int counterpart(int island) const { return island * place_.size() + place_.local(place_.rank); }
};
