// Collectives between hosts.
#include "llmc/comm/host/host_exchange.h"
#include <algorithm>
#include "llmc/base/bf16.h"    // bf16
#include "llmc/cpu/kernels.h"  // sum_ranks_kernel

HostExchange::Ranges HostExchange::shards_of(int64_t shard) const {
    Ranges shards;
    for (const std::vector<int>& ranks : layout_.hosts) {
        shards.emplace_back();
        for (const int r : ranks) shards.back().push_back({r * shard, (r + 1) * shard});
    }
    return shards;
}

// Calls step(pieces), one range per host, for pieces of at most `most` elements: the same calls on all hosts.
template <class Step>
void HostExchange::each_piece(const Ranges& ranges, int64_t most, Step&& step) const {
    size_t parts = 0;
    int64_t longest = 0;
    for (const std::vector<Range>& of_host : ranges) {
        parts = std::max(parts, of_host.size());
        for (const Range& range : of_host) longest = std::max(longest, range.end - range.begin);
    }
    for (size_t part = 0; part < parts; part++)
        for (int64_t begin = 0; begin < longest; begin += most) {
            std::vector<Range> pieces;
            for (const std::vector<Range>& of_host : ranges) {
                const Range range = part < of_host.size() ? of_host[part] : Range{0, 0};
                const int64_t first = std::min(range.begin + begin, range.end);
                pieces.push_back({first, std::min(first + most, range.end)});
            }
            step(pieces);
        }
}

template <class Step>
void HostExchange::each_pair(Step&& step) const {
    const int hosts = layout_.num_hosts();
    for (int i = 1; i < hosts; i++) step((layout_.host + i) % hosts, (layout_.host + hosts - i) % hosts);
}

template <class T>
void HostExchange::reduce_scatter(T* data, const Ranges& ranges) {
    const int64_t most = kPieceBytes / int64_t(sizeof(T));
    each_piece(ranges, most, [&](const std::vector<Range>& pieces) {
        const Range mine = pieces[size_t(layout_.host)];
        const int64_t n = mine.end - mine.begin;
        received_.resize(std::max(received_.size(), size_t(layout_.num_hosts() * n) * sizeof(T)));
        T* const sum = data + mine.begin;
        std::vector<T*> terms;
        for (int host = 0; host < layout_.num_hosts(); host++)
            terms.push_back(host == layout_.host ? sum : reinterpret_cast<T*>(received_.data()) + host * n);
        each_pair([&](int to, int from) {
            const Range theirs = pieces[size_t(to)];
            exchange(data + theirs.begin, (theirs.end - theirs.begin) * int64_t(sizeof(T)), to, terms[size_t(from)],
                     n * int64_t(sizeof(T)), from);
        });
        sum_ranks_kernel<T, T>()(cpu_, &sum, terms.data(), 1, int(terms.size()), n);
    });
}
template void HostExchange::reduce_scatter(float*, const Ranges&);
template void HostExchange::reduce_scatter(bf16*, const Ranges&);
template void HostExchange::reduce_scatter(uint64_t*, const Ranges&);

template <class T>
void HostExchange::exchange_terms(const std::vector<const T*>& of_locals, int64_t shard, int64_t begin, int64_t n,
                                  T* to) {
    std::vector<T*> arriving;
    const auto pairs = [&](int host) { return layout_.local_size() * int64_t(layout_.ranks_of(host).size()); };
    for (int host = 0; host < layout_.num_hosts(); host++) {
        arriving.push_back(to);
        if (host != layout_.host) to += pairs(host) * n;
    }
    each_pair([&](int to_host, int from) {
        packed_.resize(std::max(packed_.size(), size_t(pairs(to_host) * n) * sizeof(T)));
        T* leaving = reinterpret_cast<T*>(packed_.data());
        for (const int owner : layout_.ranks_of(to_host))
            for (const T* terms : of_locals) leaving = std::copy_n(terms + owner * shard + begin, n, leaving);
        exchange(packed_.data(), pairs(to_host) * n * int64_t(sizeof(T)), to_host, arriving[size_t(from)],
                 pairs(from) * n * int64_t(sizeof(T)), from);
    });
}
template void HostExchange::exchange_terms(const std::vector<const float*>&, int64_t, int64_t, int64_t, float*);
template void HostExchange::exchange_terms(const std::vector<const bf16*>&, int64_t, int64_t, int64_t, bf16*);

void HostExchange::all_gather(char* data, const Ranges& ranges, int64_t element_bytes) {
    each_piece(ranges, kPieceBytes / element_bytes, [&](const std::vector<Range>& pieces) {
        const auto begin = [&](int host) { return data + pieces[size_t(host)].begin * element_bytes; };
        const auto bytes = [&](int host) {
            return (pieces[size_t(host)].end - pieces[size_t(host)].begin) * element_bytes;
        };
        each_pair([&](int to, int from) {
            exchange(begin(layout_.host), bytes(layout_.host), to, begin(from), bytes(from), from);
        });
    });
}

// Along a chain of hosts: each forwards a piece while it receives the next one.
void HostExchange::broadcast(char* data, int64_t bytes, int from_host) {
    const int hosts = layout_.num_hosts(), next = (layout_.host + 1) % hosts,
              previous = (layout_.host + hosts - 1) % hosts;
    const auto size_at = [&](int64_t begin) {
        return begin < 0 ? 0 : std::clamp<int64_t>(bytes - begin, 0, kPieceBytes);
    };
    for (int64_t begin = 0; begin < bytes + kPieceBytes; begin += kPieceBytes) {
        const int64_t out = next == from_host ? 0 : size_at(begin - kPieceBytes);
        const int64_t in = layout_.host == from_host ? 0 : size_at(begin);
        exchange(data + (out ? begin - kPieceBytes : 0), out, next, data + (in ? begin : 0), in, previous);
    }
}

void HostExchange::exchange(const void* send, int64_t send_bytes, int to, void* receive, int64_t receive_bytes,
                            int from) {
    if (send_bytes == 0 && receive_bytes == 0) return;
    const int to_rank = layout_.leader_of(to), from_rank = layout_.leader_of(from);
    barrier_.begin_wait_elsewhere(receive_bytes ? from_rank : to_rank);
    network_->exchange(send, size_t(send_bytes), to_rank, receive, size_t(receive_bytes), from_rank,
                       [&](int awaited) { barrier_.look_elsewhere(awaited); });
    barrier_.end_wait_elsewhere();
}
