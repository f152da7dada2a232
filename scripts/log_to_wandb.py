#!/usr/bin/env python3
"""Sends a run's log.jsonl to Weights & Biases, during the run or later: pip install wandb.

    ./train_gpt ... --log-to wandb              starts this script automatically
    scripts/log_to_wandb.py RUN                 sends what has been logged so far
    scripts/log_to_wandb.py RUN --follow        also sends new records, until the run ends or Ctrl-C
    WANDB_MODE=offline ...                      writes files for `wandb sync RUN/wandb/offline-run-*`

Every number of a record is sent as TYPE/NAME at its step, those of `step` as train/NAME, as in TensorBoard's events.
Flags and machine are the config of the W&B run, the last sample and the reason of the end its summary. RUN/wandb.json
stores the W&B run and how far the log was sent, so that a resumed run continues the same curves; repeated steps are not
sent again. WANDB_PROJECT, WANDB_ENTITY and the like are wandb's own variables; the default project is `anvil`.
"""
import argparse
import json
import os
import secrets
import select
import sys
import time

WAIT_S = 1.0  # between reads of the log


class Log:
    """Reads the complete lines of a growing file."""

    def __init__(self, path):
        self.path, self.offset = path, 0

    def records(self):
        try:
            with open(self.path, "rb") as file:
                file.seek(0, os.SEEK_END)
                if file.tell() < self.offset:  # a new run has replaced the file
                    self.offset = 0
                file.seek(self.offset)
                whole = file.read().rpartition(b"\n")[0:2]
        except FileNotFoundError:
            return
        self.offset += sum(map(len, whole))
        for line in whole[0].decode("utf-8", errors="replace").split("\n"):
            try:
                record = json.loads(line)
            except ValueError:
                continue  # truncated by a kill
            if isinstance(record, dict) and isinstance(record.get("type"), str):
                yield record


def scalars(record):
    """{TYPE/NAME: number} of a record; {} for types without curves."""
    kind = record["type"]
    if kind in ("start", "resume", "skip", "sample", "end") or not isinstance(record.get("step"), int):
        return {}
    numbers = {}
    group = "train" if kind == "step" else kind
    if kind == "tasks":
        group += "/" + os.path.splitext(os.path.basename(record.get("file", "")))[0]
        for task, scores in record.get("tasks", {}).items():
            numbers.update({f"{group}/{task}/{name}": scores.get(name) for name in ("accuracy", "centered")})
    for name, value in record.items():
        if value in ("nan", "inf", "-inf"):
            value = float(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "step":
            numbers[f"{group}/{name}"] = value
    return numbers


class Sender:
    def __init__(self, wandb, run_folder, project, name):
        self.wandb, self.folder, self.project, self.name = wandb, run_folder, project, name
        self.state_path = os.path.join(run_folder, "wandb.json")
        self.run = None
        try:
            with open(self.state_path, encoding="utf-8") as file:
                self.state = json.load(file)
        except (OSError, ValueError):
            self.state = {}

    def begin(self, header):
        """Called for the first record: resumes the W&B run of this log, or starts a new one."""
        is_new = header["type"] == "start" and self.state.get("began") != header.get("time")
        if is_new or "id" not in self.state:
            if self.run:
                self.run.finish()
                self.run = None
            self.state = {"id": secrets.token_hex(4), "began": header.get("time"), "sent": {}}
            self.save()
        if self.run:
            return
        facts = {**header.get("config", {}), "build": header.get("build"), "machine": header.get("machine"),
                 "data": header.get("data")}
        self.run = self.wandb.init(project=self.project, name=self.name, id=self.state["id"], resume="allow",
                                   dir=self.folder, config=facts)
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def send(self, record):
        kind = record["type"]
        if kind in ("start", "resume"):
            self.begin(record)
        if not self.run:  # the beginning of the log is missing
            return
        if kind == "sample":
            self.run.summary["sample"] = str(record.get("prompt", "")) + str(record.get("text", ""))
        if kind == "end":
            self.run.summary["end"] = record.get("reason")
        numbers = scalars(record)
        sent, series = self.state["sent"], kind + record.get("file", "")
        if numbers and record["step"] > sent.get(series, -1):
            self.run.log({"step": record["step"], **numbers})
            sent[series] = record["step"]

    def save(self):
        with open(self.state_path + ".tmp", "w", encoding="utf-8") as file:
            json.dump(self.state, file)
        os.replace(self.state_path + ".tmp", self.state_path)


def stdin_has_ended(wait_s):
    ready, _, _ = select.select([0], [], [], wait_s)
    return bool(ready) and os.read(0, 4096) == b""


def main():
    parser = argparse.ArgumentParser(description="Sends a run's log.jsonl to Weights & Biases.")
    parser.add_argument("run", metavar="RUN", help="the --out-dir of a run")
    parser.add_argument("--follow", action="store_true", help="go on until the run ends")
    parser.add_argument("--until-stdin-ends", action="store_true", help="go on until stdin ends, as train_gpt asks for")
    parser.add_argument("--project", default=os.environ.get("WANDB_PROJECT", "anvil"))
    parser.add_argument("--name", help="of the run there [the name of its folder]")
    args = parser.parse_args()
    try:
        import wandb
    except ImportError as error:
        print(f"warning: wandb is not there ({error}): pip install wandb; nothing is sent", file=sys.stderr)
        return 2
    path = os.path.join(args.run, "log.jsonl")
    if not os.path.exists(path):
        print(f"error: cannot read {path}; expected the --out-dir of a run", file=sys.stderr)
        return 2

    sender = Sender(wandb, args.run, args.project, args.name or os.path.basename(os.path.abspath(args.run)))
    log, over = Log(path), False
    try:
        while True:
            last_look = over or not (args.follow or args.until_stdin_ends)
            for record in log.records():
                sender.send(record)
                over = args.follow and record["type"] == "end"
            if sender.run:
                sender.save()
            if last_look:
                break
            if args.until_stdin_ends:
                over = stdin_has_ended(WAIT_S)
            elif not over:
                time.sleep(WAIT_S)
        if sender.run:
            sender.run.finish()
    except KeyboardInterrupt:
        if sender.run:
            sender.save()
            sender.run.finish()
    except Exception as error:  # wandb has many types of errors, and none may disturb the run
        print(f"warning: wandb says: {error}; nothing more is sent (WANDB_MODE=offline keeps it in files)",
              file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
