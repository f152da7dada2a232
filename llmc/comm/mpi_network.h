/*
What crosses between hosts: one primitive, of which HostComm makes all its collectives.

  network.exchange(send, bytes, 4, receive, bytes, 2, look);    to rank 4, from rank 2, both at once; waits for both

The bytes are those of the algorithm in host_comm.h and no more: in a reduce-scatter or an all-gather every host sends
and receives (hosts - 1) / hosts of a buffer. MPI's own collectives send up to twice that, hold temporary buffers as
large as the data (their page faults cost more than the sum: 500 MB at 2.8 GB/s, in calls of 8 MB 5.3 GB/s), and add up
in an order of their own. `look` is called while waiting; it ends the program when there is no sense in waiting on.
*/
#pragma once
#include <cstddef>
#include <functional>
#include <memory>

class HostNetwork {
public:
    virtual ~HostNetwork() = default;
    // At most 2^30 bytes each way; 0 bytes: nothing, and nobody need be there.
    virtual void exchange(const void* send, size_t send_bytes, int to, void* receive, size_t receive_bytes, int from,
                          const std::function<void()>& look) = 0;
};

// Over MPI_COMM_WORLD, which must be initialized (mpi_ranks.h). Without MPI in the build, or when it was not what
// started the ranks: an Error that says so.
std::unique_ptr<HostNetwork> make_mpi_network();
