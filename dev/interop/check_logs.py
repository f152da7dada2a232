#!/usr/bin/env python3
"""Checks that services, as PyPI has them, get the logs of a run that is killed and resumed.

    VENV/bin/python dev/interop/check_logs.py     VENV: made by dev/interop/check_interop.sh; needs ./train_gpt

Every number of log.jsonl must be in TensorBoard's curves with the same bits as a float, and each step once; wandb,
offline, must have stored each training loss; /metrics for Prometheus must show what a line of log.jsonl has. Each field of
scripts/grafana.json must be one of Grafana's schema (grafana-foundation-sdk), and each of its queries must have an answer
from a Prometheus server that scrapes a run. mlflow and trackio, which are large, are checked where they are installed: all
losses, each step once; so is the server, `prometheus`. Exit code 1 with a line for the first difference.
"""
import glob
import importlib.util
import json
import math
import os
import pathlib
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

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


def scraped(port):
    """{name: value} of the run at /metrics."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    return {sample.name: sample.value for family in families for sample in family.samples}


def check_metrics(port, log):
    """While the run lasts: loss and norm are those of one step of the log, in base units."""
    seen, began = {}, time.monotonic()
    while "anvil_checkpoint_step" not in seen:
        check(time.monotonic() - began < 120, "/metrics shows no checkpoint")
        time.sleep(0.1)
        try:
            seen = scraped(port)
        except OSError:
            continue  # not started yet
    check(seen["anvil_up"] == 1 and seen["anvil_ranks"] == 1, f"/metrics: {seen}")
    steps = [json.loads(line) for line in log.read_text().splitlines() if line.startswith('{"type":"step"')]
    check(any(seen["anvil_train_loss"] == r["loss"] and seen["anvil_train_norm"] == r["norm"]
              and math.isclose(seen["anvil_train_step_seconds"], r["ms"] / 1e3)
              and seen["anvil_train_tokens_per_second"] == r["tokens_per_s"] for r in steps),
          f"/metrics shows no line of log.jsonl: {seen}")
    age_s = time.time() - seen["anvil_checkpoint_timestamp_seconds"]
    check(-1 < age_s < 120, f"/metrics: a checkpoint is {age_s} s old")
    print(f"prometheus: {len(seen)} gauges, as a line of log.jsonl")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def lacks(kept, given, place="scripts/grafana.json"):
    """The first place whose value Grafana's models have not kept."""
    if isinstance(given, (dict, list)):
        for name, value in given.items() if isinstance(given, dict) else enumerate(given):
            inside = kept is not None and (name in kept if isinstance(given, dict) else name < len(kept))
            found = lacks(kept[name] if inside else None, value, f"{place}, {name}")
            if found:
                return found
        return None if kept is not None else place
    return None if kept == given else place


def check_dashboard(dashboard):
    """As Grafana's models read and write it: what they do not know is lost."""
    from grafana_foundation_sdk.cog import plugins
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()
    lost = lacks(json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard))), dashboard)
    check(lost is None, f"{lost}: Grafana's schema has no such field or value")


def check_panels(dashboard, command, environment, scratch):
    """A server scrapes a run of two ranks, as the exposed communication is that of several; each query has an answer then."""
    port, server_port = free_port(), free_port()
    with open(scratch + "/prometheus.yml", "w", encoding="utf-8") as file:
        json.dump({"global": {"scrape_interval": "1s"},
                   "scrape_configs": [{"job_name": "anvil", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}]}, file)
    queries = {target["expr"].replace("$run", ".*") for panel in dashboard["panels"] for target in panel["targets"]}
    server = subprocess.Popen(["prometheus", f"--config.file={scratch}/prometheus.yml", "--log.level=warn",
                               f"--storage.tsdb.path={scratch}/prometheus", f"--web.listen-address=127.0.0.1:{server_port}"])
    run = subprocess.Popen(command + ["--out-dir", scratch + "/two", "--log-to", f"prometheus:{port}", "--steps=1000000",
                                      "--nproc-per-node=2"], env=environment, stdout=subprocess.DEVNULL)

    def answers(query):
        with urllib.request.urlopen(f"http://127.0.0.1:{server_port}/api/v1/{query}") as page:
            return json.load(page)["data"]

    try:
        began, unanswered = time.monotonic(), queries
        while unanswered:
            check(time.monotonic() - began < 120, f"Prometheus has no answer to {sorted(unanswered)}")
            check(run.poll() is None and server.poll() is None, "the run or Prometheus has ended")
            time.sleep(0.5)
            try:
                unanswered = {query for query in unanswered
                              if not answers("query?" + urllib.parse.urlencode({"query": query}))["result"]}
            except OSError:
                continue  # not started yet
        check(answers("label/run/values?match[]=anvil_step") == ["two"], "the dashboard's variable run")
        run.send_signal(signal.SIGTERM)
        check(run.wait() == 0, f"the run ended with code {run.returncode}")
    finally:
        run.kill()
        server.kill()
    print(f"prometheus: its server answers the {len(queries)} queries of scripts/grafana.json")


def rows(path, query):
    with sqlite3.connect(path) as base:
        return base.execute(query).fetchall()


def main():
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tempfile.TemporaryDirectory() as scratch:
        out = scratch + "/run"
        tokenize = [PROGRAMS + "data/tokenize", "--stories", "20000", "--tokenizer", "char", "--out", scratch + "/data"]
        subprocess.run(tokenize, check=True, stdout=subprocess.DEVNULL)
        flags = {"train-data": scratch + "/data/train_*.bin", "val-data": scratch + "/data/val_*.bin", "device": "cpu",
                 "num-layers": 1, "num-heads": 2, "channels": 16, "seq-len": 16, "batch-size": 4, "steps": 3000,
                 "warmup-steps": 5, "val-every": 50, "checkpoint-every": 100, "sample-tokens": 0, "print-every": 1000}
        port = free_port()
        large = [name for name in ("mlflow", "trackio") if importlib.util.find_spec(name)]
        services = ",".join(["wandb", "tensorboard", f"prometheus:{port}"] + large)
        flags = [f"--{name}={value}" for name, value in flags.items()]
        command = [PROGRAMS + "train_gpt", "--out-dir", out, "--log-to", services] + flags
        # train_gpt must start this `python3`.
        environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true",
                       "TRACKIO_DIR": scratch + "/trackio", "MLFLOW_TRACKING_URI": f"sqlite:///{scratch}/mlflow.db",
                       "PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"]}

        dashboard = json.loads((ROOT / "scripts/grafana.json").read_text(encoding="utf-8"))
        check_dashboard(dashboard)
        if shutil.which("prometheus"):
            check_panels(dashboard, [PROGRAMS + "train_gpt"] + flags, environment, scratch)
        else:
            print("skipped: the queries of scripts/grafana.json: the server is missing: install prometheus")

        log = pathlib.Path(out, "log.jsonl")
        first = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        began = time.monotonic()
        while not (log.exists() and b'"type":"checkpoint","step":500' in log.read_bytes()):
            check(first.poll() is None and time.monotonic() - began < 120, "the run did not get to its 500th step")
            time.sleep(0.01)
        first.send_signal(signal.SIGSTOP)  # until the services have started and read the log
        check_metrics(port, log)
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
        # A step that was repeated has the value of the last time.
        if "mlflow" in large:
            kept = rows(scratch + "/mlflow.db", "select step, value from latest_metrics where key = 'train/loss'")
            steps = rows(scratch + "/mlflow.db", "select distinct step from metrics where key = 'train/loss'")
            check(len(kept) == 1 and len(steps) == 3000, f"mlflow has {len(steps)} steps, in {len(kept)} runs")
            print("mlflow: 3000 losses in one run")
        if "trackio" in large:
            kept = rows(scratch + "/trackio/anvil.db", "select distinct run_name, step from metrics")
            check(sorted(step for _, step in kept) == list(range(1, 3001)), f"trackio has {len(kept)} steps")
            print("trackio: 3000 steps in one run")


if __name__ == "__main__":
    main()
