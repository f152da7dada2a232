/*
Messages between hosts over TCP: direct connections between the first ranks of all hosts.

  make_tcp_network(ranks, {0, 4, 6}, meeting)     on all ranks; ranks other than these three do not connect

These ranks connect to each other in the way in which all ranks connected to rank 0 (meeting.h). Each listens for those
with higher numbers, at a port that the system chooses and at the address by which it is connected to rank 0 (or at the
addresses of --interface), and announces that in a record. To connect, a rank must know the run's secret, if there is
one, and a random key that rank 0 makes for this purpose and sends in a record. So only ranks that rank 0 has accepted
can connect. When all have connected, the listeners are closed.

Both ends know the length of a message. It is divided equally over the connections of a pair, in both directions at
once, and is sent from and received in the caller's memory. Each part is preceded by a label {key, number, bytes}, which
must be the expected one.

If a connection is closed or reset, this rank ends with exit code 3 (watchdog.h), but first waits for the control plane,
which may know the reason. A silent connection is left to the watchdog.
*/
#pragma once
#include <memory>
#include <vector>
#include "llmc/comm/ranks.h"        // HostNetwork
#include "llmc/comm/tcp/meeting.h"  // Meeting

// The number of connections between two hosts. Measured, two against one: the same speed on a line of 1 Gbit/s, where
// more than two are slower, and a third faster on a line that one connection cannot fill (dev/LOG.md).
inline constexpr int kTcpLanes = 2;

class TcpRanks;
std::unique_ptr<HostNetwork> make_tcp_network(TcpRanks& ranks, const std::vector<int>& leaders, Meeting meeting);
