/*
What can happen to the connections of a process: to those between ranks over TCP, in tests.

  for (const int fd : data_sockets(port)) lose_packets(fd);     from here on nothing arrives, and the sender hears
nothing find_packets(fd);                                             what is sent again arrives reset_when_closed(fd);
no word of farewell: as if the host were gone

A socket filter that drops every packet is what a cable that was pulled is to TCP: no data, no acknowledgment, no reset.
Unlike a network namespace it needs no rights, and it breaks the one connection that is meant.
*/
#pragma once
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <vector>
#include "llmc/base/check.h"  // ensure

// The connections over IPv4 of this process, with another or to and from rank 0's port.
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
// What gradients and weights go over (TcpNetwork), and what records do (TcpRanks).
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

// The kernel asks sooner whether the other end is there: a second after the last packet, three seconds until it is
// given up, for the 60 of a run (llmc/comm/tcp.cpp).
inline void ask_soon(int fd) {
    set_tcp(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
    set_tcp(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
    set_tcp(fd, IPPROTO_TCP, TCP_KEEPCNT, 2);
}
