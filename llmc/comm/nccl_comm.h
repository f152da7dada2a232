/*
Collectives between GPUs by NVIDIA's NCCL, one process a GPU: over NVLink, PCIe and networks.

  auto comm = make_nccl_comm(ranks, cuda, Order::overlapped, timeout_s);       collective; throws if NCCL cannot

- Reproducible: NCCL adds in an order of its own. With the same GPUs, wires and version its rings and trees give the
  same bits every time; NVLS, sums inside NVLink switches, does not promise that. The variable NCCL_ALGO=Ring keeps it
  to rings. bf16 is rounded at every hop.
- Waiting: no call of NCCL blocks: each is asked after until it is done, for `timeout_s` at most (0: for ever). A thread
  looks for errors of other ranks and for collectives that hang, and has the watchdog of the ranks end the process
  (watchdog.h), with the collective's name.
- Memory: allocate() takes memory that NCCL can map into other GPUs and network cards and registers it, so that nothing
  is copied through buffers of its own. Where the system refuses that: ordinary memory, with a line. It must be released
  before the Comm is gone.

A build without NCCL links nccl_absent.cpp.
*/
#pragma once
#include <memory>
#include <string>
#include "llmc/comm/comm.h"         // Comm, Order
#include "llmc/comm/ranks.h"        // Ranks
#include "llmc/cuda/cuda_device.h"  // Cuda

std::unique_ptr<Comm<Cuda>> make_nccl_comm(Ranks& ranks, Cuda& cuda, Order order, double timeout_s);

// Of the library that is linked, "2.28.9", which must be the same on all ranks; "" without NCCL.
std::string nccl_version();
