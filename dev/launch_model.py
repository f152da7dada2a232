#!/usr/bin/env python3
"""A model of how ranks meet, exchange a record and part (llmc/comm/meeting.cpp, tcp_ranks.cpp), in all interleavings.

    python3 dev/launch_model.py            three ranks, up to two failures: some seconds
    python3 dev/launch_model.py --without timer     without timeouts; or: eof, tell, look

Rank 0 starts at any moment and listens; ranks 1 and 2 call, greet, exchange one record and say goodbye. At any moment
up to two ranks die, hang (stopped, or cut off), or end with an error of their own. Connections are queues in order; a
process that ends with unread data may take with it what it has sent (RST). With
up to one failure rank 0 may be so slow that a greeting ends unanswered; the rank calls again. Time: what is under way arrives before a timeout is over.

In every state from which nothing follows:
  1. every rank that has not failed has ended: nobody waits for ever;
  2. without a failure, all have ended well;
  3. who was stopped names a rank that failed, perhaps among others, or one that was stopped and names another, and so
     on to one that failed. Or a record did not come in time, which names nobody: only if a rank hangs.
  4. if one rank failed, without hanging, and no last word was lost, all who were stopped name that rank.
And no state comes again, so that every run ends. It is the protocol as understood, and not the code.
"""
import argparse
import signal
import sys
from collections import Counter, namedtuple

# phase: absent, call, hello, proof, in, wait, last, and of rank 0 absent, meet, gather, last; at the end ok, died, hung,
# hung_meet (it listens, and accepts nobody), err (an error of its own), stopped (by another's failure).
# conns: of ranks 1 and 2, every connection so far: (to rank 0, to the rank, what it is to rank 0).
# named: whom each that was stopped has named. got: whose record rank 0 has. ended: r has said goodbye to rank 0, or
# -r: rank 0 to r. greeted: how often each has called. lost: the end of a process took words of its own with it.
State = namedtuple("State", "phase conns named got ended greeted failures lost")
OVER = ("ok", "died", "hung", "hung_meet", "err", "stopped")
FAILED = ("died", "hung", "hung_meet", "err")
NOBODY = frozenset()
MOST_GREETINGS = 2
START = State(("absent", "call", "call"), ((), ()), (None, None, None), frozenset(), frozenset(), (0, 0), 0, False)


class Model:
    def __init__(self, without="", failures=2):
        self.without, self.most_failures = without, failures
        self.is_slow = failures < 2  # else there is more to look at than is worth it

    # ---- pieces of states

    @staticmethod
    def put(items, i, item):
        return items[:i] + (item,) + items[i + 1:]

    def conn(self, s, r, at, conn):
        return s._replace(conns=self.put(s.conns, r - 1, self.put(s.conns[r - 1], at, conn)))

    def phase(self, s, r, phase):
        return s._replace(phase=self.put(s.phase, r, phase))

    def send(self, s, r, word, at=-1, up=True):
        at %= len(s.conns[r - 1])
        to_first, to_rank, stage = s.conns[r - 1][at]
        if up and stage != "gone":  # else nobody reads it
            to_first += (word,)
        if not up:
            to_rank += (word,)
        return self.conn(s, r, at, (to_first, to_rank, stage))

    def hang_up(self, s, r, at, first):
        """Rank 0, or rank r, closes a connection. What it has not read may undo what the other has not read."""
        to_first, to_rank, stage = s.conns[r - 1][at]
        if first:
            ends = [to_rank + ("eof",)]
            if any(w != "eof" for w in to_first) and to_rank:
                ends.append(("eof",))
            return [self.conn(s, r, at, ((), end, "gone"))._replace(lost=s.lost or i > 0) for i, end in enumerate(ends)]
        if stage == "gone":
            return [self.conn(s, r, at, ((), (), "gone"))]
        ends = [to_first + ("eof",)]
        if any(w != "eof" for w in to_rank) and to_first:
            ends.append(("eof",))
        return [self.conn(s, r, at, (end, (), stage))._replace(lost=s.lost or i > 0) for i, end in enumerate(ends)]

    def leave(self, s, rank, phase, word=None, named=None):
        """A process ends: it says a last word to whoever it is connected with, and its sockets are closed."""
        states = [s]
        if rank > 0:
            if s.phase[rank] != "call":
                if word and s.phase[rank] not in ("hello", "proof"):
                    states = [self.send(s, rank, word)]
                states = [n for one in states for n in self.hang_up(one, rank, len(s.conns[rank - 1]) - 1, False)]
        else:
            for r in (1, 2):
                for at, (_, _, stage) in enumerate(s.conns[r - 1]):
                    if stage == "gone":
                        continue
                    if word and stage == "seat":
                        states = [self.send(one, r, word, at, up=False) for one in states]
                    states = [n for one in states for n in self.hang_up(one, r, at, True)]
        return [self.phase(one, rank, phase)._replace(named=self.put(one.named, rank, named)) for one in states]

    def stop(self, s, rank, named):
        """Given up because of others: all hear why."""
        named = frozenset(named)
        return self.leave(s, rank, "stopped", None if self.without == "tell" else ("failed", named), named)

    # ---- what can happen next

    def failures(self, s):
        if s.failures == self.most_failures:
            return
        after = s._replace(failures=s.failures + 1)
        for rank, phase in enumerate(s.phase):
            if phase in OVER:
                continue
            yield from self.leave(after, rank, "died")
            yield self.phase(after, rank, "hung_meet" if phase == "meet" else "hung")
            if rank > 0 or phase != "absent":
                yield from self.leave(after, rank, "err", ("failed", None))

    def of_rank(self, s, r):
        """What rank 1 or 2 does without a clock."""
        phase = s.phase[r]
        if phase == "call":
            if s.phase[0] in ("meet", "hung_meet") and s.greeted[r - 1] < MOST_GREETINGS:
                conns = tuple(c for c in s.conns[r - 1] if c[2] != "gone") + ((("hello",), (), "new"),)
                yield self.phase(s, r, "hello")._replace(
                    conns=self.put(s.conns, r - 1, conns), greeted=self.put(s.greeted, r - 1, s.greeted[r - 1] + 1))
            return
        if self.is_slow and phase in ("hello", "proof") and s.greeted[r - 1] < MOST_GREETINGS and not s.conns[r - 1][-1][1]:
            for one in self.hang_up(s, r, len(s.conns[r - 1]) - 1, False):
                yield self.phase(one, r, "call")
        if phase == "in":
            yield self.phase(self.send(s, r, "record"), r, "wait")
        if phase == "last":
            yield from self.leave(s, r, "ok", "goodbye")
        at = len(s.conns[r - 1]) - 1
        to_first, to_rank, stage = s.conns[r - 1][at]
        if not to_rank:
            return
        word, rest = to_rank[0], self.conn(s, r, at, (to_first, to_rank[1:], stage))
        if phase in ("hello", "proof"):
            if word == "challenge":
                yield self.phase(self.send(rest, r, "proof"), r, "proof")
            elif word == "welcome":
                yield self.phase(rest, r, "in")
            elif word == "refused":
                yield from self.leave(rest, r, "stopped", named=frozenset({0}))
            else:  # rank 0 has hung up: call again
                for one in self.hang_up(rest, r, at, False):
                    yield self.phase(one, r, "call")
        elif word == "answer":
            yield self.phase(rest, r, "last")
        elif word == "goodbye":
            if phase == "wait":
                yield from self.stop(rest, r, {0})
            else:
                yield rest._replace(ended=s.ended | {-r})
        elif word == "eof":
            if -r in s.ended:
                yield rest
            elif self.without != "eof":
                yield from self.stop(rest, r, {0})
        else:
            yield from self.stop(rest, r, {0} if word[1] is None else word[1])

    def of_first(self, s):
        """What rank 0 does without a clock."""
        phase = s.phase[0]
        if phase == "absent":
            yield self.phase(s, 0, "meet")
        elif phase == "meet":
            if all(any(c[2] == "seat" for c in s.conns[r - 1]) for r in (1, 2)):
                states = [self.phase(s, 0, "gather")]
                for r in (1, 2):  # guests are sent away
                    for at, c in enumerate(s.conns[r - 1]):
                        if c[2] in ("new", "asked"):
                            states = [n for one in states for n in self.hang_up(one, r, at, True)]
                yield from states
        elif phase == "gather" and s.got == {1, 2}:
            for r in (1, 2):
                s = self.send(s, r, "answer", self.seat(s, r), up=False)
            yield self.phase(s, 0, "last")
        elif phase == "last":
            yield from self.leave(s, 0, "ok", "goodbye")
        for r in (1, 2):
            for at, (to_first, to_rank, stage) in enumerate(s.conns[r - 1]):
                if stage == "gone" or not to_first:
                    continue
                word, rest = to_first[0], self.conn(s, r, at, (to_first[1:], to_rank, stage))
                if phase == "meet":
                    if stage == "seat":  # only looked at, whether it is still there
                        if "eof" in to_first:
                            yield from self.hang_up(s, r, at, True)
                    elif word == "hello":
                        asked = self.conn(rest, r, at, (to_first[1:], to_rank, "asked"))
                        yield self.send(asked, r, "challenge", at, up=False)
                    elif word == "proof":
                        if "eof" in to_first and self.without != "look":
                            yield from self.hang_up(s, r, at, True)
                            continue
                        others = [c for i, c in enumerate(s.conns[r - 1]) if i != at and c[2] == "seat"]
                        if any("eof" in c[0] for c in others):
                            continue  # that seat is freed first
                        if others:
                            yield from self.hang_up(self.send(rest, r, "refused", at, up=False), r, at, True)
                        else:
                            seat = self.conn(rest, r, at, (to_first[1:], to_rank, "seat"))
                            yield self.send(seat, r, "welcome", at, up=False)
                    else:
                        yield from self.hang_up(rest, r, at, True)
                elif stage == "seat":
                    if word == "record":
                        yield rest._replace(got=rest.got | {r})
                    elif word == "goodbye":
                        yield rest._replace(ended=rest.ended | {r})
                    elif word == "eof":
                        if r in s.ended:
                            yield rest
                        elif self.without != "eof":
                            yield from self.stop(rest, 0, {r})
                    else:
                        yield from self.stop(rest, 0, {r} if word[1] is None else word[1])

    @staticmethod
    def seat(s, r):
        return next(at for at, c in enumerate(s.conns[r - 1]) if c[2] == "seat")

    def greetings_over(self, s):
        for r in (1, 2):
            if s.phase[r] in ("hello", "proof"):
                for one in self.hang_up(s, r, len(s.conns[r - 1]) - 1, False):
                    yield self.phase(one, r, "call")

    def timeouts(self, s):
        if s.phase[0] == "meet":
            missing = [r for r in (1, 2) if all(c[2] != "seat" for c in s.conns[r - 1])]
            yield from self.stop(s, 0, missing)
        elif s.phase[0] == "gather":
            yield from self.stop(s, 0, {1, 2} - s.got)
        for r in (1, 2):
            if s.phase[r] == "call":
                yield from self.stop(s, r, {0})
            elif s.phase[r] == "wait" and s.phase[0] != "meet":  # rank 0 waits for longer already
                yield from self.stop(s, r, NOBODY)

    def next(self, s):
        states = [] if s.phase[0] in OVER else list(self.of_first(s))
        for r in (1, 2):
            if s.phase[r] not in OVER:
                states += self.of_rank(s, r)
        if not states and self.without != "timer":
            states = list(self.greetings_over(s)) or list(self.timeouts(s))
        return set(states), set(self.failures(s))


def wrong_at_end(s):
    """What is wrong with a state from which nothing follows, or None."""
    waiting = [r for r, phase in enumerate(s.phase) if phase not in OVER]
    if waiting:
        return "rank %d waits for ever" % waiting[0]
    if s.failures == 0 and s.phase != ("ok", "ok", "ok"):
        return "nobody has failed, and not all have ended well"
    hangs = any(phase.startswith("hung") for phase in s.phase)
    for r, phase in enumerate(s.phase):
        if phase != "stopped":
            continue
        seen, to_see = set(), {r}
        while to_see - seen:
            at = min(to_see - seen)
            seen.add(at)
            if s.phase[at] == "stopped":
                to_see |= s.named[at]
        timed_out = any(s.phase[at] == "stopped" and s.named[at] == NOBODY for at in seen)
        if timed_out and not hangs:
            return "rank %d names nobody, and no rank hangs" % r
        if not timed_out and all(s.phase[at] not in FAILED for at in seen):
            return "rank %d names rank %s, and none of them leads to one that has failed" % (r, sorted(s.named[r]))
        if s.failures == 1 and not s.lost and not hangs and all(s.phase[at] not in FAILED for at in s.named[r]):
            return "rank %d does not name the only rank that has failed" % r
    return None


def explore(model):
    """Counts of states and ends, and what was wrong with how many of them, each with one way there."""
    before, order, stack = {START: None}, [], [START]
    following, ends, wrong = {}, 0, Counter()
    example = {}
    while stack:
        s = stack.pop()
        order.append(s)
        on, failing = model.next(s)
        following[s] = on | failing
        if not on:
            ends += 1
            why = wrong_at_end(s)
            if why:
                wrong[why] += 1
                example.setdefault(why, s)
        for n in following[s]:
            if n not in before:
                before[n] = s
                stack.append(n)
    # Every run ends: states can be taken away one by one, each when nothing leads to it any more.
    into = Counter(n for s in order for n in following[s])
    free, gone = [START], 0
    while free:
        s = free.pop()
        gone += 1
        for n in following[s]:
            into[n] -= 1
            if into[n] == 0:
                free.append(n)
    if gone < len(order):
        wrong["a run that never ends"] += len(order) - gone
        example.setdefault("a run that never ends", START)
    return len(order), ends, wrong, example, before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--failures", type=int, default=2, help="at most so many (2)")
    parser.add_argument("--without", choices=("timer", "eof", "tell", "look"), default="", help="a mechanism to leave out")
    args = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # | head
    states, ends, wrong, example, before = explore(Model(args.without, args.failures))
    print("%d states, %d ends, %d wrong" % (states, ends, sum(wrong.values())))
    for why in sorted(wrong):
        print("\n%s (%d):" % (why, wrong[why]))
        way, s = [], example[why]
        while s is not None:
            way.append(s)
            s = before[s]
        for s in reversed(way):
            print("   ", *s.phase, *[" ".join("%s|%s|%s" % c for c in conns) for conns in s.conns], sep="  ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
