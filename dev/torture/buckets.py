"""SIGKILL for runs that keep their checkpoints in a bucket, too: the trainer, the copies, and then often the disk."""

import json
import pathlib
import shutil
import signal
import tempfile
import time

from harness import ROOT, Case, difference, kill_after

CONFIGS = ("adamw", "muon", "bf16", "ranks")
SAVES = {"checkpoint-every": 6, "keep": 1}


class Folder:
    """A bucket, for scripts/bucket.sh."""

    def __init__(self, path):
        self.place = path

    def names(self):
        return [str(path.relative_to(self.place)) for path in self.place.glob("*/*")]

    def read(self, name):
        """Throws FileNotFoundError where there is none."""
        return (self.place / name).read_bytes()


def damage(bucket):
    """What is wrong with a checkpoint that counts, which is one with a manifest; and how many those are. A copy that outlived its
    trainer may replace one meanwhile, which then does not count."""
    complete = 0
    for manifest in [name for name in bucket.names() if name.endswith("/manifest.json")]:
        wrong = ""
        try:
            text = bucket.read(manifest)
            for name, record in json.loads(text)["files"].items():
                path = f"{manifest.split('/')[0]}/{name}"
                if path not in bucket.names() or len(bucket.read(path)) != record["bytes"]:
                    wrong = f"{path} in the bucket is not that of its manifest"
            if bucket.read(manifest) != text:
                continue
        except FileNotFoundError:
            continue
        if wrong:
            return wrong, complete
        complete += 1
    return "", complete


def start(bench, out, config, bucket, err):
    script = ROOT / "scripts/bucket.sh"
    hooks = {"after_checkpoint": f"{script} put {bucket.place}", "before_resume": f"{script} get {bucket.place}"}
    return bench.start_session(bench.flags(out, config, resume="auto", **SAVES, **hooks), err)


def at_random(bench, new_bucket=Folder):
    """Kills one run again and again, the trainer alone or all that it has started, and resumes it, on a new disk in half of
    the cases. In the bucket each checkpoint with a manifest is complete at any time; at its end the run is compared."""
    longest_s = None
    while True:
        config = bench.random.choice(CONFIGS)
        bench.straight(config)
        out = bench.fresh("bucket")
        bucket = new_bucket(bench.scratch / f"{out.name}.far")
        is_whole = True  # nothing has killed it yet
        while True:
            began = time.monotonic()
            moment_s = bench.random.uniform(0, longest_s) if longest_s else 300
            with tempfile.TemporaryFile("w+") as err:
                process = start(bench, out, config, bucket, err)
                is_killed = kill_after(process, moment_s, bench.random.random() < 0.3)
                err.seek(0)
                said = err.read().strip()
            is_whole = is_whole and not is_killed
            if is_whole:  # the shortest, since others may keep the machine busy for a while
                longest_s = min(longest_s or moment_s, time.monotonic() - began)
            how = f"configuration {config}, killed after {moment_s:.4f} s"
            wrong, complete = damage(bucket)
            if process.returncode not in (0, -signal.SIGKILL) or "passed over" in said:
                wrong = f"exit code {process.returncode}: {said[-300:]}"
            if process.returncode == 0:
                wrong = wrong or difference(out, bench.straight(config))
                wrong = wrong or ("" if complete else "the run is over, and its bucket is empty")
            if is_killed or wrong:
                yield Case(wrong, how)
            if process.returncode == 0 or wrong:
                break
            if bench.random.random() < 0.5:
                bench.kill_sessions()  # with its disk goes the machine
                shutil.rmtree(out, ignore_errors=True)
        bench.remove(out, bench.scratch / f"{out.name}.far")
