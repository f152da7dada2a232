/*
Ranks that an MPI launcher started. Only this file starts and ends MPI, and never in a run of one process.

MPI only helps ranks find each other: it distributes the address at which rank 0 listens and a random key that rank 0
makes for this run. From then on they are TcpRanks (tcp_ranks.h), which notice a dead rank at once. MPI is not used
again until the end, except for messages between CPU ranks of several hosts.

Why not MPI's own collectives: they send up to twice the bytes of HostComm's, allocate temporary buffers as large as the
data (whose page faults cost more than the sum: 2.8 GB/s for 500 MB at once, 5.3 GB/s in calls of 8 MB), and sum in an
order of their own.

A build without MPI links mpi_absent.cpp instead of mpi_ranks.cpp.
*/
#pragma once
#include <functional>
#include <memory>
#include "llmc/comm/ranks.h"  // Ranks

bool mpi_is_built_in();

// Starts MPI and connects the ranks. Throws an Error if their number is not the expected one (0: any). timeout_s and
// stop_signal are those of join() (launch.h).
std::unique_ptr<Ranks> join_mpi(int expected_world_size, double timeout_s,
                                const std::function<const char*()>& stop_signal);
