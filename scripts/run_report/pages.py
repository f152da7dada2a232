"""The page of one run, and that of several."""

import json
import os
import re
import statistics

from .charts import Axis, axes_for_script, chart, number_text
from .layout import document, duration, folded, key, legend, run_style, sample_text, section, table, wide_table
from .markup import joined, markup
from .records import (
    UserError,
    changed_flags,
    is_number,
    last_header,
    last_mean,
    last_samples,
    series,
    smoothed,
    smoothing,
    state_of,
    training_seconds,
)


def of_kind(references, kind, file=""):
    return [reference for reference in references if reference.kind == kind and reference.file == file]


LINE, DOT, DASHES = "&#9473;&#9473;", "&#9679;", "&#9476;&#9476;"


def keys_of(references):
    return [key("ref", DASHES, reference.label) for reference in references]


def curves_of(references, last):
    return [("ref", reference.drawn(last), False, reference.label) for reference in references]


def stem(path):
    return os.path.splitext(os.path.basename(path))[0]


def scores_of(records):
    """{file: [(step, score)]}, and of each file the tasks as they were last scored, in the order of the log."""
    points, tasks = {}, {}
    for record in records:
        if record["type"] == "tasks" and is_number(record.get("score")):
            file = stem(record.get("file", ""))
            points.setdefault(file, {})[record["step"]] = record["score"]
            tasks[file] = record.get("tasks", {})
    return {file: sorted(of.items()) for file, of in points.items()}, tasks


def number_in(task, name):
    return f"{task[name]:.4f}" if is_number(task.get(name)) else "nan"


def fact(name, value):
    """A row of the machine's facts, with units."""
    unit = "B" if name.endswith("_bytes") else "FLOP/s" if name == "peak_flops" else ""
    if unit and is_number(value):
        digits, prefix = re.fullmatch(r"(.*?)([kMG]?)", number_text(value)).groups()
        value = f"{digits} {prefix}{unit}"
    return name, value


def values_for(reference, val, bpb, scores):
    return {"loss": val, "bpb": bpb}.get(reference.kind, scores.get(reference.file, []))


def config_parts(config):
    changed = changed_flags(config)
    changed = [(name, json.dumps(value) if isinstance(value, str) and not value.strip() else value) for name, value in changed]
    return [table(changed) if changed else markup('<p class="dim">all flags are their defaults</p>'),
            folded("all flags", table(config.items()))]


def page(name, records, references=(), usd_per_hour=0.0, x_kind="step"):
    train, val, bpb = series(records, "step", "loss"), series(records, "val", "loss"), series(records, "val", "bpb")
    scores, tasks = scores_of(records)
    norm, lr = series(records, "step", "norm"), series(records, "step", "lr")
    speed, ms = series(records, "step", "tokens_per_s"), series(records, "step", "ms")
    comm = {key: series(records, "step", key) for key in ("comm_ms", "comm_exposed_ms", "comm_predicted_ms")}
    last_step = max((r.get("step", 0) for r in records), default=0)
    axis = Axis(records, x_kind)
    shared, window = Axis.common([axis]), smoothing(train)
    count = {kind: sum(r["type"] == kind for r in records) for kind in ("skip", "resume", "checkpoint")}

    summary = [("steps", last_step)]
    if train:
        summary.append((f"training loss, mean of the last {window}", f"{last_mean(train, window):.4f} nats per token"))
    if val:
        for which, (step, loss) in (("best", min(val, key=lambda p: p[1])), ("last", val[-1])):
            beside = f", {dict(bpb)[step]:.4f} bits per byte" if step in dict(bpb) else ""
            summary.append((f"{which} validation loss", f"{loss:.4f} nats per token at step {step}{beside}"))
    summary += [(f"score on {file}", f"{points[-1][1]:.4f} at step {points[-1][0]}") for file, points in scores.items()]
    summary += [reference.compared_with(values_for(reference, val, bpb, scores)) for reference in references]
    if speed:
        summary.append(("median speed", f"{number_text(statistics.median(v for _, v in speed))} tokens/s"))
    if ms:
        seconds = training_seconds(records)
        if speed:
            summary.append(("tokens learned from", number_text(Axis(records, "tokens").last)))
        summary.append(("training time", duration(seconds)))
        if usd_per_hour:
            summary.append(("cost", f"{seconds / 3600 * usd_per_hour:.2f} USD at {usd_per_hour:g} an hour"))
    if comm["comm_ms"]:
        total, waited, predicted = (statistics.median(v for _, v in points) if points else 0 for points in comm.values())
        summary.append(("median communication between ranks",
                        f"{total:.2f} ms per step, {waited:.2f} of it waited for; {predicted:.2f} predicted"))
    compared = [r for r in records if r["type"] == "ranks"]
    if compared:
        r = compared[-1]
        summary.append((f"ranks compute, at step {r['step']}",
                        f"{r['min_ms']:.1f} to {r['max_ms']:.1f} ms per step, median {r['median_ms']:.1f}; "
                        f"rank {r['slowest']} is slowest"))
    summary.append(("skipped steps, resumes, checkpoints", f"{count['skip']}, {count['resume']}, {count['checkpoint']}"))
    summary.append(("state", state_of(records)))

    shown = joined([key("train", LINE, "training"), f" (pale: each step; strong: mean of {window} around it)" if window > 1 else ""])
    loss_keys = legend([shown, *([key("val", DOT, "validation")] if val else []), *keys_of(of_kind(references, "loss"))])
    loss_curves = [("train raw" if window > 1 else "train", train, False, "this step")]
    if window > 1:
        loss_curves.append(("train", smoothed(train, window), False, f"mean of {window}"))
    if val:
        loss_curves.append(("val", val, True, "validation"))

    loss_curves += curves_of(of_kind(references, "loss"), last_step)

    def drawn_chart(label, unit, curves, from_zero):
        placed = [(css, axis.place(points), dots, of) for css, points, dots, of in curves]
        return chart(label, unit, placed, shared, from_zero)

    charts = [section("Loss", loss_keys, drawn_chart("loss", "nats per token", loss_curves, False))]
    if bpb:
        beside = of_kind(references, "bpb")
        curves = [("val", bpb, True, "validation"), *curves_of(beside, last_step)]
        charts.append(section("Bits per byte", legend(keys_of(beside)) if beside else "",
                              drawn_chart("validation", "bits per byte", curves, False)))
    for file, points in scores.items():
        beside = of_kind(references, "score", file)
        curves = [("val", points, True, "score"), *curves_of(beside, last_step)]
        rows = [[name, number_in(of, "accuracy"), number_in(of, "centered"), f"{of.get('right')} of {of.get('examples')}"]
                for name, of in tasks[file].items()]  # fmt: skip
        by_task = wide_table(["task", "accuracy", "centered", "right"], rows)
        charts.append(section(f"Score on {file}", legend(keys_of(beside)) if beside else "",
                              drawn_chart("score", "", curves, False),
                              folded(f"its tasks at step {points[-1][0]}", by_task)))
    charts += [section(title, drawn_chart(label, unit, [("train", points, False, title.lower())], True)) for title, label, unit, points in
               (("Gradient norm", "gradient norm before clipping", "", norm), ("Learning rate", "learning rate", "", lr),
                ("Speed", "speed", "tokens/s", speed))]  # fmt: skip
    mfu = [(step, 100 * part) for step, part in series(records, "step", "mfu")]
    if mfu:
        charts.append(section("MFU", drawn_chart("model FLOPs utilization", "%", [("train", mfu, False, "MFU")], True)))
    if comm["comm_ms"]:
        both = legend([key("train", LINE, "waited for"), key("val", LINE, "in collectives")])
        charts.append(section("Communication between ranks", both, drawn_chart("time of a step", "ms", [
            ("val", comm["comm_ms"], False, "in collectives"), ("train", comm["comm_exposed_ms"], False, "waited for")], True)))
    parts = [markup('<header><h1>{}</h1><div class="axes"></div></header><div class="cards">{}</div>', name, table(summary)),
             markup('<div class="charts">{}</div>', joined(charts, "\n"))]
    step, samples = last_samples(records, 5)
    if samples:
        earlier = [s for s in records if s["type"] == "sample" and s.get("step", 0) != step]
        some = [markup("<h2>Step {}</h2>{}", s.get("step", 0), sample_text(s)) for s in earlier[:: max(1, len(earlier) // 20)]]
        more = folded("how they became so", *some) if some else ""
        parts.append(section(f"Samples at step {step}", *[sample_text(sample) for sample in samples], more))
    header = last_header(records)
    if header:
        parts.append(section("Config", *config_parts(header.get("config", {}))))
        parts.append(section("Where and with what", table([*(fact(*one) for one in header.get("machine", {}).items()), *header.get("build", {}).items(),
                             *(("data, " + k, v) for k, v in header.get("data", {}).items())])))  # fmt: skip
    return document(name, parts, axes=axes_for_script([records], x_kind))


def comparison(names, logs, references=(), usd_per_hour=0.0, x_kind="step"):
    """The page of several runs: curves on the same axes, and the settings in which they differ."""
    runs = list(enumerate(zip(names, logs)))
    css = [f"run{i}" for i, _ in runs]
    axes = [Axis(log, x_kind) for log in logs]
    shared = Axis.common(axes)
    of_runs = [key(css[i], LINE, name) for i, (name, _) in runs]
    for reference in references:
        if reference.level is None and x_kind != "step":
            raise UserError(f"a reference by steps has no place on the axis of several runs with --x {x_kind}: give LABEL=VALUE")

    scores = [scores_of(log)[0] for log in logs]
    files = list(dict.fromkeys(file for of in scores for file in of))
    bpb = [series(log, "val", "bpb") for log in logs]
    heads = ["run", "steps", "training loss", "best validation", "last validation"]
    heads += (["bits per byte"] if any(bpb) else []) + ["tokens/s", "training time"]
    heads += [f"score on {file}" for file in files]
    heads += (["USD"] if usd_per_hour else []) + [reference.label for reference in references] + ["state"]
    rows, train_curves = [], []
    for i, (name, log) in runs:
        train, val = series(log, "step", "loss"), series(log, "val", "loss")
        speed = series(log, "step", "tokens_per_s")
        train_curves.append((css[i], axes[i].place(smoothed(train, smoothing(train))), False, name))
        best = min(val, key=lambda p: p[1]) if val else None
        seconds = training_seconds(log)
        row = [("key-" + css[i], name), max((r.get("step", 0) for r in log), default=0),
               f"{last_mean(train, smoothing(train)):.4f}" if train else "",
               f"{best[1]:.4f} at {best[0]}" if val else "", f"{val[-1][1]:.4f} at {val[-1][0]}" if val else ""]
        row += [f"{bpb[i][-1][1]:.4f} at {bpb[i][-1][0]}" if bpb[i] else ""] if any(bpb) else []
        row += [number_text(statistics.median(v for _, v in speed)) if speed else "", duration(seconds)]
        row += ["{1:.4f} at {0}".format(*scores[i][file][-1]) if file in scores[i] else "" for file in files]
        row += [f"{seconds / 3600 * usd_per_hour:.2f}"] if usd_per_hour else []
        beside = [reference.compared_with(values_for(reference, val, bpb[i], scores[i]))[1] for reference in references]
        rows.append(row + beside + [state_of(log)])

    def overlaid(kind, name, dots=False):
        return [(css[i], axes[i].place(series(log, kind, name)), dots, of) for i, (of, log) in runs]

    def beside_runs(kind, file=""):
        return [(css_of, [(at, value, at) for at, value in points], dots, of)
                for css_of, points, dots, of in curves_of(of_kind(references, kind, file), shared[0])]  # fmt: skip

    val_curves = overlaid("val", "loss", True) + beside_runs("loss")
    charts = [section("Validation loss", legend(of_runs + keys_of(of_kind(references, "loss"))),
                      chart("validation loss", "nats per token", val_curves, shared, False))]  # fmt: skip
    if any(bpb):
        curves = overlaid("val", "bpb", True) + beside_runs("bpb")
        charts.append(section("Bits per byte", legend(of_runs), chart("validation", "bits per byte", curves, shared, False)))
    for file in files:
        curves = [(css[i], axes[i].place(scores[i].get(file, [])), True, of) for i, (of, _) in runs] + beside_runs("score", file)
        charts.append(section(f"Score on {file}", legend(of_runs), chart("score", "", curves, shared, False)))
    charts.append(section("Training loss", legend(of_runs), chart("training loss, smoothed", "nats per token", train_curves, shared, False)))
    charts += [section(title, legend(of_runs), chart(label, unit, overlaid("step", field), shared, True)) for title, label, unit, field in
               (("Gradient norm", "gradient norm before clipping", "", "norm"), ("Learning rate", "learning rate", "", "lr"),
                ("Speed", "speed", "tokens/s", "tokens_per_s"))]  # fmt: skip
    parts = [markup('<header><h1>{}</h1><div class="axes"></div></header><section>{}</section>', ", ".join(names), wide_table(heads, rows)),
             markup('<div class="charts">{}</div>', joined(charts, "\n"))]

    for i, (name, log) in runs:
        step, samples = last_samples(log, 2)
        if samples:
            title = markup('Samples of <span class="key-{}">{}</span> at step {}', css[i], name, step)
            parts.append(section(title, *[sample_text(sample) for sample in samples]))

    facts = []
    for log in logs:
        header = last_header(log)
        facts.append({**header.get("config", {}), **header.get("machine", {}), **header.get("build", {}),
                      **{"data, " + k: v for k, v in header.get("data", {}).items()}})
    keys = [k for k in dict.fromkeys(k for fact in facts for k in fact) if len({str(fact.get(k, "")) for fact in facts}) > 1]
    parts.append(section("In what they differ", wide_table([""] + [("key-" + c, name) for c, name in zip(css, names)],
                            [[k] + [fact.get(k, "") for fact in facts] for k in keys]) if keys
                 else markup('<p class="dim">in nothing that their logs tell</p>')))
    return document(", ".join(names), parts, run_style(len(names)), axes_for_script(logs, x_kind))
