"""What scripts/gpu_check.sh runs: parts, one after the other, each with its steps, its time and its results."""
import contextlib
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[2] / "dev/results"))  # perf_table
import training  # noqa: E402
from harness import ROOT, RUNS, OutOfTime, Part, gpu_name, smi  # noqa: E402
from parts import ALIASES, ALL, PARTS  # noqa: E402

SECONDS = 590  # the most a part may take
OWN_FILES = ["summary.txt", "results.jsonl", "trace.json.gz", "machine.json"]


class Stopped(BaseException):
    """A signal: whoever started this has no more time."""


def output(*command):
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False).stdout.strip()
    return ""


def machine(part):
    """Where and with what it is measured."""
    fields = ["name", "driver_version", "memory.total", "clocks.max.sm", "clocks.max.mem", "power.limit"]
    gpus = smi(",".join(fields))
    if not gpus:
        return
    name, driver, memory, sm, mem, power = gpus[0]
    cuda = re.search(r"release ([\d.]+)", output(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc", "--version"))
    commit = os.environ.get("ANVIL_COMMIT") or output("git", "describe", "--always", "--dirty") or "?"
    about = {"GPU": name if len(gpus) == 1 else f"{len(gpus)} x {name}", "memory": f"{memory} MiB", "driver": driver,
             "CUDA": cuda[1] if cuda else "?", "highest clocks": f"SM {sm} MHz, memory {mem} MHz",
             "power limit": f"{power} W", "commit": commit, "date": datetime.date.today().isoformat(),
             "command": f"scripts/gpu_check.sh {part}"}  # fmt: skip
    return about


def folder_for(part):
    """$OUT, or a folder of the GPU, the day and the part under doc/results/."""
    if os.environ.get("OUT"):
        return pathlib.Path(os.environ["OUT"])
    gpu = gpu_name()
    if not gpu:
        return ROOT / "build/gpu_check"
    short = re.sub(r"[^a-z0-9-]", "", gpu.removeprefix("NVIDIA ").lower().replace(" ", "-"))
    return ROOT / "doc/results" / f"{short}-{datetime.date.today().isoformat()}" / part


def say_expected(part, seconds):
    """How long each step should take, by the rates of `plan`, and all of them together."""
    steps = [step for step in PARTS[part.name] if step.expected or step.trains]
    if not steps:
        return
    part.say(f"  expected seconds, by what plan predicts for {training.predicted_gpu()}:")
    for step in steps:
        part.say(f"    {step.name:<20} {step.expected_s():4.0f}{'  if time is left' if step.spare else ''}")
    whole = sum(step.expected_s() for step in steps if not step.spare)
    part.say(f"    {'in all':<20} {whole:4.0f} of {seconds:.0f}")


def run_part(name, out, seconds):
    """Whether nothing of it failed."""
    part = Part(name, out, seconds)
    print(f"==== {name}", flush=True)
    began = part.step_began = time.monotonic()
    step = None
    try:
        say_expected(part, seconds)
        for step in PARTS[name]:
            part.step_began = time.monotonic()
            part.step_deadline = part.step_began + step.seconds
            missed = part.missed
            try:
                with part.isolated(step.name):
                    step.function(part)
            except OutOfTime:
                part.result(step.name, "not reached", f"its {step.seconds} s, or the part's {seconds}, were over")
            if step.spare:
                part.missed = missed
    except Stopped:
        part.result(step.name if step else name, "not reached", "stopped by a signal")
        raise
    finally:
        note = f"{part.failed} failed, {part.missed} not reached" if part.failed or part.missed else "ok"
        line = f"{name:<12} {time.monotonic() - began:4.0f} s  {note}"
        with open(out / "summary.txt", "a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(f"==== {line}; results are in {out}", flush=True)
    return not part.failed and not part.missed


def stop(*_):
    for number in signal.SIGTERM, signal.SIGINT:
        signal.signal(number, signal.SIG_DFL)  # a second one ends it at once
    raise Stopped


def run_parts(asked):
    """Whether nothing of them failed."""
    seconds = float(os.environ.get("LIMIT", SECONDS))
    good = True
    cleaned = set()
    for name in asked:
        out = folder_for(name)
        out.mkdir(parents=True, exist_ok=True)
        if out not in cleaned:  # with $OUT all parts share a folder
            for file in [*OWN_FILES, *(f"{part}.log" for part in PARTS)]:
                (out / file).unlink(missing_ok=True)
            cleaned.add(out)
        about = machine(name)
        if about:
            (out / "machine.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        elif name != "build":
            line = f"{name}: not run: no GPU here (nvidia-smi lists none)"
            with open(out / "summary.txt", "a", encoding="utf-8") as file:
                file.write(line + "\n")
            print(line, flush=True)
            continue
        good = run_part(name, out, seconds) and good
    return good


def main():
    asked = [ALIASES.get(name, name) for name in sys.argv[1:] if name != "all"] or ALL
    for name in asked:
        if name not in PARTS:
            print(f"error: {name}: expected some of {', '.join([*PARTS, *ALIASES])}, or all", file=sys.stderr)
            return 2
    shutil.rmtree(RUNS, ignore_errors=True)  # of a call that was killed
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        good = run_parts(asked)
    except Stopped:
        print("error: stopped by a signal", file=sys.stderr)
        good = False
    shutil.rmtree(RUNS, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
