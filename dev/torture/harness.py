"""What all parts share: tiny runs, what they must end as, the shim between a program and its files, and the counting.

A part is a generator of cases: it yields once for each thing it tried, with what was wrong, or "" (`Case`). The main
program draws from it until its number of cases is reached or its time is over.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TIMED_OUT = -1000

# Three micro-batches of 2 x 16 tokens per step, a checkpoint every other step: most of the time is spent saving.
TINY = {
    "num-layers": 2, "num-heads": 2, "channels": 32, "seq-len": 16, "batch-size": 2, "total-batch-size": 96,
    "steps": 24, "warmup-steps": 5, "checkpoint-every": 2, "val-every": 8, "val-tokens": 320, "sample-tokens": 0,
    "threads": 1, "seed": 7, "dtype": "fp32",
}  # fmt: skip
# What saves differently, by name.
CONFIGS = {
    "adamw": {},
    "muon": {"optimizer": "muon", "muon-learning-rate": 0.02},
    "waits": {"config": HERE / "waits.conf", "keep": 1},
    "bf16": {"dtype": "bf16"},
    "ranks": {"virtual-ranks": 2, "total-batch-size": 128},
    "four_ranks": {"virtual-ranks": 4, "total-batch-size": 256, "optimizer": "muon", "muon-learning-rate": 0.02},
    "nanochat": {"architecture": "nanochat", "optimizer": "muon", "recipe": "gpt2"},
    "best": {"save-best": True, "keep": 1, "val-every": 2, "learning-rate": 0.05, "lr-schedule": "constant"},
}


@dataclasses.dataclass
class Case:
    """One thing that was tried. `wrong`: "" or what was seen; `how`: what makes it again."""

    wrong: str
    how: str = ""


@dataclasses.dataclass
class Finished:
    code: int  # of a process that a signal ended: minus its number
    out: str
    err: str

    def last_words(self):
        return (self.err.strip().splitlines() or ["(nothing said)"])[-1][:300]


def compile_shim(path):
    compiler = os.environ.get("CXX", "g++")
    command = [compiler, "-std=c++20", "-shared", "-fPIC", "-O1", HERE / "system_calls.cpp", "-o", path, "-ldl"]
    subprocess.run(command, check=True)
    return path


def members(leader):
    """The living processes of a session, also those in other process groups."""
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):  # it has just ended
            continue
        if int(session) == leader and state != "Z":
            yield int(folder.name)


def kill_session(leader):
    """Returns when none of its processes is left, so that none makes a file afterwards."""
    while processes := list(members(leader)):
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.001)


def kill_after(process, moment_s, alone):
    """Kills a run at that moment, alone or with all that it has started. Whether it was still running."""
    try:
        process.wait(moment_s)
        return False
    except subprocess.TimeoutExpired:
        process.kill() if alone else kill_session(process.pid)
        process.wait()
        return True


class Bench:
    """A folder with a data set, a reference run of each configuration, and room for runs. Whoever removes the folder leaves the
    bench first, which ends what killed runs have left running."""

    def __init__(self, programs, shim, scratch, seed):
        self.programs = pathlib.Path(programs).resolve()
        self.scratch = pathlib.Path(scratch).resolve()
        self.random = random.Random(seed)
        self.shim = shim
        self._straight = {}
        self._number = 0
        self._sessions = []
        tokenize = [self.program("data/tokenize"), "--stories", "2000", "--tokenizer", "char"]
        subprocess.run([*tokenize, "--out", self.scratch / "data"], check=True, stdout=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill_sessions()

    def program(self, name):
        return self.programs / name

    def fresh(self, name="run"):
        """A name in the scratch folder that nothing has yet."""
        self._number += 1
        return self.scratch / f"{name}{self._number}"

    def flags(self, out, config="adamw", **changes):
        """The command of a run in the folder `out`; a change to None leaves a flag out."""
        values = dict(TINY)
        values |= {"train-data": self.scratch / "data/train_*.bin", "val-data": self.scratch / "data/val_*.bin"}
        values |= CONFIGS[config] | {"out-dir": out} | {name.replace("_", "-"): v for name, v in changes.items()}
        command = [self.program("train_gpt")]
        for name, value in values.items():
            if isinstance(value, bool):
                command.append(f"--{name}" if value else f"--no-{name}")
            elif value is not None:
                command += [f"--{name}", str(value)]
        return command

    def run(self, command, timeout_s=60, torture=None, **environment):
        """Runs it to its end. `torture`: the shim's settings without TORTURE_, of the files below their DIR."""
        process = self.start(command, torture, **environment)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            return Finished(TIMED_OUT, out, err)
        return Finished(process.returncode, out, err)

    def start(self, command, torture=None, stdout=subprocess.PIPE, **environment):
        env = dict(os.environ, **{name: str(value) for name, value in environment.items()})
        if torture:
            env["LD_PRELOAD"] = str(self.shim)
            env |= {f"TORTURE_{name}": str(value) for name, value in torture.items()}
        return subprocess.Popen(
            [str(word) for word in command], cwd=self.scratch, env=env, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE,
        )  # fmt: skip

    def start_session(self, command, err):
        """Starts a run in a session of its own. What the run starts belongs to it too, and may outlive the run."""
        self._sessions = [leader for leader in self._sessions if any(members(leader))]  # the others' numbers may be given again
        process = subprocess.Popen(
            [str(word) for word in command], cwd=self.scratch, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err,
        )  # fmt: skip
        self._sessions.append(process.pid)
        return process

    def kill_sessions(self):
        for leader in self._sessions:
            kill_session(leader)

    def straight(self, config="adamw"):
        """The undisturbed run of a configuration, made when it is first asked for: its folder."""
        if config not in self._straight:
            out = self.scratch / f"straight_{config}"
            finished = self.run(self.flags(out, config))
            if finished.code != 0:
                raise SystemExit(f"torture: the undisturbed run of {config} failed: {finished.last_words()}")
            self._straight[config] = out
        return self._straight[config]

    def count_calls(self, config="adamw", **changes):
        """How many calls that change files a whole run makes; from one run to the next it differs by a few."""
        out = self.fresh("counted")
        self.run(self.flags(out, config, **changes), torture={"DIR": out, "COUNT": out.with_suffix(".count")})
        self.remove(out)
        return int(out.with_suffix(".count").read_text())

    def interrupted(self, config="adamw", **changes):
        """The folder of a run that was killed when three quarters of it were done."""
        out, calls = self.fresh("source"), self.count_calls(config, **changes)
        self.run(self.flags(out, config, **changes), torture={"DIR": out, "AT": calls * 3 // 4, "DO": "before"})
        for left in [*out.glob("*.tmp"), *out.glob("*.old")]:
            self.remove(left)
        return out

    def resume(self, out, config="adamw", **changes):
        return self.run(self.flags(out, config, resume="auto", **changes))

    def wrong_end(self, out, config="adamw", finished=None):
        """Resumes the run in `out`, unless it `finished`, and says in what its end is not the undisturbed run's."""
        finished = finished or self.resume(out, config)
        if finished.code != 0:
            return f"the run cannot be resumed: exit code {finished.code}, {finished.last_words()}"
        return difference(out, self.straight(config))

    def remove(self, *folders):
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


LEFTOVER = re.compile(r"\.(tmp|old)(\.\d+)?$")


def best_of(out):
    """Where the link to the best checkpoint leads; "" without one."""
    link = pathlib.Path(out) / "best"
    return os.readlink(link) if link.is_symlink() else ""


def checkpoints(out):
    """Steps with a folder that is a checkpoint by its name."""
    return sorted(int(path.name[5:]) for path in pathlib.Path(out).glob("step_*") if path.name[5:].isdigit())


def steps_of(out):
    """step -> (loss, norm) of log.jsonl; a step made again counts as it was last. Cut lines are passed over."""
    steps, log = {}, pathlib.Path(out) / "log.jsonl"
    for line in log.read_text(errors="replace").splitlines() if log.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and record.get("type") == "step":
            steps[record["step"]] = (record["loss"], record["norm"])
    return steps


def difference(out, other):
    """"" if two runs ended with the same weights and optimizer state, byte for byte, and had the same losses on the way.

    Steps that are missing in the log are none: its end is written when the system likes, and a crash may take it.
    """
    out, other = pathlib.Path(out), pathlib.Path(other)
    left = [path.name for path in out.iterdir() if LEFTOVER.search(path.name)]
    if left:
        return f"left behind: {left}"
    if best_of(out) != best_of(other):
        return f"the best checkpoint is {best_of(out)} and not {best_of(other)}"
    return difference_of_ends(out, other)


def difference_of_ends(out, other):
    """The same of a run that could not clean up: there may be more in its folder."""
    last = checkpoints(other)[-1]
    if checkpoints(out)[-1:] != [last]:
        return f"the last checkpoint is {checkpoints(out)[-1:]} and not {last}"
    a, b = (folder / f"step_{last:08d}" for folder in (out, other))
    if sorted(os.listdir(a)) != sorted(os.listdir(b)):
        return f"{a.name} has other files: {sorted(os.listdir(a))}"
    for name in os.listdir(b):
        if name.endswith((".safetensors", "tokenizer.json")) and (a / name).read_bytes() != (b / name).read_bytes():
            return f"{a.name}/{name} differs"
    want = steps_of(other)
    wrong = [step for step, values in steps_of(out).items() if values != want.get(step)]
    return f"the log's step {wrong[0]} has another loss or norm" if wrong else ""


def died(finished):
    return finished.code == -signal.SIGKILL
