"""Disks that fail, fill up, write less than asked or are slow, and clocks that jump."""

import re

from harness import CONFIGS, Case, checkpoints, steps_of

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
            yield Case(wrong or bench.wrong_end(out, config), f"configuration {config}, TORTURE_AT={n} TORTURE_DO={what}")
            bench.remove(out)


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
        elif max(checkpoints(out), default=0) < max(steps_of(out), default=0):
            wrong = f"step {max(steps_of(out))} is lost: there are the checkpoints {checkpoints(out)}"
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
