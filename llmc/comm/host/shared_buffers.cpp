// Buffers that all ranks of a host have mapped.
#include "llmc/comm/host/shared_buffers.h"
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include "llmc/base/check.h"  // ensure

// Creates `bytes` of memory on each rank of this host, or only on its first rank, and maps all of it on every rank;
// `filled`: with NaN. Collective. If it fails on one rank, all throw an Error.
std::vector<SharedMemory> SharedBuffers::share(size_t bytes, bool filled, bool of_first_alone) {
    const bool has_any = layout_.leads() || !of_first_alone;
    SharedMemory mine;
    share_errors(ranks_, [&] {
        if (!has_any) return;
        mine = SharedMemory::create(bytes);
        char* const data = mine.data();
        if (filled)
            parallel_chunks(cpu_, int64_t(bytes), 1 << 21,
                            [=](int64_t begin, int64_t end) { std::memset(data + begin, 0xFF, size_t(end - begin)); });
    });
    const std::vector<std::string> records = ranks_.all_gather(has_any ? mine.record() : "");
    std::vector<SharedMemory> memory(static_cast<size_t>(layout_.local_size()));
    share_errors(ranks_, [&] {
        for (int local = 0; local < (of_first_alone ? 1 : layout_.local_size()); local++) {
            const int r = layout_.local_rank(local);
            if (local != layout_.local)
                memory[size_t(local)] = SharedMemory::open(records[size_t(r)], bytes, ranks_.name_of(r));
        }
    });
    mine.close();  // all have opened it
    memory[size_t(layout_.local)] = std::move(mine);
    return memory;
}

SharedMemory SharedBuffers::memory_of_first(size_t bytes) { return std::move(share(bytes, false, true)[0]); }

void* SharedBuffers::allocate(size_t bytes) {
    bytes = std::max<size_t>(bytes, 1);
    Allocation allocation{num_allocations_++, share(bytes, true, false)};
    allocations_.push_back(std::move(allocation));
    return allocations_.back().memory[size_t(layout_.local)].data();
}

void SharedBuffers::release(void* data) {
    const auto found = std::find_if(allocations_.begin(), allocations_.end(), [&](const Allocation& allocation) {
        return allocation.memory[size_t(layout_.local)].data() == data;
    });
    ensure(found != allocations_.end());
    allocations_.erase(found);
}

SharedBuffers::Found SharedBuffers::find(const void* data, int64_t bytes) const {
    for (const Allocation& allocation : allocations_) {
        const SharedMemory& memory = allocation.memory[size_t(layout_.local)];
        const int64_t offset = int64_t(reinterpret_cast<uintptr_t>(data) - reinterpret_cast<uintptr_t>(memory.data()));
        if (offset >= 0 && offset + bytes <= int64_t(memory.bytes()))
            return {&allocation.memory, allocation.number, offset};
    }
    return {};
}
