"""Reads a run's log.jsonl, at once or while it is written. doc/formats.md lists the types of records and their fields."""

import json
import math
import pathlib
import time

from .errors import AnvilError

NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def log_path(run):
    path = pathlib.Path(run)
    return path if path.suffix == ".jsonl" else path / "log.jsonl"


def record_in(line):
    """The record of a line; None if a kill has truncated it."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("type"), str):
        return None
    # Converts the log's words for numbers that JSON lacks (nan, inf), except in text fields.
    texts = ("type", "reason", "text", "prompt", "path", "file", "message", "what")
    return {k: NOT_FINITE.get(v, v) if isinstance(v, str) and k not in texts else v for k, v in record.items()}


def read_log(run, kind=None):
    """The valid records, in order: if a resumed run has repeated a step, the later ones. kind: only those of one type."""
    path, records = log_path(run), []
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise AnvilError(f"cannot read {path}: {error.strerror}; expected the --out-dir of a run") from None
    for line in text.split("\n"):
        record = record_in(line)
        if record is None:
            continue
        if record["type"] == "resume":  # earlier records of later steps are void
            step = record.get("step", 0)
            records = [r for r in records if r["type"] in ("start", "resume") or r.get("step", 0) <= step]
        records.append(record)
    return [record for record in records if kind in (None, record["type"])]


def log_frame(run, kind="step"):
    """The records of one type as a pandas.DataFrame over `step`."""
    try:
        import pandas
    except ImportError:
        raise AnvilError("log_frame() needs pandas: pip install pandas; read_log() does without") from None
    frame = pandas.DataFrame(read_log(run, kind)).drop(columns="type", errors="ignore")
    return frame.set_index("step") if "step" in frame else frame


def follow_log(run, is_over, kind=None, poll=0.2):
    """Yields records as they are written, from the first on, until is_over() is true and all have been read.

    A `resume` record makes earlier records of later steps void. If a new run replaces the log, it is read from its start."""
    path, offset, rest = log_path(run), 0, b""
    while True:
        over = is_over()  # before reading, so that all that was written until then is read
        try:
            with open(path, "rb") as file:
                file.seek(0, 2)
                if file.tell() < offset:
                    offset, rest = 0, b""
                file.seek(offset)
                new = file.read()
        except FileNotFoundError:
            new = b""
        offset += len(new)
        *lines, rest = (rest + new).split(b"\n")
        for line in lines:
            record = record_in(line.decode("utf-8", errors="replace"))
            if record is not None and kind in (None, record["type"]):
                yield record
        if over:
            return
        if not new:
            time.sleep(poll)
