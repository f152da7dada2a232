/*
Traffic between hosts: one primitive, from which HostExchange builds all collectives between hosts (host_exchange.h).

  network.exchange(send, bytes, 4, receive, bytes, 2, look);    sends to rank 4 and receives from rank 2 at the same
                                                                time; waits for both

`look` is called repeatedly while waiting, with the awaited rank. It ends the program when waiting is pointless.

  TcpNetwork        for ranks that met at an address (tcp_network.h)
  MpiNetwork        for ranks that mpirun started (mpi_ranks.cpp)
*/
#pragma once
#include <cstddef>
#include <functional>

class HostNetwork {
public:
    using Look = std::function<void(int awaited)>;
    virtual ~HostNetwork() = default;
    virtual const char* name() const = 0;  // "TCP"
    // At most 2^30 bytes each way. 0 bytes: nothing is sent, and the other rank need not exist. Throws an Error if the
    // connection is lost.
    virtual void exchange(const void* send, size_t send_bytes, int to, void* receive, size_t receive_bytes, int from,
                          const Look& look) = 0;
};
