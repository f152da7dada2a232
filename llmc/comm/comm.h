/*
Collectives on a device's buffers. The names are those of MPI and NCCL; every one works in place.

  comm.broadcast(weights, bytes, 0);                        rank 0's bytes go to all
  const Work sum = comm.reduce_scatter(gradients, shard);   of world_size shards, this rank's own becomes the sum over
  ...                                                       all ranks; the others are undefined
  comm.all_to_all_sum(gradients, shard, scratch);           the same, with a specified order and rounding: see below
  comm.wait(sum);                                           work that is enqueued from here on sees the result
  comm.wait(comm.all_gather(weights, shard_bytes));         every rank's own shard goes to all
  comm.wait(comm.all_reduce(sums, n));                      the sum of integers or floats over all ranks

A collective starts after everything enqueued on the device so far, and overlaps with what is enqueued next, until
wait(). On the CPU, and with Order::serial, it is complete when the call returns. Every rank must make the same calls in
the same order. Sums of floats are pairwise: the ranks are the leaves of a binary tree (sum_tree), so the result does
not depend on how the work is split or timed. The exceptions are NCCL, which has its own order, and several hosts, whose
sums may form another tree (host_comm.h). Sums of integers are exact in any order.

Backends: NoComm (here), LocalComm (local.h, on a GPU local_cuda.h), HostComm (host_comm.h), NcclComm (nccl_comm.h).
*/
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include "llmc/base/bf16.h"      // bf16
#include "llmc/base/sum_tree.h"  // sum_tree

// How gradients are reduced: by Comm::reduce_scatter(), or by Comm::all_to_all_sum(), which has a specified order.
// automatic: all_to_all for bf16 where that is known to be no slower (sums_in_order()), else reduce_scatter.
enum class GradientSum { automatic, reduce_scatter, all_to_all };

// A handle to a collective in progress, like torch.distributed's Work.
struct Work {
    int64_t number = -1;  // -1: it is complete
};

// serial: every collective waits at once. For debugging, and for tests that overlap does not change results.
enum class Order { overlapped, serial };

// The cost of collectives on this rank since the last call of take_times(), in ms and bytes.
struct CommTimes {
    double busy_ms = 0;     // in collectives
    double exposed_ms = 0;  // the part of busy_ms in which the device waited
    double sent_bytes = 0;  // what a ring would send from this rank: (world_size - 1) / world_size of a buffer for each
                            // reduce-scatter and all-gather, twice that for an all-reduce
};

template <class Device>
class Comm {
public:
    int rank = 0, world_size = 1;
    // The number of shards of a bucket: world_size, or fewer after split(). Then consecutive ranks form groups, and
    // each group has one owner of every shard. reduce_scatter() gives the sum over all ranks to all owners of a shard,
    // and all_gather() works within a group.
    int shards() const { return num_shards_ > 0 ? num_shards_ : world_size; }
    int shard() const { return rank % shards(); }  // the shard that this rank owns
    bool is_split() const { return shards() < world_size; }

    virtual ~Comm() = default;
    // Collective, before any other call. `num_shards` must divide world_size.
    virtual void split(int num_shards) { num_shards_ = num_shards; }
    virtual std::string describe() const = 0;  // for the start of a run: "shared memory, 4 ranks"

    virtual Work broadcast(void* data, size_t bytes, int root) = 0;
    virtual Work reduce_scatter(float* data, int64_t shard) = 0;  // data: shards() * shard elements
    virtual Work reduce_scatter(bf16* data, int64_t shard) = 0;   // except by NCCL: summed in float, then rounded
    // A reduce-scatter by messages between every two ranks: the owner of a shard receives all ranks' terms of it and
    // sums them in float, in the order of sum_tree over all ranks. So the bits are the same on any device and network.
    // `scratch`, only used on a GPU: as large as data; this rank's own shard of it is not written.
    virtual Work all_to_all_sum(float* data, int64_t shard, float* scratch) = 0;
    // The same with terms in bf16, which are half the bytes. `data` serves as scratch. The sum is not rounded to bf16.
    virtual Work all_to_all_sum(float* data, const bf16* terms, int64_t shard) = 0;
    // Whether all_to_all_sum() of bf16 is known to be no slower than reduce_scatter(). Where ranks read each other's
    // memory the two do the same work, and between the GPUs of a server `plan` predicts the same speed.
    virtual bool sums_in_order() const { return false; }
    bool takes_all_to_all(GradientSum how, bool of_bf16) const {
        return how == GradientSum::all_to_all ||
               (how == GradientSum::automatic && of_bf16 && sums_in_order() && !is_split());
    }
    virtual Work all_gather(void* data, size_t shard_bytes) = 0;  // data: shards() * shard_bytes
    virtual Work all_reduce(float* data, int64_t n) = 0;
    virtual Work all_reduce(uint64_t* data, int64_t n) = 0;
    virtual void wait(Work work) = 0;

    // Memory with which collectives are fastest: shared between processes, or registered with the network. For whole
    // buffers (weights, gradients). Filled with NaN, 256-byte aligned. Both calls are collective.
    virtual void* allocate(size_t bytes) = 0;
    virtual void release(void* data, size_t bytes) = 0;

    // Does each collective once (all_to_all_sum() only on request), so that backends make their connections, load
    // kernels and allocate buffers now. Collective.
    virtual void warm_up(bool /*all_to_all*/) {}
    // Bytes of device memory that the backend itself uses on this rank. Known after warm_up().
    virtual size_t taken_bytes() const { return 0; }

    virtual CommTimes take_times() = 0;
    virtual void set_step(int64_t) {}  // for messages about a collective that hangs

private:
    int num_shards_ = 0;  // 0: world_size
};

// For one rank: every collective does nothing.
template <class Device>
class NoComm : public Comm<Device> {
public:
    explicit NoComm(Device& device) : device_(device) {}
    std::string describe() const override { return "one rank"; }
    Work broadcast(void*, size_t, int) override { return {}; }
    Work reduce_scatter(float*, int64_t) override { return {}; }
    Work reduce_scatter(bf16*, int64_t) override { return {}; }
    Work all_to_all_sum(float*, int64_t, float*) override { return {}; }
    Work all_to_all_sum(float*, const bf16*, int64_t) override { return {}; }
    Work all_gather(void*, size_t) override { return {}; }
    Work all_reduce(float*, int64_t) override { return {}; }
    Work all_reduce(uint64_t*, int64_t) override { return {}; }
    void wait(Work) override {}
    void* allocate(size_t bytes) override { return device_.allocate(bytes); }
    void release(void* data, size_t bytes) override { device_.release(data, bytes); }
    CommTimes take_times() override { return {}; }

private:
    Device& device_;
};
