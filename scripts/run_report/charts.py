"""One chart as SVG, and the axes that it can be drawn over."""

import bisect
import json
import math
import re

from .markup import Markup, joined, markup
from .records import UserError, flops_per_token, series

WIDTH, HEIGHT = 760, 276  # of one chart, in SVG units
LEFT, RIGHT, TOP, BOTTOM = 64, 26, 30, 44  # its margins
MAX_POINTS = 1200  # per curve; more than the pixels there are


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


class Axis:
    """Where a step lies: on an axis of steps, of tokens learned from, of the time in training steps, or of FLOPs."""

    KINDS = ("step", "tokens", "time", "flops")

    def __init__(self, records, kind):
        self.kind, self.steps, self.ends = kind, [], [0.0]
        speed, flops = dict(series(records, "step", "tokens_per_s")), flops_per_token(records)
        if kind == "flops" and not flops:
            raise UserError("--x flops: this log does not say how many FLOPs are spent per token; it is from an older version")
        for step, ms in series(records, "step", "ms"):
            of_step = ms / 1000 * {"time": 1, "step": 1, "tokens": speed.get(step, 0), "flops": speed.get(step, 0) * flops}[kind]
            of_step = min(max(0.0, of_step), 1e100)
            since = step - (self.steps[-1] if self.steps else 0)  # more than one where steps are not in this log
            self.steps.append(step)
            self.ends.append(self.ends[-1] + of_step * since)
        self.last = self.at(max((r.get("step", 0) for r in records), default=0))

    def at(self, step):
        return step if self.kind == "step" else self.ends[bisect.bisect_right(self.steps, step)]

    def place(self, points):
        """[(x, value, step)] for chart()"""
        return [(self.at(step), value, step) for step, value in points]

    @staticmethod
    def common(axes):
        """What chart() needs of axes that share one: where it ends, what a unit of it is, and what it says below."""
        last, kind = max(axis.last for axis in axes) or 1, axes[0].kind
        if kind != "time":
            return last, 1, {"step": "optimizer step", "tokens": "tokens learned from", "flops": "FLOPs of training"}[kind]
        unit, name = next((u, n) for u, n in ((3600, "hours"), (60, "minutes"), (1, "seconds")) if last >= 2 * u or u == 1)
        return last, unit, f"time in training steps [{name}]"


def for_script(value):
    """JSON inside of a script element."""
    return Markup(json.dumps(value, separators=(",", ":")).replace("<", "\\u003c"))


def axes_for_script(logs, kind):
    """All axes of all runs, thinned, for the page to switch between them."""
    kinds = [k for k in Axis.KINDS if k != "flops" or all(flops_per_token(log) for log in logs)]
    runs, last = [], []
    for log in logs:
        axes = {k: Axis(log, k) for k in kinds}
        steps = axes["time"].steps
        some = steps[:: max(1, len(steps) // MAX_POINTS)]
        some += [steps[-1]] if steps and some[-1] != steps[-1] else []
        runs.append({k: some if k == "step" else [float(f"{axes[k].at(step):.6g}") for step in some] for k in kinds})
        last.append(axes["step"].last)
    return {"kind": kind, "kinds": kinds, "runs": runs, "last": last, "box": [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM]}


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
    return re.sub(r"\.?0*e([+-])0?", r"e\1", f"{value:.2e}")


def chart(label, unit, curves, axis, from_zero):
    """A figure of curves (css class, [(x, value, step)], with dots, name) over Axis.common()."""
    values = [value for _, points, *_ in curves for _, value, _ in points]
    if not values:
        return markup('<p class="dim">no {} in this log yet</p>', label)
    low, high = (min(0, min(values)) if from_zero else min(values)), max(values)
    pad = (high - low) * 0.05 or abs(high) * 0.05 or 1
    low, high = (low if from_zero else low - pad), high + pad
    last, x_unit, x_name = axis

    def x(at):
        return LEFT + (WIDTH - LEFT - RIGHT) * at / last

    def y(value):
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    def line(css, x1, x2, y1, y2):
        return markup('<line class="{}" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>', css, x1, x2, y1, y2)

    name = f"{label} [{unit}]" if unit else label
    out = []
    for value in ticks(low, high, 7):
        out.append(line("grid", LEFT, WIDTH - RIGHT, y(value), y(value)))
        out.append(markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>', LEFT - 6, y(value) + 4, number_text(value)))
    for at in ticks(0, last / x_unit, 10):
        if x_name != "optimizer step" or at == int(at):
            place, text = x(at * x_unit), int(at) if x_name == "optimizer step" else number_text(at)
            out.append(line("grid x", place, place, TOP, HEIGHT - BOTTOM))
            out.append(markup('<text class="x" x="{:.1f}" y="{}" text-anchor="middle">{}</text>', place, HEIGHT - BOTTOM + 16, text))
    out.append(markup('<text class="x" x="{}" y="{}" text-anchor="middle">{}</text>', (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_name))
    out.append(markup('<text x="4" y="{}">{}</text>', TOP - 14, name))  # above: beside the ticks it would not have room
    data = []
    for css, points, dots, of in curves:
        some = thinned(points)
        path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value, _ in some)
        out.append(markup('<polyline class="line {}" points="{}"/>', css, path))
        for at, value, step in some if dots else []:
            out.append(markup('<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="3"><title>step {}: {:.4f}</title></circle>',
                              css, x(at), y(value), step, value))  # fmt: skip
        run = int(css[3:]) if css.startswith("run") else 0
        data.append({"css": css, "name": of, "run": run, "dots": dots, "step": [step for _, _, step in some],
                     "value": [float(f"{value:.6g}") for _, value, _ in some],
                     "level": css == "ref" and len({value for _, value, _ in some}) == 1})  # fmt: skip
    return markup('<figure><svg viewBox="0 0 {} {}" role="img" aria-label="{} over {}">\n{}\n</svg>'
                  '<script type="application/json">{}</script></figure>', WIDTH, HEIGHT, name, x_name, joined(out, "\n"),
                  for_script({"low": low, "high": high, "curves": data}))  # fmt: skip
