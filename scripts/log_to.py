#!/usr/bin/env python3
"""Sends a run's log.jsonl to Weights & Biases, TensorBoard, MLflow, trackio or Prometheus, during the run or later.

    pip install wandb tensorboard                  those that are asked for suffice
    ./train_gpt ... --log-to wandb,tensorboard     starts this script automatically
    ./train_gpt ... --log-to prometheus:9400       http://HOST:9400/metrics while the run lasts
    scripts/log_to.py wandb RUN                    sends what has been logged so far
    scripts/log_to.py tensorboard RUN --follow     also sends new records, until the run ends or Ctrl-C
    WANDB_MODE=offline ...                         writes files for `wandb sync RUN/wandb/offline-run-*`

Every number of a record is sent as TYPE/NAME at its step, those of `step` as train/NAME. RUN/wandb.json and
RUN/tensorboard.json store how far the log was sent, so that a resumed run continues the same curves.

W&B: flags and machine are the config of the run there, the last sample and the reason of the end its summary. Steps that
a resumed run repeats are not sent again. WANDB_PROJECT, WANDB_ENTITY and the like are wandb's own variables; the default
project is `anvil`.

MLflow and trackio: the same. MLFLOW_TRACKING_URI says where to, by default RUN/mlflow.db; trackio has a folder of its own, or
TRACKIO_SPACE_ID.

Prometheus: the newest number of each kind as a gauge, in base units: anvil_train_loss, anvil_val_loss,
anvil_train_tokens_per_second, anvil_train_step_seconds, anvil_checkpoint_timestamp_seconds (the age is `time() -` that)
and anvil_up, 1 until the run has ended. The package is prometheus_client; scripts/grafana.json is a dashboard.

TensorBoard: each start of this script writes a file RUN/events.out.tfevents.TIME.anvil, and a resume makes void what is
after its step. A new run removes the files of the run before it.
"""
import argparse
import glob
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
    values, numbers = dict(record), {}
    group = "train" if kind == "step" else kind
    if kind == "tasks":
        group += "/" + os.path.splitext(os.path.basename(record.get("file", "")))[0]
        for task, scores in record.get("tasks", {}).items():
            values.update({f"{task}/{name}": scores.get(name) for name in ("accuracy", "centered")})
    for name, value in values.items():
        if value in ("nan", "inf", "-inf"):
            value = float(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "step":
            numbers[f"{group}/{name}"] = value
    return numbers


class Sender:
    """Sends each number of a log once. RUN/SERVICE.json stores how far, for the next start of the run."""

    service = advice = package = ""

    def __init__(self, run_folder):
        self.folder, self.is_open = run_folder, False
        self.state_path = os.path.join(run_folder, self.service + ".json")
        try:
            with open(self.state_path, encoding="utf-8") as file:
                self.state = json.load(file)
        except (OSError, ValueError):
            self.state = {}

    def send(self, record):
        kind = record["type"]
        if kind in ("start", "resume"):
            is_new = kind == "start" and self.state.get("began") != record.get("time")
            if is_new or "sent" not in self.state:
                self.finish()
                self.state = {"began": record.get("time"), "sent": {}}
                self.new_run()
            self.header(record)
            self.is_open = True
        if not self.is_open:  # the beginning of the log is missing
            return
        self.note(record)
        numbers = scalars(record)
        sent, series = self.state["sent"], kind + record.get("file", "")
        if numbers and record["step"] > sent.get(series, -1):
            self.write(record["step"], numbers)
            sent[series] = record["step"]

    def save(self):
        if not self.is_open:
            return
        self.flush()
        with open(self.state_path + ".tmp", "w", encoding="utf-8") as file:
            json.dump(self.state, file)
        os.replace(self.state_path + ".tmp", self.state_path)

    def finish(self):
        if self.is_open:
            self.close()
        self.is_open = False

    # What a service does: for a new run; for each header, perhaps again; for a record; for its numbers.
    def new_run(self):
        pass

    def header(self, record):
        pass

    def note(self, record):
        pass

    def write(self, step, numbers):
        pass

    def flush(self):
        pass

    def close(self):
        pass


class Wandb(Sender):
    service, advice = "wandb", " (WANDB_MODE=offline keeps it in files)"

    def __init__(self, args):
        import wandb
        super().__init__(args.run)
        self.wandb, self.project, self.run = wandb, args.project, None
        self.name = args.name or os.path.basename(os.path.abspath(args.run))

    def new_run(self):
        self.state["id"] = secrets.token_hex(4)

    def header(self, record):
        if self.is_open:
            return
        facts = {**record.get("config", {}), "build": record.get("build"), "machine": record.get("machine"),
                 "data": record.get("data")}
        self.run = self.wandb.init(project=self.project, name=self.name, id=self.state["id"], resume="allow",
                                   dir=self.folder, config=facts)
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def note(self, record):
        if record["type"] == "sample":
            self.run.summary["sample"] = str(record.get("prompt", "")) + str(record.get("text", ""))
        if record["type"] == "end":
            self.run.summary["end"] = record.get("reason")

    def write(self, step, numbers):
        self.run.log({"step": step, **numbers})

    def close(self):
        self.run.finish()


class TensorBoard(Sender):
    service = "tensorboard"
    NAME = "events.out.tfevents.%s.anvil"  # with ten digits; TensorBoard reads files in the order of their names

    def __init__(self, args):
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter
        super().__init__(args.run)
        self.event_pb2, self.RecordWriter = event_pb2, RecordWriter
        self.events, self.resumes = None, 0  # resumes that this process has read

    def files(self):
        return glob.glob(os.path.join(glob.escape(self.folder), self.NAME % (10 * "[0-9]")))

    def new_run(self):
        self.resumes = 0
        for path in self.files():
            os.remove(path)

    def header(self, record):
        sent = self.state["sent"]
        if not self.is_open:
            after = max([int(time.time())] + [int(path.split(".")[-2]) + 1 for path in self.files()])
            path = os.path.join(self.folder, self.NAME % after)
            self.events = self.RecordWriter(open(path, "wb"))
            self.event(0, file_version="brain.Event:2")
            self.void(1 + max(sent.values(), default=-1))  # of a process that was killed before save()
        if record["type"] == "resume":
            self.resumes += 1
            if self.resumes > self.state.get("resumes", 0):
                self.state["resumes"] = self.resumes
                self.state["sent"] = {series: min(step, record["step"]) for series, step in sent.items()}
                self.void(record["step"] + 1)

    def event(self, step, **what):
        event = self.event_pb2.Event(step=step, wall_time=time.time(), **what)
        self.events.write(event.SerializeToString())

    def void(self, first_step):
        """TensorBoard drops what it has of this step and later."""
        self.event(first_step, session_log={"status": self.event_pb2.SessionLog.START})

    def write(self, step, numbers):
        self.event(step, summary={"value": [{"tag": tag, "simple_value": value} for tag, value in numbers.items()]})

    def flush(self):
        self.events.flush()

    def close(self):
        self.events.close()


class Trackio(Sender):
    service = "trackio"

    def __init__(self, args):
        import trackio
        super().__init__(args.run)
        self.trackio, self.project = trackio, args.project
        self.name = args.name or os.path.basename(os.path.abspath(args.run))

    def new_run(self):
        self.state["name"] = f"{self.name}-{secrets.token_hex(2)}"

    def header(self, record):
        if not self.is_open:
            self.trackio.init(project=self.project, name=self.state["name"], resume="allow", embed=False,
                              space_id=os.environ.get("TRACKIO_SPACE_ID"), config=record.get("config", {}))

    def write(self, step, numbers):
        self.trackio.log(numbers, step=step)

    def close(self):
        self.trackio.finish()


class MLflow(Sender):
    service = "mlflow"

    def __init__(self, args):
        import mlflow
        super().__init__(args.run)
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            mlflow.set_tracking_uri("sqlite:///" + os.path.join(os.path.abspath(args.run), "mlflow.db"))
        self.mlflow, self.client, self.pending, self.project = mlflow, mlflow.MlflowClient(), [], args.project
        self.name = args.name or os.path.basename(os.path.abspath(args.run))

    def header(self, record):
        if self.is_open:
            return
        self.id = self.state.get("id")
        if self.id is None:
            experiment = self.mlflow.set_experiment(self.project)
            run = self.client.create_run(experiment.experiment_id, run_name=self.name)
            self.id = self.state["id"] = run.info.run_id
            for name, value in record.get("config", {}).items():
                self.client.log_param(self.id, name, str(value)[:500])

    def write(self, step, numbers):
        from mlflow.entities import Metric
        now = int(time.time() * 1000)
        self.pending += [Metric(name, value, now, step) for name, value in numbers.items()]

    def flush(self):
        while self.pending:  # the service takes a thousand at a time
            self.client.log_batch(self.id, metrics=self.pending[:1000])
            del self.pending[:1000]

    def close(self):
        self.flush()
        self.client.set_terminated(self.id)


class Prometheus(Sender):
    service, package, PORT = "prometheus", "prometheus_client", 9400
    UNITS = {"ms": ("seconds", 1e-3), "per_s": ("per_second", 1), "bytes": ("bytes", 1)}

    def __init__(self, args):
        import prometheus_client
        super().__init__(args.run)
        self.state = {}  # a process that starts knows nothing: the log is read from its beginning
        self.registry = prometheus_client.CollectorRegistry()
        self.Gauge, self.gauges = prometheus_client.Gauge, {}
        self.labels = {"run": args.name or os.path.basename(os.path.abspath(args.run))}
        port = args.port or self.PORT
        self.serve = lambda: prometheus_client.start_http_server(port, registry=self.registry)[0]
        self.server = self.failure = None
        self.save()

    def gauge(self, name, what):
        if name not in self.gauges:
            self.gauges[name] = self.Gauge("anvil_" + name, what, list(self.labels), registry=self.registry)
        return self.gauges[name].labels(**self.labels)

    def header(self, record):
        self.gauge("up", "1 until the run has ended").set(1)
        self.gauge("ranks", "processes of the run").set(record.get("machine", {}).get("ranks", 1))
        self.gauge("parameters", "of the model").set(record.get("model", {}).get("parameters", 0))
        self.gauge("skipped_steps", "steps without an update").inc(0)
        resumes = self.state["resumes"] = self.state.get("resumes", -1) + 1
        self.gauge("resumes", "how often the run was resumed").set(resumes)
        if "step" in record:
            self.state["sent"] = {series: min(step, record["step"]) for series, step in self.state["sent"].items()}

    def note(self, record):
        if record["type"] == "end":
            self.gauge("up", "1 until the run has ended").set(0)
        if record["type"] == "skip":
            self.gauge("skipped_steps", "steps without an update").inc()
        if record["type"] == "checkpoint":
            try:
                written = os.path.getmtime(str(record.get("path")))
            except OSError:  # another folder than this process's, or pruned
                written = time.time()
            self.gauge("checkpoint_step", "step of the newest checkpoint").set(record.get("step", 0))
            self.gauge("checkpoint_timestamp_seconds", "when the newest checkpoint was written").set(written)

    def write(self, step, numbers):
        self.gauge("step", "newest step in the log").set(step)
        self.gauge("log_timestamp_seconds", "when the newest record was read").set(time.time())
        for name, value in numbers.items():
            group, _, name = name.partition("/")
            for suffix, (unit, factor) in self.UNITS.items():
                if name == suffix or name.endswith("_" + suffix):
                    name, value = name[:-len(suffix)] + ("step_" if name == "ms" else "") + unit, value * factor
            name = "".join(letter if letter.isalnum() else "_" for letter in f"{group}_{name}")
            self.gauge(name, f"of the newest record of {group}").set(value)

    def save(self):
        """The port may be another run's, or for a while that of this script for a run that was killed."""
        try:
            self.server = self.server or self.serve()
        except OSError as error:
            if self.failure is None:
                warn(f"prometheus says: {error}; nothing is sent until that is over")
            self.failure = error

    def close(self):
        if self.server:
            self.server.shutdown()


def warn(text):
    try:
        print("warning: " + text, file=sys.stderr)
    except OSError:  # nobody reads it any more
        pass


def stdin_has_ended(wait_s):
    ready, _, _ = select.select([0], [], [], wait_s)
    return bool(ready) and os.read(0, 4096) == b""


def main():
    services = {sender.service: sender for sender in (Wandb, TensorBoard, MLflow, Trackio, Prometheus)}
    parser = argparse.ArgumentParser(description="Sends a run's log.jsonl to a service that draws curves.")
    parser.add_argument("services", metavar="SERVICES",
                        help=", ".join(services) + "[:PORT]; several with commas between them")
    parser.add_argument("run", metavar="RUN", help="the --out-dir of a run")
    parser.add_argument("--follow", action="store_true", help="go on until the run ends")
    parser.add_argument("--until-stdin-ends", action="store_true", help="go on until stdin ends, as train_gpt asks for")
    parser.add_argument("--project", default=os.environ.get("WANDB_PROJECT", "anvil"), help="at W&B [anvil]")
    parser.add_argument("--name", help="of the run at W&B [the name of its folder]")
    args = parser.parse_args()
    senders, failed = [], False
    for word in args.services.split(","):
        name, _, port = word.partition(":")
        if name not in services or (port and (name != "prometheus" or not port.isdecimal())):
            parser.error(f"{word}: expected {', '.join(services)} or prometheus:PORT")
        args.port = int(port or 0)
        try:
            senders.append(services[name](args))
        except ImportError as error:
            warn(f"{name} is not there ({error}): pip install {services[name].package or name}; nothing is sent")
            failed = True
        except Exception as error:  # a server that is away, say: none may disturb the other services
            warn(f"{name} says: {error}; nothing is sent")
            failed = True
    path = os.path.join(args.run, "log.jsonl")
    if senders and not os.path.exists(path):
        print(f"error: cannot read {path}; expected the --out-dir of a run", file=sys.stderr)
        return 2

    def each(method, *arguments):
        nonlocal failed
        for sender in list(senders):
            try:
                getattr(sender, method)(*arguments)
            except Exception as error:  # of many types, and none may disturb the run or the other service
                warn(f"{sender.service} says: {error}; nothing more is sent{sender.advice}")
                senders.remove(sender)
                failed = True

    log, over = Log(path), False
    try:
        while senders:
            last_look = over or not (args.follow or args.until_stdin_ends)
            for record in log.records():
                each("send", record)
                over = args.follow and record["type"] == "end"
            each("save")
            if last_look:
                break
            if args.until_stdin_ends:
                over = stdin_has_ended(WAIT_S)
            elif not over:
                time.sleep(WAIT_S)
    except KeyboardInterrupt:
        each("save")
    each("finish")
    return 2 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
