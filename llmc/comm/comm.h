/*
Collectives on a device's buffers. The names are those of MPI and NCCL; every one works in place.

  comm.broadcast(weights, bytes, 0);                        rank 0's bytes go to all
  const Work sum = comm.reduce_scatter(gradients, shard);   world_size shards; this rank's own becomes the sum over
  ...                                                       all ranks, the others are undefined
  comm.all_to_all_sum(gradients, shard, scratch);           the same, its order and rounding known: see below
  comm.wait(sum);                                           what is enqueued from here on sees the result
  comm.wait(comm.all_gather(weights, shard_bytes));         every rank's own shard goes to all
  comm.wait(comm.all_reduce(sums, n));                      integers or floats, added up over the ranks

A collective starts after everything enqueued on the device so far, and overlaps with what is enqueued next, until
wait(). Where there is nothing to overlap (on the CPU, or with Order::serial) it is done when the call returns. Every
rank must make the same calls in the same order. Sums of floats are taken pairwise, the ranks being the leaves of a
binary tree (sum_tree), so that they do not depend on how the work is cut or timed; NCCL, and MPI between hosts, add in
an order of their own. Sums of integers are exact in any order.

Backends: NoComm (here), LocalComm (local.h, on a GPU local_cuda.h), HostComm (host_comm.h), NcclComm (nccl_comm.h).
*/
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include "llmc/base/bf16.h"      // bf16
#include "llmc/base/sum_tree.h"  // sum_tree

// How gradients get to their owners: Comm::reduce_scatter(), or Comm::all_to_all_sum(), the same sum in a known order.
// automatic: of bf16 the latter, where it is never slower. (In fp32 it has the same bits there.)
enum class GradientSum { automatic, reduce_scatter, all_to_all };

// A handle to a collective in progress, like torch.distributed's Work.
struct Work {
    int64_t number = -1;  // -1: it is complete
};

// Serial: wait() at once, for debugging and for the tests that overlap changes nothing.
enum class Order { overlapped, serial };

// What collectives have cost on this rank since the last call of take_times(), in ms.
struct CommTimes {
    double busy_ms = 0;     // in collectives
    double exposed_ms = 0;  // of it, with the device waiting
    double sent_bytes = 0;  // by this rank, as a ring would: (world_size - 1) / world_size of a buffer for each
                            // reduce-scatter and all-gather, twice that for an all-reduce
};

template <class Device>
class Comm {
public:
    int rank = 0, world_size = 1;
    // Of a bucket: as many as there are ranks, or with split() fewer. Then consecutive ranks make groups, in each of
    // which every shard has an owner: reduce_scatter() leaves the sum over all ranks with all of a shard's owners, and
    // all_gather() is among the ranks of a group.
    int shards() const { return num_shards_ > 0 ? num_shards_ : world_size; }
    int shard() const { return rank % shards(); }  // of which this rank is an owner
    bool is_split() const { return shards() < world_size; }

    virtual ~Comm() = default;
    // Collective, before anything else. `num_shards` divides the ranks.
    virtual void split(int num_shards) { num_shards_ = num_shards; }
    virtual std::string describe() const = 0;  // for the start of a run: "shared memory, 4 ranks"

    virtual Work broadcast(void* data, size_t bytes, int root) = 0;
    virtual Work reduce_scatter(float* data, int64_t shard) = 0;  // data: shards() * shard elements
    virtual Work reduce_scatter(bf16* data, int64_t shard) = 0;   // summed in float where we do it, rounded once
    // A reduce-scatter by messages between every two ranks: the owner of a shard gets all ranks' terms of it and adds
    // them up in float, in the order of sum_tree over all ranks, whatever connects them. So the bits are the same on
    // any device and network. `scratch`: as large as data, on a GPU; what is not this rank's own shard of it is
    // written.
    virtual Work all_to_all_sum(float* data, int64_t shard, float* scratch) = 0;
    // Of terms in bf16, half the bytes, into data, which is the scratch, too. The sum is not rounded.
    virtual Work all_to_all_sum(float* data, const bf16* terms, int64_t shard) = 0;
    // Whether the sum of bf16 is known to be no slower than reduce_scatter(). Where ranks read each other's memory the
    // two are the same, and between the GPUs of a server `plan` predicts the same speed.
    virtual bool sums_in_order() const { return false; }
    bool takes_all_to_all(GradientSum how, bool of_bf16) const {
        return how == GradientSum::all_to_all ||
               (how == GradientSum::automatic && of_bf16 && sums_in_order() && !is_split());
    }
    virtual Work all_gather(void* data, size_t shard_bytes) = 0;  // data: shards() * shard_bytes
    virtual Work all_reduce(float* data, int64_t n) = 0;
    virtual Work all_reduce(uint64_t* data, int64_t n) = 0;
    virtual void wait(Work work) = 0;

    // The memory that collectives move fastest: shared between processes, or registered with the network. It holds
    // whole buffers (weights, gradients). These calls are collective, too. Filled with NaN, 256-byte aligned.
    virtual void* allocate(size_t bytes) = 0;
    virtual void release(void* data, size_t bytes) = 0;

    // Does each collective once, all_to_all_sum if it is wanted, so that what backends connect, load and take for it is
    // there. Collective.
    virtual void warm_up(bool /*all_to_all*/) {}
    // Of the device's memory, by the backend itself: known after warm_up(), on this rank.
    virtual size_t taken_bytes() const { return 0; }

    virtual CommTimes take_times() = 0;
    virtual void set_step(int64_t) {}  // for messages about what hangs

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
