"""Disks that fail, fill up, write less than asked or are slow, and clocks that jump."""

import re

from harness import CONFIGS, Case, checkpoints, difference_of_ends, steps_of

# What a user can do something about is exit code 2; a failed disk must not look like our bug (1) or a crash.
REFUSED = 2


def of_disks(bench):
    """At each call that changes a file, in a random order: the run ends with a message, and continues once the disk is healthy."""
    for config in CONFIGS:
        calls = bench.count_calls(config)
        points = [(n, what) for n in range(1, calls + 1) for what in ("eio", "enospc", "short")]
        bench.random.shuffle(points)
        for n, what in points:
            out = bench.fresh()
            finished = bench.run(bench.flags(out, config), torture={"DIR": out, "AT": n, "DO": what})
            wrong = ""
            if finished.code not in (0, REFUSED) or (what == "short" and finished.code != 0):
                wrong = f"exit code {finished.code}: {finished.last_words()}"
            elif finished.code == REFUSED and not re.search(r"error: .*(Input/output error|No space left)", finished.err):
                wrong = f"no reason given: {finished.last_words()}"
            elif what == "eio":  # one call failed and all later ones work, so the newest step can be saved
                wrong = lost_steps(out)
            yield Case(wrong or bench.wrong_end(out, config), f"configuration {config}, TORTURE_AT={n} TORTURE_DO={what}")
            bench.remove(out)


def of_housekeeping(bench):
    """From some call on nothing old can be removed, or no link can be made, and that stays so: the run says it once of
    each kind and ends with its last step saved, so does its resume, and once it can be it is cleaned up."""
    calls = {config: bench.count_calls(config) for config in CONFIGS}
    while True:
        what = bench.random.choice(("eacces", "enotempty", "eperm"))
        config = "best" if what == "eperm" else bench.random.choice(list(CONFIGS))
        out, at = bench.fresh(), bench.random.randrange(1, calls[config])
        wrong = ""
        for changes, first in (({}, at), ({"resume": "auto"}, 1)):
            finished = bench.run(
                bench.flags(out, config, **changes), torture={"DIR": out, "AT": first, "DO": what}
            )
            warnings = [line for line in finished.err.splitlines() if line.startswith("warning: cannot ")]
            if finished.code != 0:
                wrong = wrong or f"exit code {finished.code}: {finished.last_words()}"
            elif len(warnings) > 2 or len(warnings) < len(finished.err.splitlines()):
                wrong = wrong or f"more was said: {finished.err}"
            else:
                wrong = wrong or difference_of_ends(out, bench.straight(config))
        yield Case(wrong or bench.wrong_end(out, config), f"configuration {config}, TORTURE_AT={at} TORTURE_DO={what}")
        bench.remove(out)


def lost_steps(out):
    """"" unless the log has a step that is newer than every checkpoint."""
    newest = max(steps_of(out), default=0)
    saved = checkpoints(out) if out.exists() else []
    return f"step {newest} is lost: there are the checkpoints {saved}" if max(saved, default=0) < newest else ""


def of_logs(bench):
    """Only log.jsonl cannot be written any more: the step that could not be told of is in the last checkpoint."""
    while True:
        config = bench.random.choice([name for name, changes in CONFIGS.items() if "virtual-ranks" not in changes])
        out, at = bench.fresh(), bench.random.randrange(2, 20)
        finished = bench.run(
            bench.flags(out, config), torture={"DIR": out / "log.jsonl", "AT": at, "DO": "enospc"}
        )
        wrong = ""
        if finished.code != REFUSED or "error: cannot write" not in finished.err or "warning" in finished.err:
            wrong = f"exit code {finished.code}: {finished.err}"
        else:
            wrong = lost_steps(out)
        yield Case(wrong or bench.wrong_end(out, config), f"configuration {config}, TORTURE_AT={at} of log.jsonl")
        bench.remove(out)


def of_clocks(bench):
    """The wall clock jumps by decades between any two looks at it, forward and back; a disk takes its time."""
    while True:
        config, seed = bench.random.choice(list(CONFIGS)), bench.random.randrange(1 << 30)
        out = bench.fresh()
        how = {"DIR": out, "CLOCK": seed} if bench.random.random() < 0.7 else {"DIR": out, "SLOW_US": 300}
        finished = bench.run(bench.flags(out, config), torture=how)
        wrong = bench.wrong_end(out, config, finished)
        yield Case(wrong, f"configuration {config}, {how}")
        bench.remove(out)
