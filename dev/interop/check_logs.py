#!/usr/bin/env python3
"""Checks that TensorBoard and wandb, as PyPI has them, read the logs of a run that is killed and resumed.

    VENV/bin/python dev/interop/check_logs.py     VENV: made by dev/interop/check_interop.sh; needs ./train_gpt

Every number of log.jsonl must be in TensorBoard's curves with the same bits as a float, and each step once; wandb,
offline, must have stored each training loss. Exit code 1 with a line for the first difference.
"""
import glob
import json
import math
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = os.environ.get("ANVIL_PROGRAMS", str(ROOT) + "/")


def check(condition, what):
    if not condition:
        sys.exit(f"error: {what}")


def as_float(value):
    return struct.unpack("<f", struct.pack("<f", float(value)))[0]


def logged(path, kinds):
    """{TYPE/NAME: {step: number}} of a log; for each step the last record counts."""
    curves = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                continue  # truncated by the kill
            if record["type"] == "resume":
                for points in curves.values():
                    for step in [s for s in points if s > record["step"]]:
                        del points[step]
            if record["type"] not in kinds:
                continue
            for name, value in record.items():
                if name not in ("type", "step", "path"):
                    tag = ("train" if record["type"] == "step" else record["type"]) + "/" + name
                    curves.setdefault(tag, {})[record["step"]] = as_float(value)
    return curves


def main():
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tempfile.TemporaryDirectory() as scratch:
        out = scratch + "/run"
        tokenize = [PROGRAMS + "data/tokenize", "--stories", "20000", "--tokenizer", "char", "--out", scratch + "/data"]
        subprocess.run(tokenize, check=True, stdout=subprocess.DEVNULL)
        flags = {"train-data": scratch + "/data/train_*.bin", "val-data": scratch + "/data/val_*.bin", "device": "cpu",
                 "num-layers": 1, "num-heads": 2, "channels": 16, "seq-len": 16, "batch-size": 4, "steps": 3000,
                 "warmup-steps": 5, "val-every": 50, "checkpoint-every": 100, "sample-tokens": 0, "print-every": 1000}
        command = [PROGRAMS + "train_gpt", "--out-dir", out, "--log-to", "wandb,tensorboard"]
        command += [f"--{name}={value}" for name, value in flags.items()]
        # train_gpt must start this `python3`.
        environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true",
                       "PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"]}

        log = pathlib.Path(out, "log.jsonl")
        first = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        began = time.monotonic()
        while not (log.exists() and b'"type":"checkpoint","step":500' in log.read_bytes()):
            check(first.poll() is None and time.monotonic() - began < 120, "the run did not get to its 500th step")
            time.sleep(0.01)
        first.send_signal(signal.SIGKILL)
        first.wait()
        check(b'"type":"end"' not in log.read_bytes(), "the run was over before it could be killed")
        time.sleep(10)  # until wandb's own process notices the kill and writes its data
        subprocess.run(command + ["--resume", "auto"], env=environment, stdout=subprocess.DEVNULL, check=True)

        want = logged(log, ("step", "val", "checkpoint"))
        check(sorted(want["train/loss"]) == list(range(1, 3001)), "log.jsonl lacks steps")
        files = glob.glob(out + "/events.out.tfevents.*")
        check(len(files) == 2, f"there are {len(files)} event files and were 2 starts")
        seen = EventAccumulator(out, size_guidance={"scalars": 0})
        seen.Reload()
        tags = sorted(seen.Tags()["scalars"])
        check(tags == sorted(want), f"TensorBoard sees {tags}, not {sorted(want)}")
        for tag, points in want.items():
            scalars = seen.Scalars(tag)
            steps = [scalar.step for scalar in scalars]
            check(steps == sorted(points), f"{tag}: steps {steps[:5]}... are not log.jsonl's")
            for scalar in scalars:
                other = points[scalar.step]
                same = scalar.value == other or (math.isnan(scalar.value) and math.isnan(other))
                check(same, f"{tag} at step {scalar.step}: {scalar.value} and not {other}")
        print(f"tensorboard: {len(want)} curves, {sum(map(len, want.values()))} points, as in log.jsonl")

        kept = b"".join(pathlib.Path(path).read_bytes() for path in glob.glob(out + "/wandb/offline-run-*/*.wandb"))
        records = [json.loads(line) for line in log.read_text().splitlines() if line.startswith('{"type":"step"')]
        missing = [r["step"] for r in records if json.dumps(r["loss"]).encode() not in kept]
        check(not missing, f"wandb has kept no loss of steps {missing[:5]}...")
        print(f"wandb: {len(records)} losses kept offline")


if __name__ == "__main__":
    main()
