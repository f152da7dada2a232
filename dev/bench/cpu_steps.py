#!/usr/bin/env python3
"""Runs dev/bench/cpu_steps.cu, which profiles training steps on the CPU, and writes a table beside the machine's peaks.

    make bench-cpu                              everything, some minutes; BENCH_ARGS='--models small --rounds 1': less
    python3 dev/bench/cpu_steps.py --page-only  rewrites the table from the stored results
    python3 dev/bench/cpu_steps.py --check      exit code 1 if the page does not match the stored results
    python3 dev/bench/cpu_steps.py --before OLD --rounds 9
                                                how many times as fast as OLD, the program of another commit; writes nothing

Prints the program's output for each round. For each model and type, the round with the median fraction of the roofline
counts. Also measures how many cores other processes used meanwhile. Writes doc/results/cpu-steps.json, where new results
replace older ones of the same class of processors, model and type, and the section between the markers of
doc/performance.md, with a table per class. Needs only Python 3.
"""
import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "dev/results"))
from against_pytorch import CONFIGS, classes, facts, results_of, start  # noqa: E402
from bench_scaling import NOT_MEASURED, PAGE, busy_s  # noqa: E402
from pages import UserError, renew_page  # noqa: E402

RESULTS = ROOT / "doc/results/cpu-steps.json"
MARKERS = "<!-- steps on the CPU: dev/bench/cpu_steps.py -->\n", "<!-- end of steps on the CPU -->\n"
GOALS = {"fp32": 70, "bf16": 45}  # percent of the roofline
DTYPES = list(GOALS)

# The parts of a step, and the prefixes of the names of their ops.
PARTS = {"GEMMs": ("matmul",), "attention": ("attention",), "optimizer": ("adamw", "add_squares", "fill_zero")}


def roofline_ms(result):
    return result["arithmetic_ms"] + result["update_ms"] + result["copy_ms"]


def reached(result):
    return 100 * roofline_ms(result) / result["ms"]


def measure(args, program, model, dtype, **how):
    """One run of the program, with arguments for Popen."""
    with tempfile.TemporaryDirectory(prefix="cpu_steps-") as folder:
        found = pathlib.Path(folder) / "json"
        flags = {"model": model, "dtype": dtype, "threads": args.threads, "seconds": args.seconds, "json": found}
        begin, busy = time.monotonic(), busy_s()
        command = shlex.split(program) + [f"--{name}={value}" for name, value in flags.items()]
        process = start(command, args.threads, **how)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        others = busy_s() - busy - used.ru_utime - used.ru_stime
        if process.returncode != 0:
            raise UserError(f"{program}: exit code {process.returncode}")
        result = json.loads(found.read_text(encoding="utf-8"))
    return facts(args) | result | {"others": max(0.0, others / (time.monotonic() - begin))}


def compare(args, model, dtype):
    """Runs both programs in turns, the first one first in every other round, and prints the medians of their times and
    of the rounds' ratios: the clock of a shared machine changes by a third within an hour."""
    rounds = []
    for number in range(args.rounds):
        programs = [args.before, args.program]
        order = programs if number % 2 == 0 else programs[::-1]
        ms = {program: measure(args, program, model, dtype, stdout=subprocess.DEVNULL)["ms"] for program in order}
        rounds.append([ms[program] for program in programs])
    old, new = (statistics.median(times) for times in zip(*rounds))
    ratios = sorted(before / after for before, after in rounds)
    text = f"{statistics.median(ratios):.3f} times as fast ({ratios[0]:.3f} to {ratios[-1]:.3f} in {args.rounds} rounds)"
    print(f"{model}, {dtype}: {old:.2f} -> {new:.2f} ms, {text}", flush=True)


def where(result):
    """The share of each part of a step in its time, and for arithmetic also the percentage of the peak."""
    texts = []
    for part, names in PARTS.items():
        ops = [op for op in result["ops"] if op["op"].startswith(names)]
        ms, flops = sum(op["ms"] for op in ops), sum(op["flops"] for op in ops)
        text = f"{part} {100 * ms / result['ms']:.0f} %"
        if part != "optimizer":
            text += f" at {100 * flops / (ms * 1e-3) / result['peak']:.0f} %" + ("" if texts else " of the peak")
        texts.append(text)
    return ", ".join(texts)


def page_text(results):
    return "\n".join(class_text(results_of(results, name)) for name in classes(results)) or NOT_MEASURED


def class_text(results):
    first = results[0]
    text = f"{first['class']} ({first['machine']}), {first['threads']} threads, {first['date']}:\n\n"
    text += "| model | type | tok/s | ms per step | of the roofline | where the time goes |\n|---|---" + "|--:" * 3 + "|---|\n"
    for r in results:
        if r["config"] == "124M-64":
            continue  # the model of 124M-256 with short rows; the file has it
        share = f"{reached(r):.0f} %" + ("" if reached(r) >= GOALS[r["dtype"]] else ", **missed**")
        cells = [r["config"], r["dtype"], f"{r['tokens'] / r['ms'] * 1e3:.0f}", f"{r['ms']:.1f}", share, where(r)]
        text += "| " + " | ".join(cells) + " |\n"

    def span(key, dtype=None):
        values = sorted(r[key] / 1e9 for r in results if dtype in (None, r["dtype"]))
        return f"{values[0]:.0f} to {values[-1]:.0f}"

    limits = [f"{span('peak', dtype)} GFLOP/s in {dtype}" for dtype in DTYPES if any(r["dtype"] == dtype for r in results)]
    text += f"\nLimits in the same minutes: {', '.join(limits)}, {span('copy')} GB/s copied, {span('update')} GB/s updated in "
    text += f"place. Others used {max(r['others'] for r in results):.2f} cores of {first['cores']} at most."
    text += "".join(sorted({f" {r['note']}." for r in results if r["note"]}))
    return text + "\n"


def save(path, results, new):
    kept = {(r["class"], r["config"], r["dtype"]): r for r in [*results, new]}
    order = [(name, config, dtype) for name in classes(results + [new]) for config in CONFIGS for dtype in DTYPES]
    results[:] = [kept[key] for key in order if key in kept]
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/cpu/bench/cpu_steps", help="a command")
    parser.add_argument("--before", metavar="PROGRAM", help="another command, to compare with")
    parser.add_argument("--models", default=",".join(CONFIGS))
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4, help="of each run's steps")
    parser.add_argument("--note", default="", help="a sentence about the measurement, for under the table")
    parser.add_argument("--json", type=pathlib.Path, default=RESULTS, metavar="OUT")
    parser.add_argument("--page", type=pathlib.Path, default=PAGE)
    parser.add_argument("--page-only", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    args.models, args.dtypes = args.models.split(","), args.dtypes.split(",")
    if not set(args.models) <= set(CONFIGS) or not set(args.dtypes) <= set(DTYPES) or args.rounds < 1:
        parser.error(f"expected --models of {','.join(CONFIGS)}, --dtypes of {','.join(DTYPES)} and a round or more")
    if args.before == args.program:
        parser.error("expected --before to be another program than --program")
    return args


def main():
    args = parse_args()
    try:
        if args.before:
            for model in args.models:
                for dtype in args.dtypes:
                    compare(args, model, dtype)
            return 0
        results = json.loads(args.json.read_text(encoding="utf-8")) if args.json.is_file() else []
        for model in [] if args.page_only or args.check else args.models:
            rounds = [[measure(args, args.program, model, dtype) for dtype in args.dtypes] for _ in range(args.rounds)]
            for of_dtype in zip(*rounds):
                save(args.json, results, sorted(of_dtype, key=reached)[len(of_dtype) // 2])
        renew_page(args.page, page_text(results), MARKERS, "dev/bench/cpu_steps.py --page-only", args.check)
    except (UserError, OSError, subprocess.SubprocessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
