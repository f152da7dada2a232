/*
A double of NCCL for the emulator: ranks are threads of one LocalGroup, and a test says what goes wrong.

  emulator::nccl = {};
  emulator::nccl.group = &group;              without one: a single rank
  emulator::nccl.hangs_at = 2;                each rank's third collective
  ...
  CHECK(emulator::nccl.live() == 0);          all was given back
  CHECK(emulator::nccl.misuse == "");         and nothing done that NCCL forbids

No call blocks and none is done at once: a communicator is busy until it was asked about a few times, and another call
meanwhile is misuse. So are a rank whose collective is another one than its neighbours', and pointers that are not in
place.
*/
#pragma once
#include <cstdint>
#include <string>

class LocalGroup;

namespace emulator {

struct Nccl {
    LocalGroup* group = nullptr;
    int questions = 2;  // after which a call is done

    int init_status = 0;     // of ncclCommInitRankConfig; beside ncclInProgress, what it comes to
    std::string last_error;  // beside any status that is an error
    bool init_hangs = false;
    bool refuses_memory = false, refuses_registration = false;
    int64_t fails_at = -1;     // the collective after which another rank is found dead
    bool fails_later = false;  // the same, while nothing is called
    int64_t hangs_at = -1;     // the collective that never ends on the GPU, until the communicator is aborted

    int communicators = 0, buffers = 0, registrations = 0, aborted = 0;
    int64_t collectives = 0;  // over all ranks
    std::string misuse;       // the first
    int live() const { return communicators + buffers + registrations; }
};
extern Nccl nccl;

}  // namespace emulator
