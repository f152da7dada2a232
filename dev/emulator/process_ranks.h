/*
Ranks of the emulated NCCL that are processes of one host, each with an emulated GPU: `mpirun -np 2 build/.../train_gpt`
with ANVIL_EMULATOR_GPUS=2. They exchange data in shared memory that rank 0 creates.

  ncclGetUniqueId:   new_meeting()                               text of less than 128 bytes, for all ranks
  rank:              ProcessRanks ranks(meeting, rank, size);
  collective:        ranks.exchange(data, bytes)                 the data of all ranks, in rank order

A rank waits forever for one that does not come, as in NCCL. The rank watch ends such a run.
*/
#pragma once
#include <cstddef>
#include <string>
#include <vector>
#include "llmc/comm/host/shared_memory.h"

namespace emulator {

std::string new_meeting();

class ProcessRanks {
public:
    static constexpr int kMost = 8;
    ProcessRanks(const std::string& meeting, int rank, int size);
    // Collective. `bytes` is the same on all ranks.
    std::vector<std::vector<char>> exchange(const void* data, size_t bytes);

    struct Meeting;

private:
    SharedMemory memory_;
    Meeting* meeting_;
    int rank_, size_;

    void wait_for_all();
};

}  // namespace emulator
