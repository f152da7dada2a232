/*
Messages between hosts over TCP: the first ranks of the hosts, each connected to each other directly.

  make_tcp_network(ranks, {0, 4, 6}, meeting)     on all ranks; those that are not among the three connect nothing

They meet as all ranks have met before (meeting.h): each listens for those above it, at a port that the system chooses
and at the address by which it is connected to rank 0, and tells it by a record. A guest must know the run's key, if
there is one, and a key that rank 0 makes for this meeting and that goes by records: whoever has not met rank 0 gets
nowhere. When all have come nobody listens any more.

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

inline constexpr int kTcpLanes = 4;  // connections between two hosts

class TcpRanks;
std::unique_ptr<HostNetwork> make_tcp_network(TcpRanks& ranks, const std::vector<int>& leaders, Meeting meeting);
