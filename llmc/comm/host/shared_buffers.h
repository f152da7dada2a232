/*
Buffers that all ranks of a host have mapped. Each rank allocates one of the same size in a collective call.

  SharedBuffers buffers(ranks, layout, cpu);
  void* gradients = buffers.allocate(bytes);                 all ranks; filled with NaN
  const SharedBuffers::Found found = buffers.find(p, n);     the buffer that contains the n bytes at p, and the offset
  found.of_local(2)                                          the same bytes in the buffer of the host's third rank
*/
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>
#include "llmc/comm/host/host_layout.h"    // HostLayout
#include "llmc/comm/host/shared_memory.h"  // SharedMemory
#include "llmc/comm/ranks.h"               // Ranks
#include "llmc/cpu/device.h"               // Cpu

class SharedBuffers {
public:
    SharedBuffers(Ranks& ranks, const HostLayout& layout, Cpu& cpu) : ranks_(ranks), layout_(layout), cpu_(cpu) {}
    SharedBuffers(const SharedBuffers&) = delete;
    SharedBuffers& operator=(const SharedBuffers&) = delete;

    void* allocate(size_t bytes);
    void release(void* data);

    // One buffer per host, created by its first rank and filled with zeros. Collective.
    SharedMemory memory_of_first(size_t bytes);

    struct Found {
        const std::vector<SharedMemory>* of_locals = nullptr;  // null: not in any buffer
        int64_t number = 0, offset = 0;                        // equal on all ranks, if they make the same call; bytes

        explicit operator bool() const { return of_locals; }
        char* of_local(int local) const { return (*of_locals)[size_t(local)].data() + offset; }
    };
    Found find(const void* data, int64_t bytes) const;

private:
    // One buffer of each rank of this host, in the order of ranks.
    struct Allocation {
        int64_t number;
        std::vector<SharedMemory> memory;
    };

    Ranks& ranks_;
    const HostLayout& layout_;
    Cpu& cpu_;
    std::vector<Allocation> allocations_;
    int64_t num_allocations_ = 0;

    std::vector<SharedMemory> share(size_t bytes, bool filled, bool of_first_alone);
};
