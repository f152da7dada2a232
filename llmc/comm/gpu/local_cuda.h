/*
Virtual ranks (local.h) on one GPU. Each has a device with its own streams, and reads the others' buffers.

A collective is work between two barriers. At a barrier every rank records an event and makes its stream wait for the
events of all others, without blocking the host. So after the first barrier all inputs are ready, and after the second
one all have been read and may be overwritten. Nothing is allocated: a rank writes only its own shard, which no other
rank reads at that time.
*/
#pragma once
#include <algorithm>
#include <string>
#include <vector>
#include "llmc/comm/gpu/cuda_comm.h"  // CudaComm, OnStream
#include "llmc/comm/local.h"          // LocalComm, LocalPart
#include "llmc/cuda/cuda_kernels.h"   // sum_ranks, sum_terms

template <>
class LocalComm<Cuda> : public CudaComm {
public:
    LocalComm(LocalPart group, int rank, Cuda& cuda, Order order = Order::overlapped)
        : CudaComm(cuda, order), group_(group), here_(new_event()) {
        this->rank = rank;
        world_size = group.world_size;
    }
    ~LocalComm() override {
        cudaStreamSynchronize(stream_);
        cudaEventDestroy(here_);
    }
    std::string describe() const override { return format("%d virtual ranks on one GPU", world_size); }

    Work broadcast(void* data, size_t bytes, int root) override {
        return start("broadcast", 1, double(bytes), [&] {
            const std::vector<void*> all = meet(data);
            if (rank != root) copy(data, all[size_t(root)], bytes);
            meet(nullptr);
        });
    }
    Work reduce_scatter(float* data, int64_t shard) override { return reduce_scatter_of(data, shard); }
    Work reduce_scatter(bf16* data, int64_t shard) override { return reduce_scatter_of(data, shard); }
    Work all_to_all_sum(float* data, int64_t shard, float* scratch) override {
        return all_to_all_sum_of(data, data, scratch, shard, shard);
    }
    Work all_to_all_sum(float* data, const bf16* terms, int64_t shard) override {
        return all_to_all_sum_of(data, terms, reinterpret_cast<bf16*>(data), 2 * shard, shard);
    }
    bool sums_in_order() const override { return true; }
    Work all_gather(void* data, size_t shard_bytes) override {
        return start("all_gather", 1, double(shard_bytes) * shards(), [&] {
            const std::vector<void*> all = meet(data);
            const int first = rank - shard();  // of the group
            for (int s = 0; s < shards(); s++) {
                const size_t at = size_t(s) * shard_bytes;
                if (s != shard()) copy(part(data, at), part(all[size_t(first + s)], at), shard_bytes);
            }
            meet(nullptr);
        });
    }
    Work all_reduce(float* data, int64_t n) override { return all_reduce_of(data, n); }
    Work all_reduce(uint64_t* data, int64_t n) override { return all_reduce_of(data, n); }

    void* allocate(size_t bytes) override { return cuda_.allocate(bytes); }
    void release(void* data, size_t bytes) noexcept override {
        cudaStreamSynchronize(stream_);  // others may still read
        cuda_.release(data, bytes);
    }

private:
    struct Offer {
        void* data;
        cudaEvent_t here;
    };
    LocalPart group_;
    cudaEvent_t here_;

    // The barrier. Returns every rank's `data`.
    std::vector<void*> meet(void* data) {
        record(here_, stream_);
        const Offer mine{data, here_};
        std::vector<void*> all;
        for (const void* theirs : group_.meet(rank, &mine)) {
            const Offer& offer = *static_cast<const Offer*>(theirs);
            if (offer.here != here_) wait_for(offer.here, stream_);
            all.push_back(offer.data);
        }
        group_.meet(rank, nullptr);  // no event may be recorded again or destroyed before all streams wait for it
        return all;
    }

    static void* part(void* data, size_t offset) { return static_cast<char*>(data) + offset; }
    void copy(void* to, const void* from, size_t bytes) {
        cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_),
                   "copying %zu bytes between ranks", bytes);
    }
    // This rank's elements [begin, begin + n) become the sum over all ranks.
    template <class T>
    void add_up(const std::vector<void*>& all, int64_t begin, int64_t n) {
        std::vector<T*> from;
        for (void* data : all) from.push_back(static_cast<T*>(data) + begin);
        const OnStream on(cuda_, stream_);
        sum_ranks<T>(cuda_, from[size_t(rank)], from.data(), world_size, n);
    }
    template <class T>
    Work reduce_scatter_of(T* data, int64_t shard) {
        return start("reduce_scatter", 1, double(shard) * shards() * sizeof(T), [&] {
            // Each of a shard's owners sums a part of it, then copies the other parts from the other owners.
            const int owners = world_size / shards();
            const int64_t most = (shard + owners - 1) / owners, first = this->shard() * shard;
            const auto begin = [=](int owner) { return first + std::min(shard, owner * most); };
            const std::vector<void*> all = meet(data);
            const int own = rank / shards();
            add_up<T>(all, begin(own), begin(own + 1) - begin(own));
            meet(nullptr);
            if (owners == 1) return;
            for (int owner = 0; owner < owners; owner++)
                if (owner != own)
                    copy(data + begin(owner),
                         static_cast<T*>(all[size_t(owner * shards() + this->shard())]) + begin(owner),
                         size_t(begin(owner + 1) - begin(owner)) * sizeof(T));
            meet(nullptr);
        });
    }
    // Rank r's terms of this rank's shard go to arrived + r * stride.
    template <class T>
    Work all_to_all_sum_of(float* data, const T* terms, T* arrived, int64_t stride, int64_t shard) {
        return start("all_to_all", 1, double(shard) * world_size * sizeof(T), [&] {
            const std::vector<void*> all = meet(const_cast<T*>(terms));
            const int64_t begin = rank * shard;
            for (int r = 0; r < world_size; r++)
                if (r != rank)
                    copy(arrived + r * stride, static_cast<T*>(all[size_t(r)]) + begin, size_t(shard) * sizeof(T));
            meet(nullptr);
            const OnStream on(cuda_, stream_);
            sum_terms(cuda_, data + begin, terms + begin, arrived, stride, rank, world_size, shard);
        });
    }
    template <class T>
    Work all_reduce_of(T* data, int64_t n) {
        return start("all_reduce", 2, double(n) * sizeof(T), [&] {
            const int64_t shard = (n + world_size - 1) / world_size;
            const auto begin = [=](int64_t r) { return std::min(n, r * shard); };
            const std::vector<void*> all = meet(data);
            add_up<T>(all, begin(rank), begin(rank + 1) - begin(rank));
            meet(nullptr);
            for (int r = 0; r < world_size; r++)
                if (r != rank)
                    copy(data + begin(r), static_cast<T*>(all[size_t(r)]) + begin(r),
                         size_t(begin(r + 1) - begin(r)) * sizeof(T));
            meet(nullptr);
        });
    }
};
