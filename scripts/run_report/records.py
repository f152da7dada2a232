"""What a run's log.jsonl says: its records, series of numbers over the steps, and the flags that were changed."""

import functools
import json
import os
import re
import statistics
import sys


class UserError(Exception):
    pass


def read_records(path):
    """The records that count, in the order of the file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().split("\n")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; expected the --out-dir of a run") from None
    records, bad = [], []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line) if line else None
        except (ValueError, RecursionError):
            record = "cut"
        if is_sound(record):
            if record["type"] == "resume":
                # What stands above is void beyond this step, and a line cut by the kill before is no damage.
                step = record.get("step", 0)
                records = [r for r in records if r["type"] in ("start", "resume") or r.get("step", 0) <= step]
                bad = bad[:-1] if bad and bad[-1] == number - 1 else bad
            records.append(record)
        elif line:
            bad.append(number)
    if bad and bad[-1] == len(lines):  # no line break follows it: cut short
        bad.pop()
    for number in bad:
        print(f"warning: {path}:{number} is not a record; left out", file=sys.stderr)
    if not records:
        raise UserError(f"{path} holds no records; expected the log of a run that has started")
    return records


STEPPED = ("step", "val", "tasks", "ranks", "sample", "checkpoint", "resume")  # records that have a step
OBJECTS = ("config", "machine", "build", "data", "model", "tasks")


def is_sound(record):
    """Whether its fields, where they are used by name, are of the type that doc/formats.md says."""
    if not isinstance(record, dict) or not isinstance(record.get("type"), str):
        return False
    step = record.get("step", 0)
    return (isinstance(step, int) and 0 <= step < 1 << 53 and ("step" in record or record["type"] not in STEPPED)
            and isinstance(record.get("file", ""), str) and all(isinstance(record.get(name, {}), dict) for name in OBJECTS)
            and all(isinstance(of, dict) for of in record.get("tasks", {}).values())
            and (record["type"] != "ranks" or all(is_number(record.get(name)) for name in ("min_ms", "median_ms", "max_ms", "slowest"))))  # fmt: skip


def is_number(value):
    """Finite, and small enough for arithmetic with it."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e150


def series(records, kind, key):
    """[(step, value)] with finite values, one per step (the latest), in order."""
    points = {}
    for record in records:
        if record["type"] == kind and is_number(record.get(key)):
            points[record["step"]] = record[key]
    return sorted(points.items())


def training_seconds(records):
    """The time in steps, as --time-budget and --results count it: a run that follows its time leaves out its first ten steps."""
    uncounted = 10 if last_header(records).get("config", {}).get("schedule-by") == "time" else 0
    return sum(ms for step, ms in series(records, "step", "ms") if step > uncounted) / 1000


def last_mean(points, window):
    return statistics.fmean(value for _, value in points[-window:])


def smoothed(points, window):
    """Of each point the mean over as many before it as after it, up to `window` in all: no lag, and at both ends the curve."""
    sums = [0.0]
    for _, value in points:
        sums.append(sums[-1] + value)
    result = []
    for i, (step, _) in enumerate(points):
        half = min((window - 1) // 2, i, len(points) - 1 - i)
        result.append((step, (sums[i + half + 1] - sums[i - half]) / (2 * half + 1)))
    return result


def smoothing(train):
    """How many points smoothed() takes of this curve: an odd number, a fiftieth of them."""
    return max(1, len(train) // 50 // 2 * 2 + 1)


def flops_per_token(records):
    flops = last_header(records).get("model", {}).get("flops_per_token", 0)
    return flops if is_number(flops) and flops > 0 else 0


def state_of(records):
    ends = [r for r in records if r["type"] == "end"]
    return f"ended: {ends[-1].get('reason')}" if ends and ends[-1] is records[-1] else "not ended"


def last_header(records):
    return next((r for r in reversed(records) if r["type"] in ("start", "resume")), {})


def last_samples(records, most):
    """Those of the last step that has any."""
    samples = [r for r in records if r["type"] == "sample"]
    step = samples[-1].get("step", 0) if samples else 0
    return step, [s for s in samples if s.get("step", 0) == step][-most:]


@functools.cache
def default_flags():
    """{name: default} of `train` as doc/flags.md has them; {} if it is not there."""
    try:
        with open(os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../doc/flags.md"), encoding="utf-8") as file:
            text = re.split(r"^## ", file.read(), flags=re.MULTILINE)[1]
    except (OSError, IndexError):
        return {}
    row = r"^\| `(?:--)?(?:\[no-\])?([a-z0-9-]+)[^`]*` \| (?:`([^`]*)`)? *\|"
    return {name: default.replace("\\|", "|") for name, default in re.findall(row, text, re.MULTILINE)}


def changed_flags(config):
    """[(name, value)] of those that are not their defaults."""
    def is_default(value, default):
        if value is None:
            return True  # the default's word, such as `recipe`
        if isinstance(value, bool) or default is None:
            return default == str(value).lower()
        if isinstance(value, (int, float)):
            try:
                return float(default) == value
            except ValueError:
                return value == -1  # `recipe`, say, which -1 stood for once
        return value == default
    defaults = default_flags()
    return [(name, value) for name, value in config.items() if not is_default(value, defaults.get(name))]
