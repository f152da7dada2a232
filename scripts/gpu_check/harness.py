"""What every part of scripts/gpu_check.sh stands on: time limits, commands that end with them, results that stay.

A part is a list of steps under one time limit. Whatever a step finds is written at once, a whole line at a time, so that a
part that is killed at any moment has lost only what was still running.
"""
import contextlib
import ctypes
import json
import os
import pathlib
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tarfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CARRIED = ROOT / ".deps/carried.tar.xz"  # scripts/carry_deps.sh --programs
UNPACKED = ROOT / "build/carried"  # and what says so
SHM = pathlib.Path("/dev/shm")
SHM_BYTES = 8e9  # free in memory: four checkpoints of GPT-2 124M
GRACE_S = 3  # between SIGTERM and SIGKILL
# Where programs lie that the Makefile made.
BUILT = {"train_gpt": "train_gpt", "tokenize": "data/tokenize", "gpu-tests": "build/cuda/gpu-tests"}


class Failed(Exception):
    """A check that did not hold: the text says what was found."""


class NotRun(Exception):
    """What cannot be checked on this machine: the text says why."""


class OutOfTime(Exception):
    """The step or the part is over."""


def runs_folder():
    """What training runs leave, until they are judged: in memory where there is room, for a slow disk takes minutes."""
    if os.environ.get("RUNS"):
        return pathlib.Path(os.environ["RUNS"]) / "gpu_check_run"
    if SHM.is_dir() and shutil.disk_usage(SHM).free > SHM_BYTES:
        return SHM / f"gpu_check{str(ROOT).replace('/', '-')}"
    return ROOT / "build/cuda/gpu_check_run"


RUNS = runs_folder()


def benches():
    return sorted(path.stem for path in (ROOT / "dev/bench").glob("*.cu"))


def die_with_parent():
    """In a child: SIGKILL when gpu_check is gone, however it went."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def end_group(process, at_once=False):
    """Ends a command and all that it started. at_once: before it can write what nobody will read."""
    for sign, seconds in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, 30))[at_once:]:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            if sign == signal.SIGKILL:
                return
    process.wait()


class Ran:
    """A command that is over: its exit code, what it printed, how long it took, and whether its time was up."""

    def __init__(self, code, text, seconds, timed_out, stopped):
        self.code, self.text, self.seconds, self.timed_out, self.stopped = code, text, seconds, timed_out, stopped

    def why(self):
        """In a few words why it failed."""
        lines = [line for line in self.text.strip().splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("error: ")]
        said = (errors or lines or ["it printed nothing"])[-1]
        return f"took longer than {self.seconds:.0f} s" if self.timed_out else f"exit code {self.code}: {said[:200]}"


class Part:
    """One part that runs: where results go, until when, and what has failed."""

    def __init__(self, name, out, seconds):
        self.name, self.out = name, out
        self.deadline = self.step_deadline = time.monotonic() + seconds
        self.step = self.step_began = None
        self.failed = self.missed = 0
        self.log = open(out / f"{name}.log", "ab", buffering=0)
        self.peak = None  # FLOP/s of a large GEMM in bf16, once it is measured
        self.tested = set()  # topics whose tests have run
        self.broken = set()  # the values of --attention whose tests have failed
        self.programs = {}
        self.carried = None  # whether programs that were carried along are used; None: not looked yet

    # ---- results ---------------------------------------------------------------------------------------------------

    def add_row(self, row):
        """A line of JSON, in one write: it is there or it is not."""
        line = (json.dumps(row, allow_nan=False) + "\n").encode()
        handle = os.open(self.out / "results.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line)
            os.fsync(handle)
        finally:
            os.close(handle)

    def say(self, text):
        print(text, flush=True)
        self.log.write((text + "\n").encode())

    def result(self, check, result, note="", seconds=None, **values):
        """What came of a check: ok, FAILED, measured (there is nothing to hold it against), not run, not reached."""
        seconds = time.monotonic() - self.step_began if seconds is None else seconds
        self.failed += result == "FAILED"
        self.missed += result == "not reached"
        row = {"type": "check", "part": self.name, "check": check, "result": result, "note": note,
               "seconds": round(seconds, 1), **values}  # fmt: skip
        self.add_row(row)
        line = f"{check:<34} {result:<11} {seconds:6.1f} s  {note}".rstrip()
        with open(self.out / "summary.txt", "a", encoding="utf-8") as file:
            file.write(line + "\n")
        self.say("  " + line)

    def check(self, name, holds, note="", **values):
        self.result(name, "ok" if holds else "FAILED", note, **values)
        return holds

    @contextlib.contextmanager
    def isolated(self, check):
        """What goes wrong inside is the result of this check, and stops nothing else. Time that is up stops the step."""
        self.step_began = time.monotonic()
        try:
            yield
        except Failed as error:
            self.result(check, "FAILED", str(error))
        except NotRun as error:
            self.result(check, "not run", str(error))
        except OutOfTime:
            raise
        except Exception as error:  # pylint: disable=broad-except
            self.result(check, "FAILED", f"{type(error).__name__}: {error}")

    # ---- time and commands -----------------------------------------------------------------------------------------

    def left(self):
        return min(self.step_deadline, self.deadline) - time.monotonic()

    def run(self, command, limit=None, env=None, on_line=None, quiet=False, cwd=ROOT):
        """Runs a command; on_line(text) for each line that it prints: True ends the command, whose work is then done."""
        seconds = min(self.left() - GRACE_S, limit or 1e9)
        if seconds <= 0:
            raise OutOfTime
        self.log.write(("$ " + " ".join(map(str, command)) + "\n").encode())
        began = time.monotonic()
        process = subprocess.Popen([str(word) for word in command], cwd=cwd, env={**self.environment(), **(env or {})},
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   start_new_session=True, preexec_fn=die_with_parent)  # fmt: skip
        text, rest, timed_out, stopped = [], b"", False, False
        os.set_blocking(process.stdout.fileno(), False)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                while True:
                    left = seconds - (time.monotonic() - began)
                    if left <= 0:
                        timed_out = True
                        break
                    ready = selector.select(min(left, 0.5))
                    data = process.stdout.read(1 << 16) if ready else None
                    if data == b"" or (not ready and process.poll() is not None):
                        break
                    if data:
                        self.log.write(data)
                        if not quiet:
                            sys.stdout.write(data.decode(errors="replace"))
                            sys.stdout.flush()
                        *lines, rest = (rest + data).split(b"\n")
                        text += [line.decode(errors="replace") for line in lines]
                    else:
                        lines = []
                    for line in [*(line.decode(errors="replace") for line in lines)] or [None]:
                        stopped = stopped or bool(on_line and on_line(line))
                    if stopped:
                        break
            if not timed_out and not stopped:
                process.wait(max(0.1, seconds - (time.monotonic() - began)))
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            end_group(process, at_once=stopped)
            process.stdout.close()
        text.append(rest.decode(errors="replace"))
        code = 0 if stopped else process.returncode if process.returncode >= 0 else 128 - process.returncode
        return Ran(code, "\n".join(text), time.monotonic() - began, timed_out, stopped)

    # ---- programs --------------------------------------------------------------------------------------------------

    def environment(self):
        return {**os.environ, **self.library_path()}

    def library_path(self):
        """What was carried along was linked elsewhere: here the libraries lie where Python's wheels or the toolkit are."""
        if not self.carried:
            return {}
        folders = [str(UNPACKED / "lib"), *map(str, library_folders()), os.environ.get("LD_LIBRARY_PATH", "")]
        return {"LD_LIBRARY_PATH": ":".join(folder for folder in folders if folder)}

    def unpack_carried(self):
        """Whether the programs here are those that were built elsewhere, carried along, and run here."""
        stamp = UNPACKED / "stamp"
        if self.carried is not None or not CARRIED.is_file() or ((ROOT / "train_gpt").exists() and not stamp.is_file()):
            return self.carried
        told = f"{CARRIED.stat().st_size} bytes of {CARRIED.name}"
        if not stamp.is_file() or stamp.read_text() != told:
            with tarfile.open(CARRIED) as archive:
                archive.extractall(ROOT)
            UNPACKED.mkdir(parents=True, exist_ok=True)
            stamp.write_text(told)
        self.carried = True
        if (ROOT / "train_gpt").exists():
            ran = self.run([ROOT / "train_gpt", "--help-all"], limit=30, quiet=True)
            if ran.code != 0:
                self.result("programs carried along", "not run", f"they do not run here, and are built anew: {ran.why()}")
                self.carried = False
        return self.carried

    def program(self, name):
        """A program's path: as it was carried along, as it lies there with NO_BUILD=1, else as make makes it."""
        target = BUILT.get(name, f"build/cuda/bench/{name}")
        if name not in self.programs:
            as_it_is = self.unpack_carried() or os.environ.get("NO_BUILD") == "1"
            if not (as_it_is and os.access(ROOT / target, os.X_OK)):
                if as_it_is and not self.carried:
                    raise Failed(f"{target} is not there, and NO_BUILD=1: run make VARIANT=cuda {target}")
                self.make(target)
            self.programs[name] = ROOT / target
        return self.programs[name]

    def make(self, *targets):
        jobs = os.environ.get("JOBS") or os.cpu_count()
        chips = [] if gpu_name() or os.environ.get("GPU_ARCHS") else ["GPU_ARCHS=90"]
        command = ["make", "--no-print-directory", "-k", f"-j{jobs}", "VARIANT=cuda", *chips, *targets]
        # What is built takes time from the part, not from the step that needs it first.
        step_deadline, began = self.step_deadline, time.monotonic()
        self.step_deadline = self.deadline
        try:
            ran = self.run(command, quiet=len(targets) == 1)
        finally:
            self.step_deadline = step_deadline + time.monotonic() - began
        if ran.code != 0:
            raise Failed(f"cannot be built: {' '.join(command)}: {ran.why()}")
        return ROOT / targets[0]


def library_folders():
    """Folders with NVIDIA's libraries: the wheels of the Python that is called python3, then the toolkit's."""
    wheels = os.environ.get("NVIDIA_WHEELS")
    if not wheels:
        asked = subprocess.run(["python3", "-c", 'import sysconfig; print(sysconfig.get_path("purelib"))'],
                               capture_output=True, text=True, check=False)  # fmt: skip
        wheels = asked.stdout.strip() + "/nvidia"
    folders = sorted(pathlib.Path(wheels).glob("*/lib"))
    return folders + [folder for folder in [pathlib.Path("/usr/local/cuda/lib64")] if folder.is_dir()]


def smi(query, what="gpu"):
    """nvidia-smi's answer, a list of fields for each line; none if there is no GPU."""
    try:
        asked = subprocess.run(["nvidia-smi", f"--query-{what}={query}", "--format=csv,noheader,nounits"],
                               capture_output=True, text=True, check=False, timeout=30)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    if asked.returncode != 0:
        return []
    return [[field.strip() for field in line.split(",")] for line in asked.stdout.splitlines() if line.strip()]


def gpu_name():
    names = smi("name")
    return names[0][0] if names else ""


class Clocks:
    """The clocks and the power of the first GPU while something runs: the median and the largest, once it is over."""

    def __enter__(self):
        self.process = self.text = None
        with contextlib.suppress(OSError):
            self.process = subprocess.Popen(
                ["nvidia-smi", "--query-gpu=clocks.sm,clocks.mem,power.draw", "--format=csv,noheader,nounits", "-lms",
                 "1000"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
                start_new_session=True, preexec_fn=die_with_parent)  # fmt: skip
        return self

    def __exit__(self, *_):
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.text = self.process.communicate()[0].decode(errors="replace")

    def seen(self):
        fields = [line.split(",") for line in (self.text or "").splitlines() if re.fullmatch(r"[\d., ]+", line.strip())]
        columns = list(zip(*[[float(field) for field in line] for line in fields if len(line) == 3]))
        if not columns:
            return {}
        names = ("sm_mhz", "memory_mhz", "watts")
        return {name: max(column) for name, column in zip(names, columns)} | {
            "median_sm_mhz": sorted(columns[0])[len(columns[0]) // 2]}  # fmt: skip
