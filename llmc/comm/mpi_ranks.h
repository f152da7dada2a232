/*
Ranks that an MPI launcher started. The one place that starts and ends MPI: a process alone never does.

Rank 0 collects the records and gives all of them to everybody, so that it can tell who is missing. Waits ask again and
again with short sleeps between, so that many ranks on few cores do not take each other's time. Bytes sent: those of
all records to every rank; meant for records of kilobytes.

A build without MPI has mpi_absent.cpp instead of mpi_ranks.cpp.
*/
#pragma once
#include <memory>
#include <mutex>
#include "llmc/comm/ranks.h"  // Ranks

bool mpi_is_built_in();

// Starts MPI. It must come to the expected number of ranks, if that is not 0.
std::unique_ptr<Ranks> join_mpi(int expected_world_size, double timeout_s);

// MPI is started for threads that take turns: hold this around every call.
std::mutex& mpi_mutex();
