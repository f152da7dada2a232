/*
A fake NCCL for the emulator. The ranks are threads of one LocalGroup, and a test injects faults:

  emulator::nccl = {};
  emulator::nccl.group = &group;              without a group: a single rank
  emulator::nccl.faulty_rank = 1;             the faults below occur on this rank only; -1: on all
  emulator::nccl.fails_at = 2;                the third collective fails
  ...
  CHECK(emulator::nccl.live() == 0);          everything was released
  CHECK(emulator::nccl.misuse == "");         and no call broke NCCL's rules

Errors are sticky: a communicator that has failed refuses every call, as in NCCL, and any call but querying or aborting
it is misuse. Also misuse: two threads in a communicator at a time, ranks that call different collectives, a buffer that
is registered on some ranks only, a collective that is not in place, and a message that is outside of a group, differs
in kind from the group's others, or has no matching send or receive.
*/
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

class LocalGroup;

namespace emulator {

struct Nccl {
    LocalGroup* group = nullptr;
    int version = 0;       // 0: NCCL_VERSION_CODE
    int faulty_rank = -1;  // -1: all

    int init_status = 0;     // what ncclCommInitRankConfig returns
    std::string last_error;  // what ncclGetLastError returns
    bool init_hangs = false;
    bool refuses_memory = false, refuses_registration = false;
    int64_t fails_at = -1;     // the collective in which a peer is found dead
    bool fails_later = false;  // a peer is found dead while no call is made
    int64_t hangs_at = -1;     // the collective that hangs on the GPU until the communicator is aborted
    int slow_call_ms = 0;      // how long a call of a collective takes on the host

    // GPU memory that a communicator allocates and keeps until its end: when it is created, and at the first call of
    // each kind of collective.
    size_t init_bytes = 0, connect_bytes = 0;

    int communicators = 0, buffers = 0, registrations = 0, aborted = 0;
    int64_t collectives = 0;  // over all ranks
    std::string misuse;       // the first one
    int live() const { return communicators + buffers + registrations; }
};
extern Nccl nccl;

}  // namespace emulator
