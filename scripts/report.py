#!/usr/bin/env python3
"""Draws a run: RUN/log.jsonl -> one HTML page with the curves, the last samples and the config.

    scripts/report.py RUN [--out FILE]        FILE is RUN/report.html unless told otherwise

The page is self-contained (no scripts, nothing fetched) and follows the reader's light or dark setting. Needs Python 3
and nothing else. A last line cut short by a kill is left out; what a resume went back over is taken from the later run.
"""
import argparse
import html
import json
import math
import os
import statistics
import sys

WIDTH, HEIGHT = 760, 260  # of one chart, in SVG units
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 14, 44  # its margins
MAX_POINTS = 1200  # per curve; more than the pixels there are

STYLE = """
:root { color-scheme: light dark; --fg: #1f2328; --bg: #ffffff; --grid: #d8dee4; --dim: #59636e; --box: #f6f8fa;
        --train: #0969da; --val: #bc4c00; }
@media (prefers-color-scheme: dark) {
  :root { --fg: #e6edf3; --bg: #0d1117; --grid: #2d333b; --dim: #9198a1; --box: #161b22; --train: #58a6ff; --val: #f0883e; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--fg); background: var(--bg); max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
svg { width: 100%; height: auto; display: block } svg text { fill: var(--dim); font: 12px system-ui, sans-serif }
.grid { stroke: var(--grid); stroke-width: 1 } .line { fill: none; stroke-width: 1.6; stroke-linejoin: round }
.train { stroke: var(--train) } .raw { opacity: .35; stroke-width: 1 } .val { stroke: var(--val) }
.dot { fill: var(--val); stroke: none } .key-train { color: var(--train) } .key-val { color: var(--val) }
table { border-collapse: collapse } td, th { padding: .15rem 1rem .15rem 0; text-align: left; vertical-align: top }
td + td, pre { font-family: ui-monospace, monospace; font-size: .87rem }
pre { background: var(--box); padding: .8rem; white-space: pre-wrap; overflow-wrap: anywhere }
.dim { color: var(--dim) }
"""


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
        except ValueError:
            record = "cut"
        if isinstance(record, dict) and isinstance(record.get("type"), str):
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


def series(records, kind, key):
    """[(step, value)] with finite values, one per step (the latest), in order."""
    points = {}
    for record in records:
        value = record.get(key)
        if record["type"] == kind and isinstance(value, (int, float)) and math.isfinite(value):
            points[record["step"]] = value
    return sorted(points.items())


def thinned(points):
    """At most MAX_POINTS of them, keeping the lowest and the highest of each stretch so that spikes stay."""
    if len(points) <= MAX_POINTS:
        return points
    stretch = math.ceil(2 * len(points) / MAX_POINTS)
    kept = []
    for begin in range(0, len(points), stretch):
        part = points[begin : begin + stretch]
        kept += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return kept


def smoothed(points, window):
    """The mean over the last `window` points."""
    result, total = [], 0.0
    for i, (step, value) in enumerate(points):
        total += value - (points[i - window][1] if i >= window else 0)
        result.append((step, total / min(i + 1, window)))
    return result


def ticks(low, high, count):
    """Round numbers that cover low..high: steps of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / count
    unit = 10 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def number_text(value):
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e4:
        return f"{value:.4g}"
    if 1e4 <= abs(value) < 1e12:
        for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= unit:
                return f"{value / unit:.4g}{name}"
    return f"{value:.2e}".replace("e-0", "e-").replace("e+0", "e+")


def chart(label, unit, curves, last_step, from_zero):
    """An SVG of curves [(css class, points, with dots)] over the steps."""
    values = [value for _, points, _ in curves for _, value in points]
    if not values:
        return f'<p class="dim">no {html.escape(label)} in this log yet</p>'
    low, high = (min(0, min(values)) if from_zero else min(values)), max(values)
    pad = (high - low) * 0.05 or abs(high) * 0.05 or 1
    low, high = (low if from_zero else low - pad), high + pad
    last_step = max(1, last_step)

    def x(step):
        return LEFT + (WIDTH - LEFT - RIGHT) * step / last_step

    def y(value):
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    name = html.escape(f"{label} [{unit}]" if unit else label)
    out = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name} over steps">']
    for value in ticks(low, high, 7):
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{number_text(value)}</text>')
    for step in ticks(0, last_step, 10):
        if step == int(step):
            out.append(f'<line class="grid" x1="{x(step):.1f}" x2="{x(step):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
            out.append(f'<text x="{x(step):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{int(step)}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">optimizer step</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    out.append(f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">{name}</text>')
    for css, points, dots in curves:
        path = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in thinned(points))
        out.append(f'<polyline class="line {css}" points="{path}"/>')
        for step, value in thinned(points) if dots else []:
            out.append(f'<circle class="dot" cx="{x(step):.1f}" cy="{y(value):.1f}" r="3">'
                       f"<title>step {step}: {value:.4f}</title></circle>")
    return "\n".join(out + ["</svg>"])


def table(rows):
    cells = (f"<tr><td>{html.escape(str(k))}</td><td>{html.escape(str(v))}</td></tr>" for k, v in rows)
    return "<table>" + "\n".join(cells) + "</table>"


def duration(seconds):
    seconds = round(seconds)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}" if seconds >= 3600 else \
        f"{seconds // 60}:{seconds % 60:02}"


def page(name, records):
    train, val = series(records, "step", "loss"), series(records, "val", "loss")
    norm, lr = series(records, "step", "norm"), series(records, "step", "lr")
    speed, ms = series(records, "step", "tokens_per_s"), series(records, "step", "ms")
    last_step = max((r.get("step", 0) for r in records), default=0)
    window = max(1, len(train) // 50)
    count = {kind: sum(r["type"] == kind for r in records) for kind in ("skip", "resume", "checkpoint")}

    summary = [("steps", last_step)]
    if train:
        summary.append((f"training loss, mean of the last {window}", f"{smoothed(train, window)[-1][1]:.4f} nats per token"))
    if val:
        best = min(val, key=lambda p: p[1])
        summary.append(("best validation loss", f"{best[1]:.4f} nats per token at step {best[0]}"))
        summary.append(("last validation loss", f"{val[-1][1]:.4f} nats per token at step {val[-1][0]}"))
    if speed:
        summary.append(("median speed", f"{number_text(statistics.median(v for _, v in speed))} tokens/s"))
    if ms:
        summary.append(("time in training steps", duration(sum(v for _, v in ms) / 1000)))
    summary.append(("skipped steps, resumes, checkpoints", f"{count['skip']}, {count['resume']}, {count['checkpoint']}"))
    ends = [r for r in records if r["type"] == "end"]
    summary.append(("state", f"ended: {ends[-1].get('reason')}" if ends and ends[-1] is records[-1] else "not ended"))

    key = '<p><span class="key-train">&#9473;&#9473; training</span>' + (f" (pale: each step; strong: mean of {window})"
                                                                          if window > 1 else "")
    key += ' &#160; <span class="key-val">&#9679; validation</span></p>' if val else "</p>"
    loss_curves = [("train raw" if window > 1 else "train", train, False)]
    if window > 1:
        loss_curves.append(("train", smoothed(train, window), False))
    if val:
        loss_curves.append(("val", val, True))

    parts = [f"<h1>{html.escape(name)}</h1>", table(summary), "<h2>Loss</h2>", key,
             chart("loss", "nats per token", loss_curves, last_step, False),
             "<h2>Gradient norm</h2>", chart("gradient norm before clipping", "", [("train", norm, False)], last_step, True),
             "<h2>Learning rate</h2>", chart("learning rate", "", [("train", lr, False)], last_step, True),
             "<h2>Speed</h2>", chart("speed", "tokens/s", [("train", speed, False)], last_step, True)]
    samples = [r for r in records if r["type"] == "sample"]
    if samples:
        step = samples[-1].get("step", 0)
        parts.append(f"<h2>Samples at step {step}</h2>")
        for sample in [s for s in samples if s.get("step", 0) == step][-5:]:
            parts.append(f"<pre><b>{html.escape(str(sample.get('prompt', '')))}</b>"
                         f"{html.escape(str(sample.get('text', '')))}</pre>")
    headers = [r for r in records if r["type"] in ("start", "resume")]
    if headers:
        header = headers[-1]
        parts += ["<h2>Config</h2>", table(header.get("config", {}).items())]
        parts += ["<h2>Where and with what</h2>",
                  table([*header.get("machine", {}).items(), *header.get("build", {}).items(),
                         ("data", header.get("data_hash", ""))])]
    body = "\n".join(parts)
    return (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{html.escape(name)}</title>\n'
            f"<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n")


def main():
    parser = argparse.ArgumentParser(description="Draws a run: RUN/log.jsonl to one HTML page.")
    parser.add_argument("run", metavar="RUN", help="the --out-dir of a run")
    parser.add_argument("--out", metavar="FILE", help="the page [RUN/report.html]")
    args = parser.parse_args()
    try:
        text = page(os.path.basename(os.path.abspath(args.run)), read_records(os.path.join(args.run, "log.jsonl")))
        out = args.out or os.path.join(args.run, "report.html")
        try:
            with open(out + ".tmp", "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(out + ".tmp", out)
        except OSError as error:
            if os.path.isfile(out + ".tmp"):
                os.remove(out + ".tmp")
            raise UserError(f"cannot write {out}: {error.strerror}") from None
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
