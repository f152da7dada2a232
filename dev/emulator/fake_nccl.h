/*
A fake NCCL for the emulator: ranks are threads of one LocalGroup, and a test says what goes wrong, and on which rank.

  emulator::nccl = {};
  emulator::nccl.group = &group;              without one: a single rank
  emulator::nccl.faulty_rank = 1;             what follows goes wrong there alone; -1: on all
  emulator::nccl.fails_at = 2;                the third collective
  ...
  CHECK(emulator::nccl.live() == 0);          all was given back
  CHECK(emulator::nccl.misuse == "");         and nothing done that NCCL forbids

An error stays: a communicator that has failed refuses every call as NCCL does, and everything but asking it and
aborting it is misuse. So are two threads in a communicator at a time, a rank whose collective is another one than its
neighbors', a buffer that is registered on some ranks only, pointers that are not in place, and a message outside of a
group, unlike the group's others, or that nobody sends or receives.
*/
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

class LocalGroup;

namespace emulator {

struct Nccl {
    LocalGroup* group = nullptr;
    int version = 0;       // 0: that of the header
    int faulty_rank = -1;  // -1: all

    int init_status = 0;     // of ncclCommInitRankConfig
    std::string last_error;  // beside any status that is an error
    bool init_hangs = false;
    bool refuses_memory = false, refuses_registration = false;
    int64_t fails_at = -1;     // the collective after which another rank is found dead
    bool fails_later = false;  // the same, while nothing is called
    int64_t hangs_at = -1;     // the collective that never ends on the GPU, until the communicator is aborted
    int slow_call_ms = 0;      // how long a collective's call stays inside the library

    // Of the GPU's memory, taken by a communicator and kept to its end: when it is made, and for each kind of
    // collective when it is first called.
    size_t init_bytes = 0, connect_bytes = 0;

    int communicators = 0, buffers = 0, registrations = 0, aborted = 0;
    int64_t collectives = 0;  // over all ranks
    std::string misuse;       // the first
    int live() const { return communicators + buffers + registrations; }
};
extern Nccl nccl;

}  // namespace emulator
