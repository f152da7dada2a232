// See islands.h.
#include "llmc/comm/launch/islands.h"
#include <algorithm>
#include <cstring>
#include "llmc/base/check.h"     // require, ensure
#include "llmc/comm/watchdog.h"  // Watchdog

// Small enough to be sent over 1 Mbit/s well within any timeout, large enough to saturate any network.
static constexpr size_t kPieceBytes = 1 << 20;

IslandRanks::IslandRanks(Ranks& world, int islands) : world_(world) {
    require(islands > 0 && world.world_size % islands == 0,
            "--islands %d does not divide the %d %s: islands have the same number of ranks", islands, world.world_size,
            world.world_size == 1 ? "rank" : "ranks");
    const IslandPlace place{islands, world.world_size, world.rank};
    world_size = place.size();
    rank = place.local(world.rank);
    first_ = world.rank - rank;
    host_ranks.clear();
    for (const int r : world.host_ranks)
        if (r >= first_ && r < first_ + world_size) host_ranks.push_back(r - first_);
    local_size = int(host_ranks.size());
    local_rank = int(std::find(host_ranks.begin(), host_ranks.end(), rank) - host_ranks.begin());
    num_hosts = local_size == world_size ? 1 : 2;  // 2 means several: the exact number is not used
    device = world.device;
}

std::vector<std::string> IslandRanks::all_gather(const std::string& record) {
    const std::vector<std::string> all = world_.all_gather(record);
    return {all.begin() + first_, all.begin() + first_ + world_size};
}

IslandLink::IslandLink(Ranks& world, int islands, bool in_process)
    : world_(world), place_{islands, world.world_size, world.rank} {
    if (in_process || place_.count() == 1) return;
    for (int local = 0; local < place_.size(); local++) {
        std::vector<int> ends;
        for (int island = 0; island < place_.count(); island++) ends.push_back(island * place_.size() + local);
        std::unique_ptr<HostNetwork> network = world.connect_hosts(ends);
        if (local == place_.local(world.rank)) network_ = std::move(network);
    }
}

std::vector<std::string> IslandLink::all_gather(const std::string& mine) {
    const int islands = place_.count(), self = place_.island();
    std::vector<std::string> all(static_cast<size_t>(islands));
    if (network_) {
        all[size_t(self)] = mine;
        for (int i = 1; i < islands; i++) {
            const int to = (self + i) % islands, from = (self + islands - i) % islands;
            std::string& theirs = all[size_t(from)];
            theirs.resize(mine.size());
            exchange(mine.data(), mine.size(), counterpart(to), theirs.data(), theirs.size(), counterpart(from));
        }
        return all;
    }
    const std::vector<std::string> of_ranks = world_.all_gather(mine);
    for (int island = 0; island < islands; island++) {
        all[size_t(island)] = of_ranks[size_t(counterpart(island))];
        world_.require_sense(all[size_t(island)].size() == mine.size(), counterpart(island), "its island's part");
    }
    return all;
}

// In pieces, so that a slow network is not taken for a dead rank.
void IslandLink::exchange(const char* send, size_t send_bytes, int to, char* receive, size_t receive_bytes, int from) {
    const Watchdog::Missing missing = [&] { return world_.name_of(receive_bytes > 0 ? from : to); };
    for (size_t at = 0; at < std::max(send_bytes, receive_bytes); at += kPieceBytes) {
        const auto piece = [&](size_t bytes) { return std::min(kPieceBytes, bytes - std::min(at, bytes)); };
        const Watchdog::Watch watch(world_.watchdog(), "exchange between islands", -1, &missing);
        network_->exchange(send ? send + at : nullptr, piece(send_bytes), to, receive ? receive + at : nullptr,
                           piece(receive_bytes), from, [](int) {});
    }
}
