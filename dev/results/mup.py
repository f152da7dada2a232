#!/usr/bin/env python3
"""Measures whether the best learning rate transfers over width, and keeps it in doc/results/mup.csv.

    dev/results/mup.py            trains what is not in the file yet: about 15 minutes of a core
    dev/results/mup.py --check    what the file says: the best rate of each width; exit code 1 unless muP's transfers and the standard's not

Arm A of scripts/proxy.sh (GPT-2 with AdamW on the bytes of tiny Shakespeare, 300 steps) at three widths, two seeds and learning rates
a factor of sqrt(2) apart, with the standard parametrization and with muP, mup-base-width = 256, at which both are the same.
It transfers if the best rates at 64 and at 256 channels are within a factor of 1.5. charts.py draws doc/images/mup-*.svg.
"""

import csv
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "doc/results/mup.csv"
COLUMNS = ("parametrization", "channels", "learning_rate", "seed", "val_loss")
BASE, WIDTHS, SEEDS = 256, (64, 128, 256), (1, 2)
# In steps of sqrt(2) from arm A's rate, 0.004: each grid holds the best rate inside.
GRID = {("standard", 64): range(-2, 3), ("standard", 128): range(-2, 3), ("standard", 256): range(-4, 1),
        ("muP", 64): range(-4, 1), ("muP", 128): range(-4, 1)}  # fmt: skip
PROGRAM = "./train_gpt"


def read():
    """{(parametrization, channels): {learning rate: [loss of each seed]}}; at the base width both are the standard."""
    found = {}
    if RESULTS.is_file():
        with open(RESULTS, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                place = found.setdefault((row["parametrization"], int(row["channels"])), {})
                place.setdefault(float(row["learning_rate"]), {})[int(row["seed"])] = float(row["val_loss"])
    if ("standard", BASE) in found:
        found["muP", BASE] = found["standard", BASE]
    return found


def best(of_rates):
    """The learning rate with the lowest mean loss over the seeds."""
    return min(of_rates, key=lambda rate: statistics.mean(of_rates[rate].values()))


def distance(found, parametrization):
    """By which factor the best learning rates of the narrowest and of the widest model differ."""
    first, last = best(found[parametrization, WIDTHS[0]]), best(found[parametrization, WIDTHS[-1]])
    return max(first / last, last / first)


def train(parametrization, channels, rate, seed, data, scratch):
    flags = subprocess.run(["scripts/proxy.sh", "--flags", "A"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    out, lines = f"{scratch}/{parametrization}-{channels}-{rate}-{seed}", f"{scratch}/{parametrization}.conf"
    pathlib.Path(lines).write_text("" if parametrization == "standard" else f"mup-base-width = {BASE}\n", encoding="utf-8")
    command = [PROGRAM, *flags, "--channels", str(channels), "--learning-rate", f"{rate:.6g}", "--seed", str(seed), "--model", lines]
    command += ["--train-data", f"{data}/train_*.bin", "--val-data", f"{data}/val_*.bin", "--val-every", "0", "--val-tokens", "32768"]
    command += ["--threads", "1", "--device", "cpu", "--dtype", "fp32", "--launcher", "none", "--sample-tokens", "0", "--checkpoint-every", "0", "--summary"]
    done = subprocess.run([*command, "--out-dir", out], cwd=ROOT, check=True, capture_output=True, text=True)
    return next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("val_loss:"))


def measure():
    found = read()
    with tempfile.TemporaryDirectory() as scratch:  # not data/tinyshakespeare's shards, which are of other tokens
        text, data = "data/tinyshakespeare/tinyshakespeare.txt", scratch + "/data"
        subprocess.run(["data/tinyshakespeare.sh"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["data/tokenize", text, "--tokenizer", "byte", "--out", data], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        if not RESULTS.is_file():
            RESULTS.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
        for (parametrization, channels), powers in GRID.items():
            for rate in (float(f"{0.004 * math.sqrt(2) ** power:.6g}") for power in powers):
                for seed in SEEDS:
                    if seed in found.get((parametrization, channels), {}).get(rate, {}):
                        continue
                    loss = train(parametrization, channels, rate, seed, data, scratch)
                    with open(RESULTS, "a", encoding="utf-8") as file:
                        file.write(f"{parametrization},{channels},{rate:.6g},{seed},{loss}\n")
                    print(parametrization, channels, f"{rate:.6g}", seed, loss, flush=True)


def main():
    if "--check" not in sys.argv[1:]:
        measure()
    found = read()
    for parametrization in ("standard", "muP"):
        rates = ", ".join(f"{best(found[parametrization, width]):.3g} at {width} channels" for width in WIDTHS)
        print(f"{parametrization}: best learning rate {rates}: a factor of {distance(found, parametrization):.2f}")
    return 0 if distance(found, "muP") <= 1.5 < distance(found, "standard") else 1


if __name__ == "__main__":
    sys.exit(main())
