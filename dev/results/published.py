"""What others measured, beside what `./train_gpt plan` predicts for the same work: the tables of doc/predicted.md, for predict.py.

doc/results/published.json has a row per measurement: GPU and number, model (a preset, or lines of a file under "models"), flags, tokens per
second of each GPU, project, source and date. "bound" says why a row does not count: other work, or an engine that is known to be slower,
for which the prediction is an upper bound. "outside" says why a row that counts is further off than LIMITS allow.
"""
import concurrent.futures
import json
import os
import pathlib
import statistics
import tempfile

# Most percent between prediction and measurement, by family of GPUs. Only H100, A100 and 4090 are goals.
LIMITS = {"H100": 12, "A100": 15, "4090": 15, "others": 15}


def family(row):
    return "H100" if row["gpu"] == "H200" else row["gpu"] if row["gpu"] in LIMITS else "others"


def cases_of(row, models, plan):
    """[low, mid, high] tokens per second of each GPU, or why `plan` refuses the row."""
    flags = ["--gpu", row["gpu"], "--world-size", str(row["gpus"]), *row["flags"].split()]
    if "--attention" not in flags:
        flags += ["--attention", "cudnn"]  # nobody else has Anvil's backward pass
    with tempfile.TemporaryDirectory() as folder:
        if row["model"] in models:
            path = pathlib.Path(folder) / "model.conf"
            path.write_text("\n".join(models[row["model"]]) + "\n", encoding="utf-8")
            flags += ["--model", str(path)]
        elif "--depth" not in flags:
            flags += ["--model", row["model"]]
        try:
            facts, _ = plan(flags)
        except SystemExit as refused:
            return str(refused)
    return [facts["cases"][case]["tokens_per_s"] / row["gpus"] for case in ("low", "mid", "high")]


def error(row, cases):
    return 100 * cases[1] / row["tokens_per_s"] - 100


def problems(rows):
    """Rows beyond their limit without a reason, and reasons of rows that are within it. rows: [(row, cases)]."""
    for row, cases in rows:
        beyond = abs(error(row, cases)) > LIMITS[family(row)]
        if "bound" not in row and beyond != ("outside" in row):
            what = f"{row['gpus']} x {row['gpu']}, {row['model']}, {row['flags']}: {error(row, cases):+.1f} %"
            yield f"{what}, where {LIMITS[family(row)]} % are allowed" if beyond else f"{what} is within its limit: remove 'outside'"


def thousands(x):
    return f"{float(f'{x / 1e3:.3g}'):g}k"


def cells(row, cases):
    count = f"{row['gpus']} " * (row["gpus"] > 1)
    name = row["model"].removeprefix("nanochat ").removeprefix("autoresearch ") + ", FP8" * ("fp8" in row["flags"])
    low, mid, high = map(thousands, cases)
    return [count + row["gpu"], name, row["by"], thousands(row["tokens_per_s"]), f"{mid} ({low}-{high})", f"{round(error(row, cases)):+d} %"]


def text(file, plan, table):
    """(the page's tables and that of all rows, or None; a list of problems)"""
    published = json.loads(file.read_text(encoding="utf-8"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        planned = pool.map(lambda row: cases_of(row, published["models"], plan), published["rows"])
    rows = list(zip(published["rows"], planned))
    if refused := [f"{row['gpu']}, {row['model']}: {cases.splitlines()[-1]}" for row, cases in rows if isinstance(cases, str)]:
        return None, refused
    counted = [(row, cases) for row, cases in rows if "bound" not in row]
    families = []
    for name, limit in LIMITS.items():
        errors = [error(row, cases) for row, cases in counted if family(row) == name]
        beyond = sum("outside" in row for row, _ in counted if family(row) == name)
        names = name if name != "others" else ", ".join(dict.fromkeys(row["gpu"] for row, _ in counted if family(row) == name))
        families.append([
            names, str(len(errors)), f"{statistics.mean(errors):+.1f} %", f"{statistics.mean(map(abs, errors)):.1f} %",
            f"{round(min(errors)):+d} to {round(max(errors)):+d} %", f"{len(errors) - beyond} within {limit} %",
        ])  # fmt: skip
    header = ["GPU", "model", "by", "published", "predicted", "error"]

    def with_reasons(key):
        return table(["why", *header], [[row[key], *cells(row, cases)] for row, cases in rows if key in row], 4)

    tables = (
        table(["GPU", "rows", "mean error", "mean magnitude", "range", "goal"], families)
        + "\nRows outside their limit, in tokens per second of a GPU:\n\n"
        + with_reasons("outside")
    )
    all_rows = (
        "Tokens per second of a GPU. Rows that count:\n\n"
        + table(header, [cells(row, cases) for row, cases in counted], 3)
        + "\nRows that do not count, and why:\n\n"
        + with_reasons("bound")
    )
    return (tables, all_rows), list(problems(rows))
