/*
Collectives between GPUs by NVIDIA's NCCL, one process per GPU: over NVLink, PCIe and networks.

  auto comm = make_nccl_comm(ranks, cuda, Order::overlapped);       collective; throws an Error if NCCL cannot start
  comm->warm_up();                                                  before the free memory is measured

- Reproducibility: NCCL sums in its own order. With the same GPUs, links and version its rings and trees give the same
  bits every time. NVLS, sums inside NVLink switches, does not promise that; describe() says so if NVLS may be in use,
  and NCCL_ALGO=Ring in the environment prevents it. bf16 is rounded at every hop. all_to_all_sum() is a group of sends
  and receives and a kernel of this project, so its bits are those of every other backend.
- Blocking: the communicator is blocking (ncclConfig_t::blocking). A non-blocking one creates a thread for every
  collective, at 30 to 50 us of host time each; a step has 27 collectives for GPT-2 124M and 99 for 1558M. A blocking
  call returns when the collective is enqueued, and waits for other ranks only when they connect.
- Timeouts: each call is under a Watch of the ranks' watchdog (watchdog.h), which ends the process after --comm-timeout;
  without a watchdog (a single rank, virtual ranks) there is no limit. Ten times per second, a thread checks for
  collectives that do not complete on the GPU and for errors of other ranks. If it finds one, the watchdog ends the
  process and names the collective. That happens without ncclCommAbort: the driver ends the kernels, the other ranks
  learn of it from Ranks, and aborting would need the thread that may be inside NCCL.
- Threads: only one thread at a time may use a communicator, so every call is made under a lock. The checking thread
  does not wait for the lock but tries again later.
- Errors: when the communicator has failed, or an exception unwinds the stack, it is aborted before anything waits for
  the GPU. From then on NCCL is not called with it, and release() only frees memory. release() never throws.
- Memory: allocate() returns memory that NCCL can map into other GPUs and network cards, and registers it, so that data
  is not copied through NCCL's buffers. If that fails on any rank, all use ordinary memory, and rank 0 says so. The
  memory must be released before the Comm is destroyed. NCCL allocates its own buffers, hundreds of MiB, when ranks
  connect: warm_up() runs each collective, and after that the free device memory is available to the rest of the run.

A build without NCCL links nccl_absent.cpp.
*/
#pragma once
#include <functional>
#include <memory>
#include <string>
#include "llmc/comm/comm.h"         // Comm, Order
#include "llmc/comm/ranks.h"        // Ranks
#include "llmc/cuda/cuda_device.h"  // Cuda

std::unique_ptr<Comm<Cuda>> make_nccl_comm(Ranks& ranks, Cuda& cuda, Order order);

// The version of the linked library, "2.28.9", which must be the same on all ranks; "" without NCCL.
std::string nccl_version();

// Whether NCCL may choose NVLS, whose sums may have different bits each time: with several ranks (`local_size`) on a
// host whose NVLink switch can sum (`has_multicast`), unless the environment disables it.
bool sums_may_differ(int local_size, bool has_multicast, const std::function<const char*(const char*)>& environment);
