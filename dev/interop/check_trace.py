#!/usr/bin/env python3
"""Checks that a trace of --profile has the format of Perfetto and chrome://tracing, and that it is consistent.

    python3 dev/interop/check_trace.py FILE...

- It is a JSON object with traceEvents ("Trace Event Format", Google, 2016): complete events, "ph": "X", have a name, a
  category, numbers ts and dur >= 0, and integers pid and tid; metadata events, "ph": "M", name each pid and tid.
- The slices of a track nest: of two slices, one is within the other or they do not overlap.
- All slices of track 0 are within steps, which do not overlap, and the ops of a step take at most the step's time.

Prints how often each category and name (without trailing numbers) occurs. Exit code 1, with a line for what is wrong, if
any of this does not hold.
"""

import collections
import decimal
import json
import pathlib
import re
import sys


class Wrong(Exception):
    pass


def check(condition, text):
    if not condition:
        raise Wrong(text)


def is_number(value):
    return isinstance(value, (int, decimal.Decimal)) and not isinstance(value, bool)


def check_event(event):
    check(isinstance(event, dict), f"{event}: expected an object")
    kind = event.get("ph")
    check(kind in ("X", "M"), f"{event}: ph: expected X or M")
    check(isinstance(event.get("name"), str) and event["name"], f"{event}: no name")
    for key in ("pid", "tid"):
        check(isinstance(event.get(key), int), f"{event}: {key}: expected an integer")
    check(isinstance(event.get("args", {}), dict), f"{event}: args: expected an object")
    if kind == "M":
        check(event["name"] in ("process_name", "thread_name"), f"{event}: metadata of an unknown kind")
        check(isinstance(event["args"].get("name"), str), f"{event}: args.name: expected a string")
        return
    check(event.get("cat") in ("phase", "op", "kernel", "collective", "copy"), f"{event}: unknown category")
    for key in ("ts", "dur"):
        check(is_number(event.get(key)) and event[key] >= 0, f"{event}: {key}: expected a number, at least 0")


def parents(slices):
    """For each slice of a track the index of the enclosing one, or None. Slices are in the order of their begin."""
    open_, found = [], []
    for i, slice_ in enumerate(slices):
        begin, end = slice_["ts"], slice_["ts"] + slice_["dur"]
        check(i == 0 or begin >= slices[i - 1]["ts"], f"{slice_}: begins before the slice before it")
        while open_ and slices[open_[-1]]["ts"] + slices[open_[-1]]["dur"] <= begin:
            # A slice of zero length counts as within a slice that ends at the same time and is still open.
            if slices[open_[-1]]["dur"] == 0 and slices[open_[-1]]["ts"] == begin and end > begin:
                open_.pop()
                continue
            if end == begin and slices[open_[-1]]["ts"] + slices[open_[-1]]["dur"] == begin:
                break
            open_.pop()
        if open_:
            outer = slices[open_[-1]]
            check(end <= outer["ts"] + outer["dur"], f"{slice_}: ends after what it begins in, {outer}")
        found.append(open_[-1] if open_ else None)
        open_.append(i)
    return found


def check_steps(slices, around):
    """Checks track 0."""
    steps = 0
    in_ops = collections.Counter()  # time in ops, by the step's index
    for i, slice_ in enumerate(slices):
        if around[i] is None:
            check(slice_["cat"] == "phase" and slice_["name"].startswith("step "), f"{slice_}: in no step")
            steps += 1
            continue
        if slice_["cat"] == "phase" or slices[around[i]]["cat"] != "phase":
            continue  # an op that is not within another op
        step = i
        while around[step] is not None:
            step = around[step]
        in_ops[step] += slice_["dur"]
    check(steps > 0, "there is no step")
    for step, total in in_ops.items():
        check(total <= slices[step]["dur"], f"{slices[step]['name']}: its ops take {total} us, longer than it")
    check(len(in_ops) == steps, "a step has no op")


def check_trace(trace):
    check(isinstance(trace, dict) and isinstance(trace.get("traceEvents"), list), "expected an object with traceEvents")
    events = trace["traceEvents"]
    for event in events:
        check_event(event)
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    tracks = collections.defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    check(set(tracks) == named and {pid for pid, _ in tracks} == processes, "tracks and their names differ")
    for (_, tid), slices in tracks.items():
        around = parents(slices)
        if tid == 0:
            check_steps(slices, around)
    return collections.Counter(
        (e["cat"], re.sub(r" \d.*", "", e["name"])) for slices in tracks.values() for e in slices
    )


def main():
    for path in sys.argv[1:]:
        try:
            # Exact decimals, because floating-point sums of times would not nest.
            counts = check_trace(json.loads(pathlib.Path(path).read_text(encoding="utf-8"), parse_float=decimal.Decimal))
        except (OSError, ValueError, Wrong) as error:
            sys.exit(f"{path}: {error}")
        for (category, name), count in sorted(counts.items()):
            print(f"{category} {name} {count}")


if __name__ == "__main__":
    main()
