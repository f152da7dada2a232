// See process_ranks.h.
#include "dev/emulator/process_ranks.h"
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include "llmc/base/check.h"  // require

namespace emulator {

struct ProcessRanks::Meeting {
    static constexpr size_t kPart = 1 << 18;  // bytes that each rank exchanges at a time
    std::atomic<uint32_t> arrived, meetings;
    char parts[kMost][kPart];
};

// Kept until the process ends: other ranks may open it at any time.
std::string new_meeting() {
    static std::vector<SharedMemory> all;
    all.push_back(SharedMemory::create(sizeof(ProcessRanks::Meeting)));
    return all.back().record();
}

ProcessRanks::ProcessRanks(const std::string& meeting, int rank, int size)
    : memory_(SharedMemory::open(meeting, sizeof(Meeting), "the rank that made the meeting")),
      meeting_(reinterpret_cast<Meeting*>(memory_.data())),
      rank_(rank),
      size_(size) {
    require(size <= kMost, "%d ranks of the emulated NCCL: there are places for %d", size, kMost);
}

void ProcessRanks::wait_for_all() {
    const uint32_t before = meeting_->meetings;
    if (++meeting_->arrived == uint32_t(size_)) {
        meeting_->arrived = 0;
        meeting_->meetings++;
    } else {
        while (meeting_->meetings == before) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
}

std::vector<std::vector<char>> ProcessRanks::exchange(const void* data, size_t bytes) {
    std::vector<std::vector<char>> all(static_cast<size_t>(size_), std::vector<char>(bytes));
    for (size_t at = 0; at < bytes; at += Meeting::kPart) {
        const size_t n = std::min(Meeting::kPart, bytes - at);
        std::memcpy(meeting_->parts[rank_], static_cast<const char*>(data) + at, n);
        wait_for_all();
        for (size_t r = 0; r < all.size(); r++) std::memcpy(all[r].data() + at, meeting_->parts[r], n);
        wait_for_all();  // until all ranks have read the parts
    }
    return all;
}

}  // namespace emulator
