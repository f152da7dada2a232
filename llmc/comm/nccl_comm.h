/*
Collectives between GPUs by NVIDIA's NCCL, one process a GPU: over NVLink, PCIe and networks.

  auto comm = make_nccl_comm(ranks, cuda, Order::overlapped);       collective; throws if NCCL cannot
  comm->warm_up();                                                  before the rest of the memory is given away

- Reproducible: NCCL adds in an order of its own. With the same GPUs, wires and version its rings and trees give the
  same bits every time; NVLS, sums inside NVLink switches, does not promise that, and describe() says so where it may be
  in use. The variable NCCL_ALGO=Ring keeps it to rings. bf16 is rounded at every hop. all_to_all_sum() is a group of
  sends and receives, and a kernel of ours that adds: its bits are those of every other backend.
- Waiting: the communicator is a blocking one (ncclConfig_t::blocking). A non-blocking one makes a thread for every
  collective, 30 to 50 us of the host each, of which a step of 124M has 27 and one of 1558M 99. A blocking call returns
  when the collective is enqueued, and waits for other ranks only where they connect. Each is under a Watch of the
  ranks' watchdog (watchdog.h), which ends the process if it takes longer than --comm-timeout; without a watchdog (a
  single rank, virtual ranks) there is no limit. What is enqueued and does not end on the GPU, and errors of other
ranks, a thread looks for ten times per second, and has the watchdog end the process, with the collective's name. The
  process just ends then, without ncclCommAbort: the driver ends its kernels, the other ranks hear of it from Ranks,
  and aborting would need the thread that may be inside NCCL.
- Threads: NCCL allows one at a time to use a communicator. Every call is made under a lock; the thread that looks does
  not wait for it, it looks again later.
- Errors: when the communicator has failed, or an exception unwinds the stack, it is aborted before anything waits for
  the GPU; from then on NCCL is not called with it, and release() only gives memory back. release() never throws.
- Memory: allocate() takes memory that NCCL can map into other GPUs and network cards and registers it, so that nothing
  is copied through buffers of its own. If the system refuses that on any rank, all use ordinary memory, and rank 0 says
  so. It must be released before the Comm is gone. NCCL's own buffers, hundreds of MiB, are taken when ranks connect:
  warm_up() runs each collective, after which the device's free memory is what the rest of the run can have.

A build without NCCL links nccl_absent.cpp.
*/
#pragma once
#include <memory>
#include <string>
#include "llmc/comm/comm.h"         // Comm, Order
#include "llmc/comm/launch.h"       // Environment
#include "llmc/comm/ranks.h"        // Ranks
#include "llmc/cuda/cuda_device.h"  // Cuda

std::unique_ptr<Comm<Cuda>> make_nccl_comm(Ranks& ranks, Cuda& cuda, Order order);

// Of the library that is linked, "2.28.9", which must be the same on all ranks; "" without NCCL.
std::string nccl_version();

// May NCCL choose NVLS, whose sums are not the same bits each time? Of `local_size` ranks on a host whose NVLink switch
// can add (`has_multicast`), unless the environment says otherwise.
bool sums_may_differ(int local_size, bool has_multicast, const Environment& environment);
