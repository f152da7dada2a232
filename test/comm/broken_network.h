/*
Breaks the TCP connections between ranks, in tests.

  for (const int fd : data_sockets(port)) lose_packets(fd);     from now on nothing arrives, and the sender is not told
  find_packets(fd);                                             retransmitted packets arrive again
  reset_when_closed(fd);                                        closing sends a reset instead of a FIN

A socket filter that drops every packet looks to TCP like a pulled cable: no data, no acknowledgment, no reset. Unlike a
network namespace it needs no privileges, and it breaks a single connection.
*/
#pragma once
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <vector>
#include "llmc/base/check.h"  // ensure

// This process's IPv4 connections: with of_records those to or from rank 0's port, else all others.
inline std::vector<int> sockets_of(int port, bool of_records) {
    std::vector<int> all;
    for (int fd = 3; fd < 200; fd++) {
        sockaddr_in here = {}, there = {};
        socklen_t length = sizeof(here);
        if (getsockname(fd, reinterpret_cast<sockaddr*>(&here), &length) || here.sin_family != AF_INET) continue;
        length = sizeof(there);
        if (getpeername(fd, reinterpret_cast<sockaddr*>(&there), &length)) continue;
        if ((ntohs(here.sin_port) == port || ntohs(there.sin_port) == port) == of_records) all.push_back(fd);
    }
    return all;
}
// The connections for gradients and weights (TcpNetwork), and those for records (TcpRanks).
inline std::vector<int> data_sockets(int port) { return sockets_of(port, false); }
inline std::vector<int> record_sockets(int port) { return sockets_of(port, true); }
inline std::vector<int> all_sockets(int port) {
    std::vector<int> all = data_sockets(port);
    for (const int fd : record_sockets(port)) all.push_back(fd);
    return all;
}

inline void set_tcp(int fd, int level, int name, int value) {
    ensure(setsockopt(fd, level, name, &value, sizeof(value)) == 0);
}
inline int tcp_option(int fd, int level, int name) {
    int value = -1;
    socklen_t length = sizeof(value);
    ensure(getsockopt(fd, level, name, &value, &length) == 0);
    return value;
}

inline void lose_packets(int fd) {
    sock_filter drop = {BPF_RET | BPF_K, 0, 0, 0};
    const sock_fprog program = {1, &drop};
    ensure(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) == 0);
}
inline void find_packets(int fd) { set_tcp(fd, SOL_SOCKET, SO_DETACH_FILTER, 0); }

inline void reset_when_closed(int fd) {
    const linger reset{1, 0};
    ensure(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)) == 0);
}

inline void reset_now(int fd) {
    const sockaddr nobody = {AF_UNSPEC, {}};
    ensure(connect(fd, &nobody, sizeof(nobody)) == 0);
}

// Shortens TCP keepalive: the kernel probes a second after the last packet, and gives the peer up after three seconds,
// not 60 as in a run (llmc/comm/tcp/tcp.cpp).
inline void ask_soon(int fd) {
    set_tcp(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
    set_tcp(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
    set_tcp(fd, IPPROTO_TCP, TCP_KEEPCNT, 2);
}
