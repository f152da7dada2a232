/*
Collectives between hosts, over a HostNetwork, in pieces of 8 MiB. Only the first rank of each host makes these calls:

  HostExchange between(cpu, layout, barrier, network);
  between.reduce_scatter(data, parts);                   each host's part of its buffer becomes the sum over all hosts
  between.all_gather(data, parts, element_bytes);        each host's part goes to all hosts
  between.broadcast(data, bytes, 0);                     host 0's bytes go to all hosts
  between.exchange_terms(of_locals, shard, 0, n, to);    each host receives its shards' terms from ranks elsewhere

In a reduce-scatter each host sends every other host the part that it owns, and sums its own part. In an all-gather it
sends its own part. So each host sends (hosts - 1) / hosts of a buffer.
*/
#pragma once
#include <cstdint>
#include <vector>
#include "llmc/comm/host/host_barrier.h"  // HostBarrier
#include "llmc/comm/host/host_layout.h"   // HostLayout
#include "llmc/comm/ranks.h"              // HostNetwork
#include "llmc/cpu/device.h"              // Cpu

class HostExchange {
public:
    struct Range {
        int64_t begin, end;
    };
    // The parts of a buffer that each host owns, in elements: ranges[host][part].
    using Ranges = std::vector<std::vector<Range>>;
    // Large enough to saturate a network, small enough to stay in a cache.
    static constexpr int64_t kPieceBytes = 8 << 20;

    // `network`: null where there is one host.
    HostExchange(Cpu& cpu, const HostLayout& layout, HostBarrier& barrier, HostNetwork* network)
        : cpu_(cpu), layout_(layout), barrier_(barrier), network_(network) {}

    Ranges shards_of(int64_t shard) const;  // each host owns the shards of its ranks, of `shard` elements each

    template <class T>  // float, bf16, uint64_t
    void reduce_scatter(T* data, const Ranges& ranges);
    void all_gather(char* data, const Ranges& ranges, int64_t element_bytes);
    void broadcast(char* data, int64_t bytes, int from_host);
    // Every pair of hosts exchanges elements [begin, begin + n) of the terms of each other's shards. `of_locals`: the
    // terms of each of this host's ranks, all shards long. The received terms go to `to` (other host, shard of this
    // host, sender, n), densely.
    template <class T>  // float, bf16
    void exchange_terms(const std::vector<const T*>& of_locals, int64_t shard, int64_t begin, int64_t n, T* to);

private:
    Cpu& cpu_;
    const HostLayout& layout_;
    HostBarrier& barrier_;
    HostNetwork* const network_;
    std::vector<char> received_;  // from other hosts
    std::vector<char> packed_;    // for another host

    template <class Step>
    void each_piece(const Ranges& ranges, int64_t most, Step&& step) const;
    // Calls step(to, from) for every other host `to` in turn; `from` is the host to receive from at the same time.
    template <class Step>
    void each_pair(Step&& step) const;
    void exchange(const void* send, int64_t send_bytes, int to, void* receive, int64_t receive_bytes, int from);
};
