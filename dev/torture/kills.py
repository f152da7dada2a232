"""SIGKILL: at random moments, and before, inside and after each system call that changes a file."""

import signal
import subprocess
import time

from harness import CONFIGS, Case, checkpoints, died


def at_random(bench):
    """Kills one run again and again, and resumes it each time; when it comes to its end that is compared."""
    while True:
        config = bench.random.choice(list(CONFIGS))
        began = time.monotonic()
        bench.straight(config)
        out, longest_s = bench.fresh(), max(0.05, (time.monotonic() - began) / 3)
        newest = -1
        while True:
            process = bench.start(bench.flags(out, config, resume="auto"))
            moment_s = bench.random.uniform(0, longest_s)
            try:
                process.wait(moment_s)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
            _, err = process.communicate()
            how = f"--configuration {config}, killed after {moment_s:.4f} s"
            if process.returncode == 0:
                yield Case(bench.wrong_end(out, config), how)
                break
            wrong = ""
            if process.returncode != -signal.SIGKILL or "passed over" in err:
                wrong = f"exit code {process.returncode}: {err.strip()[:300]}"
            elif out.exists() and max(checkpoints(out), default=-1) < newest:
                wrong = f"checkpoint {newest} is lost"
            newest = max([newest, *(checkpoints(out) if out.exists() else [])])
            longest_s *= 1.05
            yield Case(wrong, how)
        bench.remove(out)


def at_system_calls(bench):
    """All calls of a whole run of each configuration in turn, in a random order; some kills hit the recovery, too."""
    for config in CONFIGS:
        calls = bench.count_calls(config)
        points = [(n, what) for n in range(1, calls + 1) for what in ("before", "inside", "after")]
        bench.random.shuffle(points)
        for n, what in points:
            out = bench.fresh()
            how = f"configuration {config}, TORTURE_AT={n} TORTURE_DO={what}"
            counted = out.with_suffix(".count")
            first = bench.run(bench.flags(out, config), torture={"DIR": out, "AT": n, "DO": what, "COUNT": counted})
            if first.code == 0 and int(counted.read_text()) < n:  # this run had a few calls less than the counted one
                bench.remove(out)
                continue
            wrong = "" if died(first) else f"not killed: exit code {first.code}, {first.last_words()}"
            if not wrong and bench.random.random() < 0.3:
                again = bench.random.randrange(1, calls)
                how += f", the recovery at {again}"
                bench.run(bench.flags(out, config, resume="auto"), torture={"DIR": out, "AT": again, "DO": what})
            yield Case(wrong or bench.wrong_end(out, config), how)
            bench.remove(out)
