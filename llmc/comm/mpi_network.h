/*
Messages between hosts over MPI_COMM_WORLD, which must be initialized (mpi_ranks.h).

MPI's own collectives send up to twice the bytes of HostComm's, hold temporary buffers as large as the data (their page
faults cost more than the sum: 500 MB at 2.8 GB/s, in calls of 8 MB 5.3 GB/s), and add up in an order of their own.
*/
#pragma once
#include <memory>
#include "llmc/comm/host_network.h"  // HostNetwork

std::unique_ptr<HostNetwork> make_mpi_network();
