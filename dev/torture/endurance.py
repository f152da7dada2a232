"""A long run takes no more memory and no more files at its end than near its beginning."""

import os
import subprocess
import time

from harness import Case, checkpoints

MOST_GROWTH_KB = 512


def long_run(bench, steps=10_000):
    """Samples once a run's caches are warm, at a fifth of its steps, and again before its end."""
    out = bench.fresh()
    often = {"checkpoint_every": 50, "val_every": 100, "sample_every": 100, "sample_tokens": 5}
    process = bench.start(bench.flags(out, "muon", steps=steps, **often), stdout=subprocess.DEVNULL)
    seen = []
    while process.poll() is None:
        step = checkpoints(out)[-1] if out.exists() and checkpoints(out) else 0
        try:
            with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
                kb = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
            seen.append((step, kb, len(os.listdir(f"/proc/{process.pid}/fd"))))
        except (OSError, StopIteration):
            pass
        time.sleep(0.1)
    warm = [sample for sample in seen if sample[0] >= steps // 5]
    if process.returncode or len(warm) < 10:
        yield Case(f"exit code {process.returncode}, {len(warm)} looks", f"{steps} steps")
        return
    half = len(warm) // 2
    early, late = (max(kb for _, kb, _ in part) for part in (warm[:half], warm[half:]))
    early_files, late_files = (max(files for _, _, files in part) for part in (warm[:half], warm[half:]))
    wrong = ""
    if late > early + MOST_GROWTH_KB:
        wrong = f"{early} kB of memory became {late}"
    elif late_files > early_files:
        wrong = f"{early_files} open files became {late_files}"
    yield Case(wrong, f"{steps} steps: {early} and then {late} kB, {early_files} and then {late_files} open files")
    bench.remove(out)
