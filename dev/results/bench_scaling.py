#!/usr/bin/env python3
"""Measures a training run on 1, 2, 4, ... ranks: tokens per second, efficiency, and the time of communication.

    dev/results/bench_scaling.py                   on all GPUs if there are any, else on this machine's CPU
    dev/results/bench_scaling.py --device cpu      1, 2 and 4 processes of one thread each, and as many as there are cores
    dev/results/bench_scaling.py --device cpu --master alpha:29500 --rank 0       also two hosts, a process on each: the first one
    dev/results/bench_scaling.py --device cpu --master alpha:29500 --rank 1       the second one, which only takes part
    dev/results/bench_scaling.py --device cpu --gpu      also one process with a GPU, if there is one
    dev/results/bench_scaling.py --page-only       rewrites the page from the stored results
    dev/results/bench_scaling.py --check           exit code 1 if the page does not match the stored results

The batch of a step is the same for every number of ranks (strong scaling), on synthetic tokens. The numbers of ranks
alternate, --rounds times, so that other load on the machine affects all of them. A figure is the median of the steps
after --warm-up, over all rounds. Also measures how many cores other processes used meanwhile. Ranks connect over TCP,
without mpirun. Writes doc/results/scaling-DEVICE.csv, and the tables of all such files between the markers of
doc/performance.md; with --no-write it only prints the table. Needs only Python 3.
"""
import argparse
import array
import csv
import datetime
import io
import json
import os
import pathlib
import platform
import random
import re
import resource
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import typing

from pages import UserError, renew_page

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "doc/performance.md"
RESULTS = ROOT / "doc/results"
NOT_MEASURED = "not measured yet\n"
MARKERS = "<!-- scaling: dev/results/bench_scaling.py -->\n", "<!-- end of scaling -->\n"

# Name, sequences per step, flags, which include T and the vocabulary.
SMALL = ("quickstart: 4 layers, 128 channels", 12,
         {"num-layers": 4, "num-heads": 4, "channels": 128, "seq-len": 64, "vocab-size": 65})  # fmt: skip
MIDDLE = ("6 layers, 384 channels", 8,
          {"num-layers": 6, "num-heads": 6, "channels": 384, "seq-len": 256, "vocab-size": 65})  # fmt: skip
LARGE = ("GPT-2 124M", 512, {"model": "gpt2-124M", "vocab-size": 50257, "seq-len": 1024})
TINY = ("tiny", 4, {"num-layers": 1, "num-heads": 2, "channels": 32, "seq-len": 16, "vocab-size": 65})
LARGEST_MICRO_BATCH = {"cpu": 12, "cuda": 64}

COLUMNS = ["machine", "date", "model", "tokens_a_step", "ranks", "hosts", "device", "steps", "step_ms", "tokens_per_s", "efficiency",
           "comm_ms", "comm_exposed_ms", "comm_predicted_ms", "cores", "others", "note"]  # fmt: skip


class Setting(typing.NamedTuple):
    """The ranks and devices of a run. With several hosts, each has one rank."""

    ranks: int
    device: str
    hosts: int = 1

    def __str__(self):
        text = f"{self.ranks} rank{'s' if self.ranks > 1 else ''}"
        return text + (f" on {self.hosts} hosts" if self.hosts > 1 else "") + (", GPU" if self.device == "cuda" else "")


# ---- one run ---------------------------------------------------------------------------------------------------


def write_tokens(path, count, vocab):
    """Writes a shard (doc/formats.md). Token k has a probability of about 1/(k + 1), as words do."""
    draw = random.Random(1).random
    header = array.array("i", [20240520, 1, count] + [0] * 253)
    tokens = array.array("H", (int(vocab ** draw()) - 1 for _ in range(count)))
    path.write_bytes(header.tobytes() + tokens.tobytes())


def busy_s():
    """The busy seconds of all cores of this machine: neither idle nor waiting for a disk."""
    with open("/proc/stat", encoding="utf-8") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def children_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def train(args, setting, model, folder):
    """The records of a run's steps, and how many cores other processes used. Nothing if rank 0 is on another host."""
    _, sequences, flags = model
    ranks, device = setting.ranks, setting.device
    micro_batch = max(b for b in range(1, LARGEST_MICRO_BATCH[device] + 1) if sequences // ranks % b == 0)
    flags = dict(flags, **{
        "train-data": f"{folder}/train_*.bin", "val-data": "", "out-dir": f"{folder}/run", "device": device,
        "batch-size": micro_batch, "total-batch-size": sequences * flags["seq-len"], "steps": args.steps,
        "warmup-steps": 0, "sample-tokens": 0, "checkpoint-every": 0, "check-replicas": 0})  # fmt: skip
    if device == "cpu":
        flags |= {"threads": 1, "dtype": "fp32"}  # so that the bytes to exchange do not depend on the processor
    command = shlex.split(args.program) + [f"--{name}={value}" for name, value in flags.items()]
    here = [args.rank] if setting.hosts > 1 else range(ranks)
    master = args.master if setting.hosts > 1 else f"127.0.0.1:{free_port()}"
    shutil.rmtree(f"{folder}/run", ignore_errors=True)
    busy, own, start = busy_s(), children_s(), time.monotonic()
    processes = []
    for rank in here:
        where = [f"--rank={rank}", f"--world-size={ranks}", f"--master={master}"] if ranks > 1 else ["--launcher=none"]
        output = open(f"{folder}/output-{rank}", "w", encoding="utf-8")
        processes.append(subprocess.Popen(command + where, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT))
        output.close()
    try:
        codes = [process.wait(timeout=args.limit) for process in processes]
    except subprocess.TimeoutExpired:
        codes = [124]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for rank, code in zip(here, codes):
        if code != 0:
            tail = "".join(open(f"{folder}/output-{rank}", encoding="utf-8").readlines()[-5:])
            raise UserError(f"{setting}: rank {rank} ended with exit code {code}: {' '.join(command)}\n{tail}")
    seconds = time.monotonic() - start
    if here[0] > 0:
        return [], 0.0
    others = max(0.0, (busy_s() - busy - (children_s() - own)) / seconds)
    with open(f"{folder}/run/log.jsonl", encoding="utf-8") as log:
        steps = [record for record in map(json.loads, log) if record["type"] == "step"]
    if len(steps) != args.steps:
        raise UserError(f"{folder}/run/log.jsonl: expected {args.steps} steps, found {len(steps)}")
    return steps[args.warm_up :], others


# ---- all of them -----------------------------------------------------------------------------------------------


def measure_model(args, model, settings):
    """A row for each setting."""
    name, sequences, flags = model
    settings = [setting for setting in settings if sequences % setting.ranks == 0]
    steps = {setting: [] for setting in settings}
    others = {setting: [] for setting in settings}
    with tempfile.TemporaryDirectory(prefix="bench_scaling-") as folder:
        write_tokens(pathlib.Path(folder) / "train_000000.bin", max(20000, 2 * sequences * flags["seq-len"] + 1),
                     flags["vocab-size"])  # fmt: skip
        for turn in range(args.rounds):
            for setting in settings:
                of_run, used = train(args, setting, model, folder)
                steps[setting] += of_run
                others[setting].append(used)
                middle = f"{statistics.median(step['ms'] for step in of_run):.2f} ms per step" if of_run else "took part"
                print(f"{name}, round {turn + 1}, {setting}: {middle}, others used {used:.2f} cores", flush=True)
    if args.rank > 0:
        return []
    tokens = sequences * flags["seq-len"]

    def median(setting, key):
        return statistics.median(step.get(key, 0) for step in steps[setting])

    rows = []
    first = settings[0]
    for setting in settings:
        step_ms = median(setting, "ms")
        # Efficiency is only defined against the same device.
        efficiency = median(first, "ms") * first.ranks / (setting.ranks * step_ms) if setting.device == first.device else 0
        rows.append({
            "machine": args.machine, "date": args.date, "model": f"{name}, T {flags['seq-len']}", "tokens_a_step": tokens,
            "ranks": setting.ranks, "hosts": setting.hosts, "device": setting.device, "steps": len(steps[setting]),
            "step_ms": f"{step_ms:.4f}", "tokens_per_s": f"{tokens / step_ms * 1e3:.1f}", "efficiency": f"{efficiency:.4f}",
            "comm_ms": f"{median(setting, 'comm_ms'):.4f}", "comm_exposed_ms": f"{median(setting, 'comm_exposed_ms'):.4f}",
            "comm_predicted_ms": f"{median(setting, 'comm_predicted_ms'):.4f}", "cores": os.cpu_count(),
            "others": f"{max(others[setting]):.2f}", "note": args.note})  # fmt: skip
    return rows


def gpu_names():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [match[1].strip() for match in re.finditer(r"^GPU \d+: (.*?) \(UUID", listed, re.MULTILINE)]


def powers_of_two(most):
    return [1 << i for i in range(most.bit_length())]


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        match = re.search(r"^model name\s*: (.*)$", file.read(), re.MULTILINE)
    return match[1].strip() if match else platform.machine()


# ---- the page --------------------------------------------------------------------------------------------------


def table_of(rows):
    """The rows of one file as a Markdown table."""
    text = f"{rows[0]['machine']}, {rows[0]['date']}:\n\n"
    text += "| model, tokens per step | ranks | ms per step | tok/s | times one rank | efficiency | communication ms | exposed | predicted |\n"
    text += "|---" + "|--:" * 8 + "|\n"
    first = {}
    for row in rows:
        one = first.setdefault(row["model"], float(row["tokens_per_s"]))
        hosts, efficiency = int(row["hosts"]), float(row["efficiency"])
        crowded, alone = int(row["ranks"]) > int(row["cores"]) * hosts, int(row["ranks"]) == 1
        where = row["ranks"] + (f" on {hosts} hosts" if hosts > 1 else "") + (" (crowded)" if crowded else "")
        if row["device"] != rows[0]["device"]:
            where += ", GPU"
        cells = [f"{row['model']}, {row['tokens_a_step']}", where, f"{float(row['step_ms']):.2f}",
                 f"{float(row['tokens_per_s']):.0f}", f"{float(row['tokens_per_s']) / one:.2f}",
                 f"{efficiency * 100:.0f} %" if efficiency else ""]  # fmt: skip
        cells += [
            "" if alone else f"{float(row[key]):.2f}" for key in ("comm_ms", "comm_exposed_ms", "comm_predicted_ms")
        ]
        text += "| " + " | ".join(cells) + " |\n"
    most = max(float(row["others"]) for row in rows)
    text += f"\nMedians of {min(int(row['steps']) for row in rows)} steps or more; "
    text += f"meanwhile others used {most:.2f} cores of {rows[0]['cores']} at most."
    if "(crowded)" in text:
        text += " Crowded: more ranks than cores."
    if rows[0]["note"]:
        text += f" {rows[0]['note']}."
    return text + "\n"


def page_text(results):
    tables = []
    for path in sorted(results.glob("scaling-*.csv")):
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        if not rows or list(rows[0]) != COLUMNS:
            raise UserError(f"{path}: expected rows of the columns {','.join(COLUMNS)}")
        tables.append(table_of(rows))
    return "\n".join(tables) or NOT_MEASURED


def write_csv(path, rows):
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.getvalue(), encoding="utf-8")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="./train_gpt", help="a command")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--ranks", help="numbers of ranks: 1,2,4")
    parser.add_argument("--models", help="of small,middle,large,tiny")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=5, help="steps that do not count")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--note", default="", help="a sentence about the measurement, for under the table")
    parser.add_argument("--limit", type=float, default=600, help="seconds for one run")
    parser.add_argument("--page", type=pathlib.Path, default=PAGE)
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--master", default="", help="HOST:PORT, where rank 0 of several hosts listens")
    parser.add_argument("--rank", type=int, default=0, help="of --hosts, with --master")
    parser.add_argument("--hosts", type=int, default=2, help="with --master, each with one rank")
    parser.add_argument("--gpu", action="store_true", help="one process with a GPU, too, if there is one")
    parser.add_argument("--write", action=argparse.BooleanOptionalAction, default=True, help="the file and the page")
    parser.add_argument("--smoke", action="store_true", help="a few steps of the smallest model: does it run?")
    parser.add_argument("--page-only", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.smoke:
        args.models, args.ranks, args.steps, args.warm_up, args.rounds, args.write = "tiny", "1,2", 4, 1, 1, False
    if args.hosts < 2 or not 0 <= args.rank < args.hosts or (args.rank > 0 and not args.master):
        parser.error("--rank is one of --hosts, which are two or more and meet at --master")
    if not 0 <= args.warm_up < args.steps or args.rounds < 1:
        parser.error("expected 0 <= --warm-up < --steps and --rounds of one or more")
    listed = gpu_names() if args.device != "cpu" or args.gpu else []
    gpus = listed if args.device != "cpu" else []
    if args.device == "cuda" and not gpus:
        parser.error("--device cuda: nvidia-smi lists no GPU")
    args.device = "cuda" if gpus else "cpu"
    cores = os.cpu_count()
    if gpus:
        args.name, args.machine = re.sub(r"\W+", "-", gpus[0]), f"{len(gpus)} x GPU {gpus[0]}"
        numbers, models = powers_of_two(len(gpus)), "large"
    else:
        args.name, args.machine = "cpu", f"{processor()}, {cores} cores, one thread per rank"
        numbers, models = sorted({1, 2, 4, *powers_of_two(cores)}), "small,middle"
    try:
        numbers = [int(word) for word in args.ranks.split(",")] if args.ranks else numbers
        known = {"small": SMALL, "middle": MIDDLE, "large": LARGE, "tiny": TINY}
        args.chosen = [known[word] for word in (args.models or models).split(",")]
    except (KeyError, ValueError) as error:
        parser.error(f"--ranks and --models are lists with commas, such as 1,2 and small,middle: {error}")
    args.settings = [Setting(n, args.device) for n in numbers] if args.rank == 0 else []
    if args.master:
        args.settings.append(Setting(args.hosts, args.device, args.hosts))
    if args.gpu and listed and not gpus and args.rank == 0:
        args.settings.append(Setting(1, "cuda"))
        args.machine += f"; GPU {listed[0]}"
    args.date = datetime.date.today().isoformat()
    return args


def main():
    args = parse_args()
    try:
        if not (args.page_only or args.check):
            rows = [row for model in args.chosen for row in measure_model(args, model, args.settings)]
            if rows:
                print("\n" + table_of([{key: str(value) for key, value in row.items()} for row in rows]), end="")
            if not (args.write and rows):
                return 0
            write_csv(args.results / f"scaling-{args.name}.csv", rows)
        renew_page(args.page, page_text(args.results), MARKERS, "dev/results/bench_scaling.py --page-only", args.check)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
