/*
Messages between hosts over TCP: the first ranks of the hosts, each connected to each other directly.

  make_tcp_network(ranks, {0, 4, 6}, meeting)     on all ranks; those that are not among the three connect nothing

They meet as all ranks have met before (meeting.h): each listens for those above it, at a port that the system chooses
and at the address by which it is connected to rank 0 (or at those of --interface), and tells it by a record. A guest
must know the run's key, if there is one, and a key that rank 0 makes for this meeting and that goes by records: whoever
has not met rank 0 gets nowhere. When all have come nobody listens any more.

Both ends know how long a message is. It goes in equal parts over the connections of a pair, both directions at once,
from and to the caller's memory. Before each part is a label, which must be the expected one: {key, number, bytes}.

A connection that is closed or reset ends this rank with exit code 3 (watchdog.h), after a moment in which the ranks'
control plane may say better why. Silence is the watchdog's.
*/
#pragma once
#include <memory>
#include <vector>
#include "llmc/comm/host_network.h"  // HostNetwork
#include "llmc/comm/meeting.h"       // Meeting

// Connections between two hosts. Measured: as fast as one on a line of 1 Gbit/s, where more are slower, and a third
// faster than one on a line that one cannot fill (doc/distributed/scaling.md).
inline constexpr int kTcpLanes = 2;

class TcpRanks;
std::unique_ptr<HostNetwork> make_tcp_network(TcpRanks& ranks, const std::vector<int>& leaders, Meeting meeting);
