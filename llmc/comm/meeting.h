/*
How ranks find each other over TCP, and who is let in.

  await_ranks(listeners, where, {{1, 2, 3}}, meeting, key, seats);    rank 0: returns when all have come
  find_listener({rank}, place, meeting, &key)                         any other: returns when rank 0 has let it in

So ranks meet (tcp_ranks.h), and so the first ranks of the hosts connect to each other after that, with several
connections for each pair (tcp_network.h): then each listens for those above it.

Names that nobody knows yet and hosts that are not up yet are waited for, as long as for ranks; after five seconds a
line on stderr says for what.

Whoever connects has ten seconds to say who it is, and those who have not are few: the oldest goes when another comes,
but not in its first tenth of a second. So nobody who says nothing keeps ranks out, and ranks that come all at once do
not drive out each other.

  rank -> rank 0    Hello: a nonce, its rank, which of its connections, how many ranks there are, a hash of the run's
                    name with the nonce
  rank 0 -> rank    Challenge: a nonce of its own
  rank -> rank 0    Proof: HMAC of both under the secret
  rank 0 -> rank    Welcome, with an HMAC of both of its own; or at any point Refused, and why

Both ends prove that they know the secret, and neither sends it. Without a secret the two must be of one user where they
are on one host, which the kernel tells, and from other hosts anybody is let in: doc/security.md. What follows is
neither encrypted nor signed.

A rank that has come and is gone before all are there frees its seat for another. A signal ends the wait. A run that has
begun once may go on without those who do not come.
*/
#pragma once
#include <functional>
#include <string>
#include <vector>
#include "llmc/comm/tcp.h"

struct Meeting {
    int world_size = 1;
    double timeout_s = 600;
    std::string run_key;         // text that only processes of this run have; a launcher's, often guessable
    std::string secret;          // of ANVIL_KEY; "": none
    std::string interface = {};  // which of this host's networks to listen in, and to connect by; "": any
    std::function<const char*()> stop_signal = [] { return static_cast<const char*>(nullptr); };
    double greeting_s = 10;   // for a guest to say who it is, and for rank 0 to answer
    size_t most_guests = 64;  // who have not said it yet
    int listener = 0;         // the rank that the others come to
    // Of a run that was started again (--supervise): rank 0 goes on with those who have come in time, and tells all
    // ranks their numbers, which then have no gaps.
    bool numbers_anew = false, may_go_without = false;
    bool of_hosts = false;  // it is those of several hosts that connect, after all ranks have met; for messages
};

struct Seat {
    int rank = -1, lane = 0;
    Socket socket = Socket();
    std::string from = "";  // "10.0.0.2:41000"
};

// Where rank 0 listens for the others.
Listeners listen_for_ranks(const Address& master, const Meeting& meeting);

// These ranks, each with so many connections.
struct Expected {
    std::vector<int> ranks;
    int lanes = 1;
};
// Adds to `seats` who has come, also if it throws; in order, when all have, or, with may_go_without, the time is over.
// `where`: for messages.
void await_ranks(const Listeners& listeners, const std::string& where, const Expected& expected, const Meeting& meeting,
                 uint64_t key, std::vector<Seat>& seats);

// `place`: the addresses that the listener may be at, of which the first that answers as it should is taken. `self`:
// which rank this is, and which of its connections.
Seat find_listener(const Seat& self, const std::vector<Address>& place, const Meeting& meeting, uint64_t* key);

// ANVIL_KEY, or what is in the file that ANVIL_KEY_FILE names, which nobody else may be able to read; "": neither is
// set.
std::string given_secret(const std::function<const char*(const char*)>& environment);
