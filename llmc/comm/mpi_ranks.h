/*
Ranks that an MPI launcher started. The one place that starts and ends MPI: a process alone never does.

MPI only brings them together: it hands out where rank 0 listens and a key that rank 0 has made for this run, both too
short-lived to be known to anybody else. From then on they are TcpRanks (tcp_ranks.h), who notice a death at once, and
MPI is left alone until it is ended, but for what CPU ranks of several hosts exchange (mpi_network.h).

A build without MPI has mpi_absent.cpp instead of mpi_ranks.cpp.
*/
#pragma once
#include <functional>
#include <memory>
#include "llmc/comm/ranks.h"  // Ranks

bool mpi_is_built_in();

// Starts MPI. It must come to the expected number of ranks, if that is not 0. stop_signal: as join's (launch.h).
std::unique_ptr<Ranks> join_mpi(int expected_world_size, double timeout_s,
                                const std::function<const char*()>& stop_signal);
