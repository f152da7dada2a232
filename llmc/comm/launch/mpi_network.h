/*
Messages between hosts over MPI_COMM_WORLD, which must be initialized (mpi_ranks.h).

Why not MPI's own collectives: they send up to twice the bytes of HostComm's, allocate temporary buffers as large as the
data (whose page faults cost more than the sum: 2.8 GB/s for 500 MB at once, 5.3 GB/s in calls of 8 MB), and sum in an
order of their own.
*/
#pragma once
#include <memory>
#include "llmc/comm/host_network.h"  // HostNetwork

std::unique_ptr<HostNetwork> make_mpi_network();
