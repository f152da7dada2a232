#!/usr/bin/env python3
"""Writes the results of a GPU run into doc/performance.md, between its markers.

    dev/results/perf_table.py                    of each GPU the newest folder under doc/results/: the most important rows
    dev/results/perf_table.py RESULTS            all tables of a folder that scripts/gpu_check.sh wrote, doc/results/GPU-DATE
    dev/results/perf_table.py --check            exit code 1 if the page differs from what it would write
    dev/results/perf_table.py --validate FILE    exit code 1 unless every line of FILE is a valid row

RESULTS, or each of its folders first, second, ..., has machine.json (hardware and software) and results.jsonl: rows of
dev/bench (bench.h) and of bench-comm, training runs, checks, ops and kernels of a micro-step, and the model of `plan`. Rows in which another
library is faster stay in the table. doc/results/predicted-*.json has the predictions; RESULTS/notes.json,
{"what": "reason"}, explains deviations from them. Needs only Python 3.
"""
import argparse
import json
import math
import pathlib
import re
import sys

from pages import UserError, renew_page

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "doc/performance.md"
NOT_MEASURED = "not measured"
MARKERS = "<!-- results: dev/results/perf_table.py -->\n", "<!-- end of results -->\n"

CALLS = ["first", "second", "third", "fourth", "comm"]  # in this order, where a later row counts
TYPES = ("bench", "train", "check", "op", "kernel", "model", "comm")
TEXTS = {"op", "what", "shape", "device", "dtype", "bound"}
NUMBERS = {"median_ms", "min_ms", "p90_ms", "bytes", "flops", "peak", "percent", "runs"}

# Goals, whose sources are in doc/performance.md: (kind, pattern of `what`, goal); the first match counts. fraction: percent
# of the peak; rival: at most this multiple of the rival's time; none: kernels of other libraries, and launches themselves.
GOALS = [
    ("none", r"cudnn_|sustained|launch,", 0),
    ("fraction", r"layernorm_backward|rmsnorm_backward", 75),
    ("rival", r"attention_", 1.5),
    ("fraction", r"matmul_", 88),
    ("fraction", r"", 85),
]


def read_rows(path):
    """The rows of a file of JSON lines. If several have the same KEYS, as when a benchmark is run again, the last one counts,
    in the place of the first."""
    rows = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}:{number}: not a line of JSON: {error}") from None
        if not isinstance(row, dict) or row.get("type") not in TYPES:
            raise UserError(f"{path}:{number}: expected an object whose type is one of {', '.join(TYPES)}")
        if row["type"] == "bench":
            check_bench_row(f"{path}:{number}", row)
        rows[tuple(row.get(key) for key in KEYS)] = row
    return list(rows.values())


# Rows with equal values of these keys measure the same thing.
KEYS = ("type", "device", "what", "shape", "dtype", "attention", "run", "algorithms", "head_rows", "part", "check", "op",
        "kernel", "ranks", "buffer")  # fmt: skip


def check_bench_row(where, row):
    for key in TEXTS:
        if not isinstance(row.get(key), str) or not row[key]:
            raise UserError(f"{where}: {key}: expected text, found {row.get(key)!r}")
    for key in NUMBERS:
        value = row.get(key)
        if not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
            raise UserError(f"{where}: {key}: expected a number above zero, found {value!r}")
    if not row["min_ms"] <= row["median_ms"] <= row["p90_ms"]:
        raise UserError(f"{where}: expected min_ms <= median_ms <= p90_ms")
    if row["bound"] not in ("memory", "compute"):
        raise UserError(f"{where}: bound: expected memory or compute, found {row['bound']}")
    if ("rival" in row) != ("rival_ms" in row):
        raise UserError(f"{where}: expected both or none of rival and rival_ms")


def goal_of(row):
    """The goal as text, and whether the row reaches it; empty if that is unknown because the rival was not measured."""
    for kind, pattern, goal in GOALS:
        if re.match(pattern, row["what"]):
            break
    if kind == "fraction":
        return f"{goal} %", row["percent"] >= goal
    if kind == "none" or row.get("rival") is None:
        return "", None
    return f"{goal} x {row['rival']}", row["median_ms"] <= goal * row["rival_ms"]


def table(header, rows):
    lines = [header, ["---"] + ["--:"] * (len(header) - 1)] + rows
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def bench_table(rows):
    lines = []
    for row in rows:
        seconds = row["median_ms"] * 1e-3
        rate = f"{row['bytes'] / seconds / 1e9:.0f} GB/s"
        if row["bound"] == "compute":
            rate = f"{row['flops'] / seconds / 1e12:.1f} TFLOP/s"
        percent, digits = f"{row['percent']:.0f} %", 1
        if row["op"] == "launches":
            rate, percent, digits = "", "", 2
        rival = ""
        if "rival" in row:
            times = row["median_ms"] / row["rival_ms"]
            rival = f"{row['rival']} {row['rival_ms'] * 1e3:.1f} us ({times:.2f} x)"
        goal, met = goal_of(row)
        verdict = "" if met is None else f"{goal}: {'met' if met else '**missed**'}"
        more = "".join(f", {name} {row[key]}" for key, name in (("algorithms", "algorithms:"), ("head_rows", "rows:")) if key in row)
        lines.append([f"{row['what']}, {row['shape']}, {row['dtype']}{more}", f"{row['median_ms'] * 1e3:.{digits}f}",
                      f"{row['min_ms'] * 1e3:.{digits}f} to {row['p90_ms'] * 1e3:.{digits}f}", rate, percent, rival,
                      verdict])  # fmt: skip
    return table(["op, shape, type", "median us", "min to p90", "rate", "of peak", "beside it", "goal"], lines)


def run_text(row):
    chunk = re.search(r"head (\d+)", row.get("run", ""))
    return row["what"] + (f", head in chunks of {chunk[1]} rows" if chunk else "")


def train_table(rows):
    lines = [[run_text(row), row["attention"], f"{row['tokens_per_second']:.0f}", f"{row['step_ms']:.2f}",
              "" if row.get("mfu_percent") is None else f"{row['mfu_percent']:.1f} %"] for row in rows]  # fmt: skip
    return table(["run", "attention", "tok/s", "step ms", "MFU"], lines)


def checks_table(rows):
    counts = {}
    for row in rows:
        counts[row["result"]] = counts.get(row["result"], 0) + 1
    text = "Checks: " + ", ".join(f"{count} {result}" for result, count in counts.items()) + ".\n\n"
    return text + table(["check", "result", "what was found"], [[row["check"], row["result"] if row["result"] != "FAILED" else
                        "**FAILED**", row["note"].replace("|", "\\|")] for row in rows]).replace("--:", "---")  # fmt: skip


def predictions():
    found = []
    for path in sorted((ROOT / "doc/results").glob("predicted-*.json")):
        try:
            found.append(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise UserError(f"{path}: {error}") from None
    return found


def against(what, low, mid, high, measured, unit, notes):
    expected = f"{mid:g}" if low is None else f"{mid:g} ({low:g} to {high:g})"
    beside = "" if measured is None else f"{100 * measured / mid - 100:+.0f} %"
    return [what, f"{expected} {unit}", NOT_MEASURED if measured is None else f"{measured:.4g} {unit}" if unit == "ms" else
            f"{measured:.0f} {unit}", beside, notes.get(what, "")]  # fmt: skip


def predicted_table(predicted, rows, notes):
    """A row for each prediction: predicted, measured, and the reason for the deviation."""
    same = ("run", "attention", "batch")  # another batch is another prediction
    runs = {tuple(row.get(key) for key in same): row["tokens_per_second"] for row in rows if row["type"] == "train"}
    lines = [against(p["what"], p["low"], p["mid"], p["high"], runs.get(tuple(p[key] for key in same)), "tok/s", notes)
             for p in predicted["runs"]]  # fmt: skip
    ops = [row for row in rows if row["type"] == "op"]
    for p in predicted["micro_step"]:
        times = [row["ms"] for row in ops if re.search(p["op"], row["op"])]
        lines.append(against(p["what"], None, p["ms"], None, sum(times) if times else None, "ms", notes))
    whole = sum(p["ms"] for p in predicted["micro_step"])
    lines.append(against("all ops of that step", None, round(whole, 2), None, sum(row["ms"] for row in ops) if ops else None,
                         "ms", notes))  # fmt: skip
    return (f"Predicted ({predicted['source']}) for one {predicted['gpu']}, and measured; times are of a step of "
            f"GPT-2 124M with one micro-batch, B 32, T 1024, in bf16. Assumed: {predicted['assumed']}\n\n"
            + table(["what", "predicted", "measured", "beside", "why it differs"], lines).replace("--: |\n", "--- |\n"))  # fmt: skip


def kernels_table(rows):
    """Nsight Compute's figures of the kernels that take the most time."""
    whole = sum(row["ms"] for row in rows)
    lines = [[row["kernel"].split("(")[0].replace("|", "\\|")[:80], str(row["launches"]), f"{row['ms']:.3f}", f"{100 * row['ms'] / whole:.1f} %",
              f"{row['bytes'] / row['ms'] / 1e6:.0f}"] for row in sorted(rows, key=lambda row: -row["ms"])[:25]]  # fmt: skip
    return table(["kernel", "launches", "ms", "share", "GB/s"], lines)


def model_table(rows):
    """The error of the model of `plan`, before and after it was calibrated with these measurements."""
    lines = [[f"{row['what']}, {row['shape']}", f"{row['predicted_ms']:.4g}", f"{row['measured_ms']:.4g}",
              f"{row['measured_ms'] / row['predicted_ms']:.2f}", f"{row['measured_ms'] / row['calibrated_ms']:.2f}"]
             for row in rows]  # fmt: skip
    return table(["op, shape", "predicted ms", "measured ms", "ratio", "calibrated"], lines)


def comm_table(rows):
    lines = [[f"{row['what']}, {row['ranks']} ranks", f"{row['buffer'] / 1024:.0f}", f"{row['us']:.1f}", f"{row['bus_gb_per_s']:.3g}"]
             for row in rows]  # fmt: skip
    return table(["collective", "KB", "us", "bus GB/s"], lines)


def folders_of(results):
    """The folder itself, or the folders of its parts."""
    if (results / "machine.json").is_file():
        return [results]
    found = [path.parent for path in results.glob("*/machine.json")]
    return sorted(found, key=lambda path: (CALLS.index(path.name) if path.name in CALLS else len(CALLS), path.name))


def read_object(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {error}") from None


def results_text(results):
    """The tables, the rows and the notes of a folder of results."""
    folders = folders_of(results)
    if not folders:
        raise UserError(f"{results}/machine.json: not there, nor in a folder below: expected what scripts/gpu_check.sh left")
    machine = read_object(folders[0] / "machine.json")
    text = table(["measured on", ""], [[key, str(value)] for key, value in machine.items()])
    rows = {}
    for folder in folders:
        if (folder / "results.jsonl").is_file():
            for row in read_rows(folder / "results.jsonl"):
                rows[tuple(row.get(key) for key in KEYS)] = row
    rows = list(rows.values())
    if any(row.get("smoke") for row in rows):
        raise UserError(f"{results}: rows of a --smoke run are no measurements")
    of = {kind: [row for row in rows if row["type"] == kind] for kind in TYPES}
    if of["check"]:
        text += "\n" + checks_table(of["check"])
    if of["train"]:
        text += "\n" + train_table(of["train"])
    if of["bench"]:
        peaks = sorted({(row["dtype"], row["bound"], row["peak"]) for row in of["bench"]})
        text += "\nPeaks measured in the same runs: " + ", ".join(
            f"{peak / 1e9:.0f} GB/s copied" if bound == "memory" else f"{peak / 1e12:.0f} TFLOP/s in {dtype}"
            for dtype, bound, peak in widest(peaks)) + ".\n"  # fmt: skip
        text += "\n" + bench_table(of["bench"])
    if of["comm"]:
        text += f"\nCollectives (`train_gpt bench-comm`), {of['comm'][-1]['how']}:\n\n" + comm_table(of["comm"])
    if of["model"]:
        text += ("\nThe model of `plan` beside them; calibrated: measured over what it says with these rates "
                 "(`plan --calibrate`):\n\n" + model_table(of["model"]))  # fmt: skip
    if of["kernel"]:
        launches = sum(row["launches"] for row in of["kernel"])
        text += f"\nKernels of {launches} launches in a row, training GPT-2 124M, by ncu:\n\n" + kernels_table(of["kernel"])
    notes = read_object(results / "notes.json") if (results / "notes.json").is_file() else {}
    return text, rows, notes


def predicted_tables(rows, notes):
    """Beside the predictions for the measured GPU."""
    gpus = {row["device"] for row in rows if row["type"] == "bench"}
    return "".join("\n" + predicted_table(predicted, rows, notes) for predicted in predictions()
                   if not gpus or any(predicted["gpu"] in gpu for gpu in gpus) or not rows)  # fmt: skip


def all_tables(results):
    text, rows, notes = results_text(results)
    return text + predicted_tables(rows, notes)


def summary(results):
    """What a page says of a folder of results: the runs, what was predicted, and the attention of training."""
    _, rows, notes = results_text(results)
    machine = read_object(folders_of(results)[0] / "machine.json")
    checks = [row for row in rows if row["type"] == "check"]
    good = sum(row["result"] in ("ok", "measured") for row in checks)
    bad = [f"{row['check']} {row['result']}" for row in checks if row["result"] not in ("ok", "measured")]
    same = [(p["run"], p["attention"], p["batch"]) for predicted in predictions() for p in predicted["runs"]]
    text = (f"**{machine['GPU']}**, {machine['date']}, commit {machine['commit']}, CUDA {machine['CUDA']}, driver {machine['driver']}, power limit {machine['power limit']}: "
            f"{good} of {len(checks)} checks good" + (f" (not: {'; '.join(bad)})" if bad else "")
            + f". All rows: `doc/results/{results.name}/`.\n\n")  # fmt: skip
    text += train_table([row for row in rows if row["type"] == "train" and
                         (row["run"], row["attention"], row.get("batch")) not in same])  # fmt: skip
    text += predicted_tables(rows, notes)
    attention = [row for row in rows if row["type"] == "bench" and row["op"] == "attention" and row["shape"] in TRAINED and "rival" in row]
    return text + ("\nAttention:\n\n" + bench_table(attention) if attention else "")


TRAINED = ("124M", "d24")  # shapes of heads of 64 and of 128


def widest(peaks):
    """The largest peak of each kind: every benchmark measures its own, and they differ little."""
    largest = {}
    for dtype, bound, peak in peaks:
        key = (dtype if bound == "compute" else "", bound)
        largest[key] = max(largest.get(key, (dtype, bound, 0)), (dtype, bound, peak), key=lambda entry: entry[2])
    return [largest[key] for key in sorted(largest)]


def newest_results():
    """Of each GPU the newest folder; by name."""
    folders = {path.parent for path in (ROOT / "doc/results").glob("*/machine.json")}
    folders |= {path.parent.parent for path in (ROOT / "doc/results").glob("*/*/machine.json")}
    newest = {}
    for folder in sorted(folders, key=lambda path: (path.name.rsplit("-", 3)[1:], path.name)):
        newest[folder.name.rsplit("-", 3)[0]] = folder
    return [newest[gpu] for gpu in sorted(newest)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--validate", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--page", type=pathlib.Path, default=PAGE, help=argparse.SUPPRESS)
    args = parser.parse_args()
    try:
        if args.validate:
            print(f"{args.validate}: {len(read_rows(args.validate))} rows")
            return 0
        if args.results:
            text = all_tables(args.results)
        else:
            text = "\n".join(map(summary, newest_results())) or NOT_MEASURED + "\n"
        renew_page(args.page, text, MARKERS, "dev/results/perf_table.py", args.check)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
