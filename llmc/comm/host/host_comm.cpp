// Collectives between processes on CPU buffers.
#include "llmc/comm/host/host_comm.h"
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>
#include "llmc/base/check.h"   // ensure, format, require
#include "llmc/comm/host.h"    // host_identity
#include "llmc/cpu/kernels.h"  // sum_ranks_kernel

namespace {

constexpr size_t kStagingBytes = 1 << 20;

// Writes the elementwise sum of all arrays in `from` (n) to every array in `to` (n). An array may be in both.
template <class T, class Out>
void add_up(Cpu& cpu, const std::vector<Out*>& to, const std::vector<T*>& from, int64_t n) {
    sum_ranks_kernel<std::remove_const_t<T>, Out>()(cpu, to.data(), from.data(), int(to.size()), int(from.size()), n);
}

template <class T>
std::vector<T*> shifted(std::vector<T*> pointers, int64_t by) {
    for (T*& p : pointers) p += by;
    return pointers;
}

// The number of elements that each of `parts` writers gets, rounded up to 64 so that no two of them share a cache line.
int64_t part_size(int64_t n, int64_t parts) { return (n + parts * 64 - 1) / (parts * 64) * 64; }

std::unique_ptr<HostNetwork> network_of(Ranks& ranks, const HostLayout& layout, HostCommOptions& options) {
    if (layout.num_hosts() == 1 || options.network) return std::move(options.network);
    return ranks.connect_hosts(layout.leaders());
}

}  // namespace

HostComm::HostComm(Ranks& ranks, Cpu& cpu, HostCommOptions options)
    : cpu_(cpu),
      watchdog_(ranks.watchdog()),
      layout_(ranks.all_gather(options.host.empty() ? host_identity() : options.host), ranks.rank),
      network_(network_of(ranks, layout_, options)),
      buffers_(ranks, layout_, cpu),
      barrier_(ranks, layout_, buffers_),
      between_(cpu, layout_, barrier_, network_.get()) {
    rank = ranks.rank;
    world_size = ranks.world_size;
    staging_bytes_ = std::max(kStagingBytes, size_t(world_size) * 64);
    staging_ = static_cast<char*>(allocate(staging_bytes_));
}

std::string HostComm::describe() const {
    if (num_hosts() == 1) return format("shared memory, %d ranks", world_size);
    return format("shared memory and %s, %d ranks on %d hosts", network_->name(), world_size, num_hosts());
}

CommTimes HostComm::take_times() { return std::exchange(times_, CommTimes()); }

void HostComm::split(int num_shards) {
    for (int r = 0; r < world_size; r++) {
        const int first = r / num_shards * num_shards;
        require(
            layout_.host_of(first) == layout_.host_of(r),
            "--shard-ranks %d: ranks %d to %d share the optimizer's state, and rank %d is on another host than rank "
            "%d: give a number that divides the ranks of each host, and start those of a host one after the other",
            num_shards, first, first + num_shards - 1, r, first);
    }
    Comm::split(num_shards);
}

template <class Body>
Work HostComm::timed(const char* what, double sent_bytes, Body&& body) {
    const Clock::time_point start = Clock::now();
    doing_ = what;
    const Scope scope(cpu_.observer, SliceKind::collective, what);
    {
        const Watchdog::Watch watch(watchdog_, what, -1, &barrier_.missing());
        body();
    }
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    times_.busy_ms += ms;
    times_.exposed_ms += ms;
    times_.sent_bytes += sent_bytes * (world_size - 1) / world_size;
    return {};
}

Work HostComm::broadcast(void* data, size_t bytes, int root) {
    return timed("broadcast", double(bytes), [&] { broadcast_of(static_cast<char*>(data), int64_t(bytes), root); });
}
Work HostComm::reduce_scatter(float* data, int64_t shard) {
    return timed("reduce-scatter", 4. * double(shard) * shards(), [&] { reduce_scatter_of(data, shard); });
}
Work HostComm::reduce_scatter(bf16* data, int64_t shard) {
    return timed("reduce-scatter", 2. * double(shard) * shards(), [&] { reduce_scatter_of(data, shard); });
}
Work HostComm::all_to_all_sum(float* data, int64_t shard, float*) {
    return timed("all-to-all", 4. * double(shard) * world_size,
                 [&] { all_to_all_sum_of<float>(data + rank * shard, data, shard); });
}
Work HostComm::all_to_all_sum(float* data, const bf16* terms, int64_t shard) {
    return timed("all-to-all", 2. * double(shard) * world_size,
                 [&] { all_to_all_sum_of(data + rank * shard, terms, shard); });
}
Work HostComm::all_gather(void* data, size_t shard_bytes) {
    return timed("all-gather", double(shard_bytes) * shards(),
                 [&] { all_gather_of(static_cast<char*>(data), int64_t(shard_bytes)); });
}
Work HostComm::all_reduce(float* data, int64_t n) {
    return timed("all-reduce", 2 * 4. * double(n), [&] { all_reduce_of(data, n); });
}
Work HostComm::all_reduce(uint64_t* data, int64_t n) {
    return timed("all-reduce", 2 * 8. * double(n), [&] { all_reduce_of(data, n); });
}

// Begins a collective on data (n): waits for this host's ranks, checks that all make the same call, and returns `data`
// of each of them.
template <class T>
std::vector<T*> HostComm::enter(T* data, int64_t n) {
    const int64_t bytes = n * int64_t(sizeof(T));
    const SharedBuffers::Found found = buffers_.find(data, bytes);
    ensure(bool(found));
    HostBarrier::Call mine = {{}, found.number, found.offset, bytes};
    std::snprintf(mine.what, sizeof mine.what, "%s", doing_);
    barrier_.meet_for(mine);
    std::vector<T*> all;
    for (int local = 0; local < local_size(); local++) all.push_back(reinterpret_cast<T*>(found.of_local(local)));
    return all;
}

template <class T>
void HostComm::reduce_scatter_of(T* data, int64_t shard) {
    if (!buffers_.find(data, shards() * shard * int64_t(sizeof(T)))) {
        T* const piece = reinterpret_cast<T*>(staging_);
        const int64_t most = int64_t(staging_bytes_ / sizeof(T)) / world_size;
        for (int64_t begin = 0; begin < shard; begin += most) {
            const int64_t n = std::min(most, shard - begin);
            for (int s = 0; s < shards(); s++) std::copy_n(data + s * shard + begin, n, piece + s * n);
            reduce_scatter_of(piece, n);
            std::copy_n(piece + this->shard() * n, n, data + this->shard() * shard + begin);
        }
        return;
    }
    if (is_split() && num_hosts() > 1) return all_reduce_of(data, shards() * shard);
    const std::vector<T*> all = enter(data, shards() * shard);
    if (is_split()) {
        // Each of the shard's owners sums a part of it and writes the sums to all of its owners.
        const int owners = world_size / shards();
        const int64_t part = part_size(shard, owners), first = std::min(shard, rank / shards() * part);
        const int64_t begin = this->shard() * shard + first;
        std::vector<T*> to;
        for (int owner = 0; owner < owners; owner++)
            to.push_back(all[size_t(owner * shards() + this->shard())] + begin);
        add_up(cpu_, to, shifted(all, begin), std::min(shard - first, part));
    } else if (num_hosts() == 1) {
        add_up(cpu_, std::vector<T*>{data + rank * shard}, shifted(all, rank * shard), shard);
    } else {
        add_up_to_first(all, world_size * shard);
        if (leads()) between_.reduce_scatter(data, between_.shards_of(shard));
        barrier_.meet();
        if (!leads()) copy(data + rank * shard, all[0] + rank * shard, shard * int64_t(sizeof(T)));
    }
    barrier_.meet();  // nobody may write until all have read
}

template <class T>
void HostComm::all_to_all_sum_of(float* sum, const T* terms, int64_t shard) {
    if (!buffers_.find(terms, world_size * shard * int64_t(sizeof(T)))) {
        T* const piece = reinterpret_cast<T*>(staging_);
        const int64_t most = int64_t(staging_bytes_ / sizeof(T)) / world_size;
        for (int64_t begin = 0; begin < shard; begin += most) {
            const int64_t n = std::min(most, shard - begin);
            for (int r = 0; r < world_size; r++) std::copy_n(terms + r * shard + begin, n, piece + r * n);
            all_to_all_sum_of<T>(sum + begin, piece, n);
        }
        return;
    }
    const std::vector<const T*> all = enter(terms, world_size * shard);
    if (num_hosts() == 1) {
        add_up(cpu_, std::vector<float*>{sum}, shifted(all, rank * shard), shard);
        return barrier_.meet();
    }
    if (!terms_memory_.data()) terms_memory_ = buffers_.memory_of_first(HostExchange::kPieceBytes);
    // In pieces of `most` elements of each shard: terms_memory_ holds what all ranks elsewhere add to all shards here.
    int64_t pairs = 1;  // (rank of a host, rank elsewhere): their number on the host with the most
    for (const std::vector<int>& there : layout_.hosts)
        pairs = std::max(pairs, int64_t(there.size()) * (world_size - int64_t(there.size())));
    const int64_t most = HostExchange::kPieceBytes / int64_t(sizeof(T)) / pairs;
    ensure(most > 0);
    T* const arrived = reinterpret_cast<T*>(terms_memory_.data());
    for (int64_t begin = 0; begin < shard; begin += most) {
        const int64_t n = std::min(most, shard - begin);
        if (leads()) between_.exchange_terms(all, shard, begin, n, arrived);
        barrier_.meet();
        std::vector<const T*> of_ranks(static_cast<size_t>(world_size));
        const T* from = arrived;
        for (int host = 0; host < num_hosts(); host++) {
            const std::vector<int>& there = layout_.ranks_of(host);
            const bool is_here = host == layout_.host;
            for (size_t i = 0; i < there.size(); i++)
                of_ranks[size_t(there[i])] = is_here ? all[i] + rank * shard + begin
                                                     : from + (layout_.local * int64_t(there.size()) + int64_t(i)) * n;
            if (!is_here) from += local_size() * int64_t(there.size()) * n;
        }
        add_up(cpu_, std::vector<float*>{sum + begin}, of_ranks, n);
        barrier_.meet();
    }
}

template <class T>
void HostComm::all_reduce_of(T* data, int64_t n) {
    if (!buffers_.find(data, n * int64_t(sizeof(T)))) {
        T* const piece = reinterpret_cast<T*>(staging_);
        const int64_t most = int64_t(staging_bytes_ / sizeof(T));
        for (int64_t begin = 0; begin < n; begin += most) {
            const int64_t count = std::min(most, n - begin);
            std::copy_n(data + begin, count, piece);
            all_reduce_of(piece, count);
            std::copy_n(piece, count, data + begin);
        }
        return;
    }
    const std::vector<T*> all = enter(data, n);
    if (num_hosts() == 1) {
        const int64_t part = part_size(n, world_size), begin = std::min(n, layout_.local * part);
        const std::vector<T*> mine = shifted(all, begin);
        add_up(cpu_, mine, mine, std::min(n - begin, part));
    } else {
        add_up_to_first(all, n);
        if (leads()) {
            HostExchange::Ranges parts;
            const int64_t part = part_size(n, num_hosts());
            for (int host = 0; host < num_hosts(); host++)
                parts.push_back({{std::min(n, host * part), std::min(n, (host + 1) * part)}});
            between_.reduce_scatter(data, parts);
            between_.all_gather(reinterpret_cast<char*>(data), parts, sizeof(T));
        }
        barrier_.meet();
        if (!leads()) copy(data, all[0], n * int64_t(sizeof(T)));
    }
    barrier_.meet();
}

void HostComm::all_gather_of(char* data, int64_t shard_bytes) {
    if (!buffers_.find(data, shards() * shard_bytes)) {
        const int64_t most = int64_t(staging_bytes_) / world_size;
        for (int64_t begin = 0; begin < shard_bytes; begin += most) {
            const int64_t n = std::min(most, shard_bytes - begin);
            std::copy_n(data + shard() * shard_bytes + begin, n, staging_ + shard() * n);
            all_gather_of(staging_, n);
            for (int s = 0; s < shards(); s++) std::copy_n(staging_ + s * n, n, data + s * shard_bytes + begin);
        }
        return;
    }
    const std::vector<char*> all = enter(data, shards() * shard_bytes);
    const auto fetch = [&](int r, const char* from) {
        const int64_t at = r % shards() * shard_bytes;
        copy(data + at, from + at, shard_bytes);
    };
    // Each rank begins with its successor, so that they do not all read the same buffer.
    for (int i = 1; i < local_size(); i++) {
        const int local = (layout_.local + i) % local_size(), r = layout_.local_rank(local);
        if (r / shards() == rank / shards()) fetch(r, all[size_t(local)]);
    }
    if (num_hosts() > 1 && !is_split()) {
        if (leads()) between_.all_gather(data, between_.shards_of(shard_bytes), 1);
        barrier_.meet();
        for (int host = 0; !leads() && host < num_hosts(); host++)
            if (host != layout_.host)
                for (const int r : layout_.ranks_of(host)) fetch(r, all[0]);
    }
    barrier_.meet();
}

void HostComm::broadcast_of(char* data, int64_t bytes, int root) {
    if (!buffers_.find(data, bytes)) {
        for (int64_t begin = 0; begin < bytes; begin += int64_t(staging_bytes_)) {
            const int64_t n = std::min(int64_t(staging_bytes_), bytes - begin);
            if (rank == root) std::copy_n(data + begin, n, staging_);
            broadcast_of(staging_, n, root);
            std::copy_n(staging_, n, data + begin);
        }
        return;
    }
    const std::vector<char*> all = enter(data, bytes);
    const int from_host = layout_.host_of(root);
    if (layout_.host == from_host) {
        for (int local = 0; local < local_size(); local++)
            if (layout_.local_rank(local) == root && local != layout_.local) copy(data, all[size_t(local)], bytes);
    }
    if (num_hosts() > 1) {
        if (leads()) between_.broadcast(data, bytes, from_host);
        barrier_.meet();
        if (layout_.host != from_host && !leads()) copy(data, all[0], bytes);
    }
    barrier_.meet();
}

void HostComm::copy(void* to, const void* from, int64_t bytes) {
    parallel_chunks(cpu_, bytes, 1 << 20, [=](int64_t begin, int64_t end) {
        std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, size_t(end - begin));
    });
}

// Sums over this host's ranks into the buffer of its first rank. Each rank sums a part.
template <class T>
void HostComm::add_up_to_first(const std::vector<T*>& all, int64_t n) {
    const int64_t part = part_size(n, local_size()), begin = std::min(n, layout_.local * part);
    add_up(cpu_, std::vector<T*>{all[0] + begin}, shifted(all, begin), std::min(n - begin, part));
    barrier_.meet();
}
