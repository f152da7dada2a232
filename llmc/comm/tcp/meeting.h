/*
Rendezvous over TCP: how ranks find each other, and which connections are accepted.

  await_ranks(listeners, where, {{1, 2, 3}}, meeting, key, seats);    rank 0: returns when all ranks have connected
  find_listener({rank}, place, meeting, &key)                         any other: returns when rank 0 has accepted it

First all ranks connect to rank 0 (tcp_ranks.h). Later the first ranks of the hosts connect to each other in the same
way, with several connections per pair; each listens for those with higher numbers (tcp_network.h).

A rank retries while a name does not resolve or a host is not up yet, until the timeout. After five seconds it prints on
stderr what it is waiting for.

A new connection, a guest, has ten seconds to authenticate. There are at most `most_guests` guests: when another one
connects, the oldest is dropped, but not within its first tenth of a second. So silent connections cannot keep ranks
out, and ranks that connect all at once do not displace each other.

  rank -> rank 0    Hello: a nonce, its rank, the number of this connection, the number of ranks, and a hash of the
                    run's name with the nonce
  rank 0 -> rank    Challenge: a nonce of rank 0
  rank -> rank 0    Proof: HMAC of both nonces under the secret
  rank 0 -> rank    Welcome, with rank 0's HMAC of both nonces; or, at any point, Refused with the reason

Both ends prove that they know the secret, and neither sends it. Without a secret, processes on one host must belong to
the same user, as the kernel reports it; processes on other hosts are accepted unchecked (doc/security.md). The traffic
afterward is neither encrypted nor signed.

If a rank disconnects before all have arrived, its seat becomes free again. A signal ends the wait. A run that has begun
once may continue without the ranks that do not arrive (may_go_without).
*/
#pragma once
#include <functional>
#include <string>
#include <vector>
#include "llmc/comm/tcp/tcp.h"

struct Meeting {
    int world_size = 1;
    double timeout_s = 600;
    std::string run_key;         // text that only processes of this run have; from a launcher, often guessable
    std::string secret;          // from ANVIL_KEY; "": none
    std::string interface = {};  // the network interface of this host to listen and to connect on; "": any
    std::function<const char*()> stop_signal = [] { return static_cast<const char*>(nullptr); };
    double greeting_s = 10;   // time for a guest to authenticate, and for rank 0 to answer
    size_t most_guests = 64;  // connections that have not authenticated yet
    int listener = 0;         // the rank to which the others connect
    // In a restarted run (--supervise): rank 0 continues with the ranks that have connected in time (may_go_without)
    // and tells all ranks their new numbers, which have no gaps (numbers_anew).
    bool numbers_anew = false, may_go_without = false;
    bool waits_for_port = false;  // of a rank 0 that starts again: another process may have its port for a moment
    bool of_hosts = false;        // the second rendezvous, between the first ranks of hosts; for messages
};

// A connection to a rank: the lane-th of several.
struct Seat {
    int rank = -1, lane = 0;
    Socket socket = Socket();
    std::string from = "";  // "10.0.0.2:41000"
};

// Opens rank 0's listening sockets. Throws an Error if it cannot listen at `master`.
Listeners listen_for_ranks(const Address& master, const Meeting& meeting);

// The ranks that will connect, each `lanes` times.
struct Expected {
    std::vector<int> ranks;
    int lanes = 1;
};
// Adds the accepted connections to `seats`, even if it throws. Returns, with seats sorted, when all expected ranks have
// connected or, with may_go_without, at the timeout. Otherwise a timeout or a signal is an Error. `where` is for
// messages.
void await_ranks(const Listeners& listeners, const std::string& where, const Expected& expected, const Meeting& meeting,
                 uint64_t key, std::vector<Seat>& seats);

// Connects to the listener and authenticates. `place`: possible addresses of the listener; the first one that answers
// correctly is taken. `self`: this rank, and the lane of this connection. Sets `key` to the run's key. Throws an Error
// on a refusal, a timeout or a signal.
Seat find_listener(const Seat& self, const std::vector<Address>& place, const Meeting& meeting, uint64_t* key);

// ANVIL_KEY, or the content of the file that ANVIL_KEY_FILE names. Empty: neither is set. Throws an Error if other
// users can read the file.
std::string given_secret(const std::function<const char*(const char*)>& environment);
