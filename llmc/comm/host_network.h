/*
Traffic between hosts: one primitive, from which HostExchange builds all collectives between hosts (host_exchange.h).

  network.exchange(send, bytes, 4, receive, bytes, 2, look);    to rank 4, from rank 2, both at once; waits for both

The bytes are those of that algorithm and no more: in a reduce-scatter or an all-gather every host sends and receives
(hosts - 1) / hosts of a buffer. `look` is called while waiting, with the rank that is waited for; it ends
the program when there is no point in waiting any longer.

  TcpNetwork        ranks that met at an address (tcp_network.h)
  MpiNetwork        ranks that mpirun started (mpi_network.h)
*/
#pragma once
#include <cstddef>
#include <functional>

class HostNetwork {
public:
    using Look = std::function<void(int awaited)>;
    virtual ~HostNetwork() = default;
    virtual const char* name() const = 0;  // "TCP"
    // At most 2^30 bytes each way; 0 bytes: nothing is sent, and the other rank need not exist.
    virtual void exchange(const void* send, size_t send_bytes, int to, void* receive, size_t receive_bytes, int from,
                          const Look& look) = 0;
};
