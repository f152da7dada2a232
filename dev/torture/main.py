#!/usr/bin/env python3
"""Everything that can happen to a run, done to tiny ones: kills, crashes, damage, bad disks, strangers, bad input.

    python3 dev/torture/main.py --jobs 2             the long form: more than an hour on two cores
    python3 dev/torture/main.py --short              one or two minutes, a step of CI
    python3 dev/torture/main.py --only kills,peers   parts; --list names them
    python3 dev/torture/main.py --seed 7             other cases; the same seed makes the same ones
    python3 dev/torture/main.py --programs build/sanitize    train_gpt and data/tokenize from there: with sanitizers
    python3 dev/torture/main.py --json doc/results/torture.json   the figures go into this file, of which page.py makes
                                                     the table of doc/reliability.md

Each case is one thing done to one run; it is wrong if the run does not end as it must, which is nearly always: the same
weights, moments and losses, bit for bit, as if nothing had happened. What is wrong is printed as it is found, with what
makes it again. Exit code 1 if anything was. Parts and what they hold a run to: the files beside this one.
"""

import argparse
import concurrent.futures
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import threading
import time

import buckets
import crash_states
import damage
import endurance
import faults
import fetches
import inputs
import kills
import peers
from harness import ROOT, Bench, compile_shim

# name, what is done, cases of the short and of the long form, the generator
PARTS = (
    ("kills", "SIGKILL at a random moment", 20, 500, kills.at_random),
    ("buckets", "SIGKILL of a run, its copy to a bucket, often its disk", 20, 100, buckets.at_random),
    ("fetches", "SIGKILL of a run whose shards come and go", 20, 200, fetches.at_random),
    ("calls", "SIGKILL before, inside or after a system call", 30, 700, kills.at_system_calls),
    ("crashes", "states that a crash of the machine may leave", 60, 6000, crash_states.replay),
    ("flips", "one bit of a checkpoint flipped", 20, 10_000, damage.flips),
    ("files", "a file of a checkpoint cut, swapped, replaced, removed", 20, 1000, damage.files),
    ("log", "the log damaged", 5, 200, damage.log),
    ("disks", "a disk that fails, is full, or writes less than asked", 30, 1000, faults.of_disks),
    ("stuck", "nothing old can be removed, or no link made, for good", 12, 300, faults.of_housekeeping),
    ("log_disk", "log.jsonl, and nothing else, cannot be written", 5, 200, faults.of_logs),
    ("clocks", "a clock that jumps, a slow disk", 5, 100, faults.of_clocks),
    ("deaths", "one of two or four ranks killed", 0, 100, peers.deaths),
    ("strangers", "strangers at the port where ranks meet", 20, 500, peers.strangers),
    ("inputs", "models, tokenizers, shards and texts mutated", 60, 5000, inputs.files),
    ("flags", "flags with absurd values", 60, 2000, inputs.flags),
    ("endurance", "memory and open files of a run of 10,000 steps", 0, 1, endurance.long_run),
)


SANITIZERS = {"AddressSanitizer": b"__asan_init", "UBSan": b"__ubsan_handle", "ThreadSanitizer": b"__tsan_init"}

# Ctrl-C: each part ends with the case it is at.
stopped = threading.Event()


def run_part(part, bench, cases, limit_s):
    name, what, _, _, generator = part
    began, tried, wrong = time.monotonic(), 0, 0
    for case in generator(bench):
        tried += 1
        if case.wrong:
            wrong += 1
            print(f"WRONG {name} {tried}: {case.wrong}\n      {case.how}", flush=True)
        if tried >= cases or time.monotonic() - began > limit_s or stopped.is_set():
            break
    seconds = time.monotonic() - began
    print(f"{name:10} {what:56} {tried:6} tried {wrong:4} wrong {seconds:7.0f} s", flush=True)
    return {"part": name, "what": what, "tried": tried, "wrong": wrong, "seconds": round(seconds)}


def facts(programs, seed):
    """Where and with what the figures were made."""
    program = pathlib.Path(programs) / "train_gpt"
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()
    code = program.read_bytes()
    sanitizers = [name for name, call in SANITIZERS.items() if call in code]
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        processors = [line.split(":")[1].strip() for line in lines if "model name" in line]
    kernel = platform.release().split("-")[0]
    return {
        "date": datetime.date.today().isoformat(),
        "commit": version[-1].rstrip(")"),
        "machine": f"{processors[0] if processors else platform.machine()}, {os.cpu_count()} threads, Linux {kernel}",
        "sanitizers": " and ".join(sanitizers),
        "seed": seed,
    }


def write_rows(path, rows):
    """Into a file of rows: one of a part and kind of program takes the place of the earlier one."""
    kept = json.loads(path.read_text()) if path.exists() else []
    new = {(row["part"], row["sanitizers"]) for row in rows}
    rows = [row for row in kept if (row["part"], row["sanitizers"]) not in new] + rows
    lines = ",\n".join(json.dumps(row) for row in rows)
    path.write_text(f"[\n{lines}\n]\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", default="", metavar="PART,PART")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, help="of each part, instead of its own number")
    parser.add_argument("--minutes", type=float, default=0, help="of each part at most")
    parser.add_argument("--jobs", type=int, default=1, help="parts at a time")
    parser.add_argument("--programs", default=ROOT)
    parser.add_argument("--scratch", help="where the runs lie: a disk, or /dev/shm (default: the system's)")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    if args.list:
        for name, what, short, long, _ in PARTS:
            print(f"{name:10} {what:56} {short:4} or {long} cases")
        return
    only = [name for name in args.only.split(",") if name]
    unknown = set(only) - {part[0] for part in PARTS}
    if unknown:
        sys.exit(f"error: --only {','.join(sorted(unknown))}: expected {', '.join(part[0] for part in PARTS)}")
    for name in ("train_gpt", "data/tokenize"):
        if not (pathlib.Path(args.programs) / name).exists():
            sys.exit(f"error: {args.programs}/{name} is missing: run make first")

    def run(part):
        # A part does not depend on the others: alone it does the same.
        seed = f"{args.seed} {part[0]}"
        with tempfile.TemporaryDirectory(dir=scratch) as folder, Bench(args.programs, shim, folder, seed) as bench:
            return run_part(part, bench, cases_of(part), 60 * args.minutes or float("inf"))

    def cases_of(part):
        return args.cases or part[2 if args.short else 3]

    chosen = [part for part in PARTS if (not only or part[0] in only) and cases_of(part)]
    with tempfile.TemporaryDirectory(dir=args.scratch, prefix="torture_") as scratch:
        shim = compile_shim(pathlib.Path(scratch) / "system_calls.so")
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            try:
                results = list(pool.map(run, chosen))
            except BaseException:
                stopped.set()
                pool.shutdown(cancel_futures=True)
                raise
    tried, wrong = (sum(result[key] for result in results) for key in ("tried", "wrong"))
    print(f"{tried} tried, {wrong} wrong")
    if args.json:
        write_rows(args.json, [result | facts(args.programs, args.seed) for result in results])
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
