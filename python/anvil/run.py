"""Starts, watches and stops runs of ./train_gpt from Python, such as a notebook. The program is a process of its own."""

import os
import pathlib
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import time

from .errors import AnvilError
from .log import follow_log, log_path, read_log

START_S = 0.05  # interval of checks while a process starts


def find_program(program=None, name="train_gpt"):
    """The path of the program: `program` if given, else ANVIL_TRAIN_GPT, else PATH, the wheel, or this checkout."""
    if program is not None:
        if not os.access(program, os.X_OK) or os.path.isdir(program):
            raise AnvilError(f"{program}: no such program; `make` builds {name}")
        return str(pathlib.Path(program).resolve())
    named = os.environ.get("ANVIL_TRAIN_GPT") if name == "train_gpt" else None
    if named:
        return find_program(named, name)
    found = shutil.which(name) or shutil.which(name, path=sysconfig.get_path("scripts"))
    checkout = pathlib.Path(__file__).resolve().parent.parent.parent
    if not found and (checkout / "train_gpt.cu").exists() and os.access(checkout / name, os.X_OK):
        found = str(checkout / name)
    if not found:
        raise AnvilError(f"{name} is not found: build it with `make`, then give program=, set ANVIL_TRAIN_GPT or put it into PATH")
    return found


def arguments_of(flags):
    """["--seq-len", "64", "--no-shuffle"] for seq_len=64, shuffle=False; None omits a flag, a list is joined with commas."""
    arguments = []
    for name, value in flags.items():
        flag = name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            arguments.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            arguments.append(f"--{flag}={text}")
    return arguments


def failure(arguments, exit_code, output):
    lines = [line for line in output.splitlines() if line.startswith("error: ")] or output.splitlines()[-1:]
    said = lines[-1] if lines else "it said nothing"
    if exit_code < 0:
        said = f"ended by {signal.Signals(-exit_code).name}"
    return AnvilError(f"{os.path.basename(arguments[0])} {arguments[1]}: exit code {exit_code}: {said}", exit_code, output)


def run_command(command, program=None, **flags):
    """The output of ./train_gpt COMMAND: run_command("plan", depth=12), run_command("generate", resume="run/d4", ...)."""
    arguments = [find_program(program), command, *arguments_of(flags)]
    done = subprocess.run(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise failure(arguments, done.returncode, done.stderr.decode("utf-8", errors="replace"))
    return done.stdout.decode("utf-8", errors="replace")


def start(out_dir, program=None, cwd=None, env=None, **flags):
    """Starts a training run with its flags as arguments, start("run/a", depth=4, seq_len=512), and returns a Run.

    Returns when the run has begun to log. If ./train_gpt refuses to start, raises an AnvilError with its error line. The
    process is in a group of its own, so that Ctrl-C in a notebook interrupts the cell and not the run."""
    arguments = [find_program(program), "train", f"--out-dir={out_dir}", *arguments_of(flags)]
    folder = pathlib.Path(cwd or ".").resolve()
    path = log_path(folder / out_dir)
    before = path.stat().st_mtime_ns if path.exists() else None
    output = tempfile.TemporaryFile()
    process = subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=cwd, start_new_session=True,
        env={**os.environ, **(env or {})},
    )  # fmt: skip
    run = Run(folder / out_dir, process, arguments, output)
    try:
        while process.poll() is None and (not path.exists() or path.stat().st_mtime_ns == before):
            time.sleep(START_S)
    except BaseException:  # Ctrl-C: the caller gets no Run, so it could not stop the process
        run.kill()
        raise
    if process.poll() is not None:
        run.wait()  # raises if it failed
    return run


class Run:
    """A training run that start() has started, or with Run("run/d4") any run's folder, to read it."""

    def __init__(self, out_dir, process=None, arguments=(), output=None):
        self.out_dir, self.process, self.arguments, self._output = pathlib.Path(out_dir), process, list(arguments), output

    def __del__(self):
        if self._output:
            self._output.close()

    def __repr__(self):
        code = self.process.poll() if self.process else None
        state = "not ours" if not self.process else "running" if code is None else f"exit code {code}"
        return f"Run({str(self.out_dir)!r}, {state})"

    @property
    def output(self):
        """The program's output so far."""
        if not self._output:
            return ""
        descriptor, parts = self._output.fileno(), []
        while block := os.pread(descriptor, 1 << 20, sum(map(len, parts))):  # pread: the file position is shared with the program
            parts.append(block)
        return b"".join(parts).decode("utf-8", errors="replace")

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def records(self, kind=None):
        """Yields the log's records as they are written, until the run ends: for record in run.records("step"). kind: only
        those of one type.

        For a run that start() did not start: the records so far."""
        if self.process is None:
            return iter(read_log(self.out_dir, kind))
        return follow_log(self.out_dir, lambda: not self.is_running(), kind)

    def log(self, kind=None):
        """The records so far: read_log()."""
        return read_log(self.out_dir, kind)

    def wait(self, timeout=None):
        """Waits for the end. Raises an AnvilError with the program's error line if it failed."""
        self._need_process("wait for")
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AnvilError(f"{self.out_dir}: still running after {timeout} s") from None
        if code != 0:
            raise failure(self.arguments, code, self.output)
        return self

    def stop(self, timeout=None):
        """Asks the run to save a checkpoint and end, and waits for that. Does nothing if the run has ended."""
        self._need_process("stop")
        if self.is_running():
            self.process.send_signal(signal.SIGTERM)
        return self.wait(timeout)

    def kill(self):
        """Kills the process, without a checkpoint."""
        self._need_process("kill")
        if self.is_running():
            self.process.kill()
        self.process.wait()

    def _need_process(self, what):
        if self.process is None:
            raise AnvilError(f"{self.out_dir}: this run was not started here, there is nothing to {what}")
