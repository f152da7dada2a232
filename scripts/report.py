#!/usr/bin/env python3
"""Draws runs: RUN/log.jsonl -> one HTML page with the curves, the last samples and the config.

    scripts/report.py RUN [--out FILE]        FILE is RUN/report.html unless told otherwise
    scripts/report.py RUN RUN ...             all on one page, with the settings in which they differ; FILE is
                                              report.html in the folder that holds them all
    scripts/report.py RUN --reference 'llm.c=3.29' --reference 'track 3=125:4.586,250:4.098' --usd-per-hour 24
    scripts/report.py RUN RUN --x tokens      drawn over tokens; also time (in training steps) and flops. The page can switch
    scripts/report.py RUN --watch 30          drawn anew every 30 s, and the page reloads itself, until the run ends

A reference is the validation loss of others, a level or STEP:LOSS points, drawn beside the runs' and compared with them.
Of the flags those are shown that differ from the defaults in doc/flags.md; all of them are folded away below.

The page is one file that fetches nothing, and follows the reader's light or dark setting. Its curves are drawn here; a script
in it adds values under the pointer and another axis. Needs Python 3 and nothing else. A last line cut short by a kill is left out; what a resume went back over is taken from the later run.
"""
import argparse
import bisect
import html
import json
import math
import os
import re
import statistics
import sys
import time

WIDTH, HEIGHT = 760, 276  # of one chart, in SVG units
LEFT, RIGHT, TOP, BOTTOM = 64, 26, 30, 44  # its margins
MAX_POINTS = 1200  # per curve; more than the pixels there are

STYLE = """
:root { color-scheme: light dark; --fg: #1f2328; --bg: #ffffff; --grid: #e4e8ec; --dim: #59636e; --box: #f6f8fa;
        --train: #0969da; --val: #bc4c00; }
@media (prefers-color-scheme: dark) {
  :root { --fg: #e6edf3; --bg: #0d1117; --grid: #262c35; --dim: #9198a1; --box: #161b22; --train: #58a6ff; --val: #f0883e; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--fg); background: var(--bg); max-width: 76rem; margin: 1.5rem auto;
       padding: 0 1.2rem; }
h1 { font-size: 1.5rem; margin: .3rem 0 1rem; overflow-wrap: anywhere } h2 { font-size: 1.05rem; margin: .2rem 0 .3rem }
section { background: var(--box); border-radius: .6rem; padding: .8rem 1rem; margin: 0 0 1rem; min-width: 0; overflow-x: auto }
section p { margin: .2rem 0 }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(32rem, 100%), 1fr)); gap: 0 1rem }
.charts > section:first-child { grid-column: 1 / -1 }
.cards table, .cards tbody { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: .7rem; margin: 0 0 1rem }
.cards tbody { grid-column: 1 / -1; margin: 0 } .cards tr { background: var(--box); border-radius: .6rem; padding: .55rem .9rem }
.cards td { display: block; padding: 0 } .cards td:first-child { color: var(--dim); font-size: .85rem }
figure { margin: 0; position: relative } .charts > section:first-child figure { max-width: 66rem; margin: auto }
svg { width: 100%; height: auto; display: block } svg text { fill: var(--dim); font: 15px system-ui, sans-serif }
.charts > section:first-child svg text { font-size: 12px }
.grid { stroke: var(--grid); stroke-width: 1 } .line { fill: none; stroke-width: 1.8; stroke-linejoin: round }
.train { stroke: var(--train) } .raw { opacity: .28; stroke-width: 1 } .val { stroke: var(--val) }
.ref { stroke: var(--dim); stroke-dasharray: 5 4 } .cursor { stroke: var(--dim); stroke-width: 1; pointer-events: none }
.dot { fill: var(--val); stroke: none } .key-ref { color: var(--dim) } .key-train { color: var(--train) } .key-val { color: var(--val) }
.tip { position: absolute; top: 2.2rem; pointer-events: none; background: var(--bg); border: 1px solid var(--grid); border-radius: .4rem;
       padding: .35rem .6rem; font-size: .82rem; white-space: nowrap; z-index: 1; box-shadow: 0 2px 8px #0003 }
.tip b { font-variant-numeric: tabular-nums } .axes { float: right; margin: .3rem 0 0 1rem } .axes label { margin-left: .8rem; cursor: pointer }
table { border-collapse: collapse } td, th { padding: .15rem 1rem .15rem 0; text-align: left; vertical-align: top }
td + td, pre { font-family: ui-monospace, monospace; font-size: .87rem } .cards td + td { font-size: .95rem }
pre { background: var(--bg); border-radius: .4rem; padding: .8rem; white-space: pre-wrap; overflow-wrap: anywhere; margin: .5rem 0 }
.dim { color: var(--dim) } th { font-weight: 600 } summary { cursor: pointer; color: var(--dim) }
"""

# Of several runs, by turns: (on light, on dark).
RUN_COLORS = [("#0969da", "#58a6ff"), ("#bc4c00", "#f0883e"), ("#1a7f37", "#3fb950"), ("#8250df", "#bc8cff"),
              ("#bf3989", "#ff7bda"), ("#9a6700", "#d29922"), ("#0f7b83", "#39c5cf"), ("#cf222e", "#ff7b72")]


def run_style(count):
    """Classes run0, run1, ... for lines, dots and text."""
    colors = [RUN_COLORS[i % len(RUN_COLORS)] for i in range(count)]
    dashes = [f"stroke-dasharray: {6 * (i // len(RUN_COLORS))} 3;" if i >= len(RUN_COLORS) else "" for i in range(count)]
    light = "".join(f"--r{i}: {color[0]}; " for i, color in enumerate(colors))
    dark = "".join(f"--r{i}: {color[1]}; " for i, color in enumerate(colors))
    rules = "".join(f".run{i} {{ stroke: var(--r{i}); {dashes[i]} }} .dot.run{i} {{ fill: var(--r{i}) }} "
                    f".key-run{i} {{ color: var(--r{i}) }}\n" for i in range(count))
    return f":root {{ {light}}}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n{rules}"


# What the page does by itself: values under the pointer, and the axis. Without it the curves are there as they are drawn below.
SCRIPT = r"""
(() => {
  const page = JSON.parse(document.getElementById("axes").textContent);
  const [W, H, L, R, T, B] = page.box, NS = document.querySelector("svg")?.namespaceURI;
  let kind = page.kind;
  const short = v => {
    if (v === 0) return "0";
    const a = Math.abs(v);
    for (const [unit, name] of [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (a >= unit && a >= 1e4) return +(v / unit).toPrecision(4) + name;
    return a < 1e-3 ? v.toExponential(2).replace(/\.?0*e/, "e") : String(+v.toPrecision(4));
  };
  const clock = s => s < 120 ? +s.toFixed(1) + " s" : s < 7200 ? +(s / 60).toFixed(1) + " min" : +(s / 3600).toFixed(2) + " h";
  const say = (k, v) => k === "time" ? clock(v) : k === "step" ? "step " + Math.round(v) : short(v) + (k === "flops" ? " FLOPs" : " tokens");
  const upper = (list, v) => { let a = 0, b = list.length; while (a < b) { const m = (a + b) >> 1; list[m] <= v ? a = m + 1 : b = m; } return a; };
  // Where a step of a run lies on an axis.
  const at = (run, step, k = kind) => {
    if (k === "step") return step;
    const axis = page.runs[run], i = upper(axis.step, step);
    if (i === 0) return axis.step.length ? axis[k][0] * step / axis.step[0] : 0;
    if (i === axis.step.length) return axis[k][i - 1];
    const part = (step - axis.step[i - 1]) / (axis.step[i] - axis.step[i - 1]);
    return axis[k][i - 1] + part * (axis[k][i] - axis[k][i - 1]);
  };
  const element = (name, attributes, text) => {
    const e = document.createElementNS(NS, name);
    for (const k in attributes) e.setAttribute(k, attributes[k]);
    if (text !== undefined) e.textContent = text;
    return e;
  };
  const charts = [...document.querySelectorAll("figure")].map(figure => {
    const data = JSON.parse(figure.querySelector("script").textContent), svg = figure.querySelector("svg");
    const chart = {figure, svg, curves: data.curves, lines: [...svg.querySelectorAll("polyline")], cursor: null, tip: null};
    const y = v => T + (H - T - B) * (data.high - v) / (data.high - data.low);
    chart.draw = () => {
      const last = Math.max(...page.runs.map((axis, run) => at(run, page.last[run]))) || 1;
      const [unit, name] = kind !== "time" ? [1, {step: "optimizer step", tokens: "tokens learned from", flops: "FLOPs of training"}[kind]]
        : last >= 7200 ? [3600, "time in training steps [hours]"] : last >= 120 ? [60, "time in training steps [minutes]"]
        : [1, "time in training steps [seconds]"];
      chart.x = v => L + (W - L - R) * v / last;
      chart.curves.forEach((curve, i) => {
        curve.at = curve.level ? [0, last] : curve.step.map(step => at(curve.run, step));
        chart.lines[i].setAttribute("points", curve.at.map((v, j) => chart.x(v).toFixed(1) + "," + y(curve.value[j]).toFixed(1)).join(" "));
        if (curve.dots) svg.querySelectorAll("circle." + curve.css).forEach((dot, j) => dot.setAttribute("cx", chart.x(curve.at[j]).toFixed(1)));
      });
      svg.querySelectorAll(".x").forEach(e => e.remove());
      const raw = last / unit / 10, power = 10 ** Math.floor(Math.log10(raw));
      const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= raw * 0.999);
      for (let i = 0; i * step <= last / unit * (1 + 1e-9); i++) {
        const v = i * step, place = chart.x(v * unit).toFixed(1);
        if (kind === "step" && v !== Math.round(v)) continue;
        svg.insertBefore(element("line", {class: "grid x", x1: place, x2: place, y1: T, y2: H - B}), chart.lines[0]);
        svg.append(element("text", {class: "x", x: place, y: H - B + 16, "text-anchor": "middle"}, kind === "step" ? v : short(v)));
      }
      svg.append(element("text", {class: "x", x: (L + W - R) / 2, y: H - 8, "text-anchor": "middle"}, name));
    };
    // The cursor at a place of the axis, and what each curve has nearest to it.
    chart.show = (v, tip) => {
      chart.hide();
      chart.cursor = svg.appendChild(element("line", {class: "cursor", x1: chart.x(v), x2: chart.x(v), y1: T, y2: H - B}));
      if (!tip) return;
      chart.tip = figure.appendChild(document.createElement("div"));
      chart.tip.className = "tip";
      const rows = [];
      chart.curves.forEach(curve => {
        let j = upper(curve.at, v);
        if (j > 0 && (j === curve.at.length || v - curve.at[j - 1] < curve.at[j] - v)) j--;
        if (!curve.level && (v < curve.at[0] || v > curve.at[curve.at.length - 1]) && Math.abs(chart.x(curve.at[j]) - chart.x(v)) > 12) return;
        const key = document.createElement("div");
        key.className = "key-" + curve.css.split(" ")[0];
        key.append(curve.name + "  ", Object.assign(document.createElement("b"), {textContent: +curve.value[j].toPrecision(6)}));
        if (curve.dots) key.append("  at step " + curve.step[j]);
        rows.push(key);
      });
      chart.tip.append(say(kind, v), ...rows);
      const left = chart.x(v) / W * figure.clientWidth;
      chart.tip.style[left < figure.clientWidth / 2 ? "left" : "right"] =
        (left < figure.clientWidth / 2 ? left : figure.clientWidth - left) + 12 + "px";
    };
    chart.hide = () => { chart.cursor?.remove(); chart.tip?.remove(); };
    svg.addEventListener("pointermove", event => {
      const box = svg.getBoundingClientRect(), px = (event.clientX - box.left) / box.width * W;
      const v = (Math.min(Math.max(px, L), W - R) - L) / (chart.x(1) - chart.x(0));
      charts.forEach(other => other.show(v, other === chart));
    });
    svg.addEventListener("pointerleave", () => charts.forEach(other => other.hide()));
    return chart;
  });
  const bar = document.querySelector(".axes");
  for (const k of page.kinds) {
    const label = bar.appendChild(document.createElement("label"));
    const button = label.appendChild(Object.assign(document.createElement("input"), {type: "radio", name: "axis", checked: k === kind}));
    label.append(" " + {step: "steps", tokens: "tokens", time: "time", flops: "FLOPs"}[k]);
    button.addEventListener("change", () => { kind = k; charts.forEach(chart => chart.draw()); });
  }
  charts.forEach(chart => chart.draw());
})();
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


def last_mean(points, window):
    return statistics.fmean(value for _, value in points[-window:])


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


def flops_per_token(records):
    return last_header(records).get("model", {}).get("flops_per_token", 0)


def for_script(value):
    """JSON inside of a script element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


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
        return f'<p class="dim">no {html.escape(label)} in this log yet</p>'
    low, high = (min(0, min(values)) if from_zero else min(values)), max(values)
    pad = (high - low) * 0.05 or abs(high) * 0.05 or 1
    low, high = (low if from_zero else low - pad), high + pad
    last, x_unit, x_name = axis

    def x(at):
        return LEFT + (WIDTH - LEFT - RIGHT) * at / last

    def y(value):
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    name = html.escape(f"{label} [{unit}]" if unit else label)
    out = [f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name} over {x_name}">']
    for value in ticks(low, high, 7):
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{number_text(value)}</text>')
    for at in ticks(0, last / x_unit, 10):
        if x_name != "optimizer step" or at == int(at):
            place, text = x(at * x_unit), int(at) if x_name == "optimizer step" else number_text(at)
            out.append(f'<line class="grid x" x1="{place:.1f}" x2="{place:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
            out.append(f'<text class="x" x="{place:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{text}</text>')
    out.append(f'<text class="x" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{x_name}</text>')
    out.append(f'<text x="4" y="{TOP - 14}">{name}</text>')  # above: beside the ticks it would not have room
    data = []
    for css, points, dots, of in curves:
        some = thinned(points)
        path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value, _ in some)
        out.append(f'<polyline class="line {css}" points="{path}"/>')
        for at, value, step in some if dots else []:
            out.append(f'<circle class="dot {css}" cx="{x(at):.1f}" cy="{y(value):.1f}" r="3">'
                       f"<title>step {step}: {value:.4f}</title></circle>")
        run = int(css[3:]) if css.startswith("run") else 0
        data.append({"css": css, "name": of, "run": run, "dots": dots, "step": [step for _, _, step in some],
                     "value": [float(f"{value:.6g}") for _, value, _ in some],
                     "level": css == "ref" and len({value for _, value, _ in some}) == 1})  # fmt: skip
    script = for_script({"low": low, "high": high, "curves": data})
    return "\n".join([*out, f'</svg><script type="application/json">{script}</script></figure>'])


def section(title, *content):
    return f"<section><h2>{title}</h2>" + "\n".join(content) + "</section>"


def table(rows):
    cells = (f"<tr><td>{html.escape(str(k))}</td><td>{html.escape(str(v))}</td></tr>" for k, v in rows)
    return "<table>" + "\n".join(cells) + "</table>"


def default_flags():
    """{name: default} of `train` as doc/flags.md beside this script has them; {} if it is not there."""
    try:
        with open(os.path.join(os.path.dirname(os.path.realpath(__file__)), "../doc/flags.md"), encoding="utf-8") as file:
            text = re.split(r"^## ", file.read(), flags=re.MULTILINE)[1]
    except (OSError, IndexError):
        return {}
    row = r"^\| `--(?:\[no-\])?([a-z0-9-]+)[^`]*` \| (?:`([^`]*)`)? *\|"
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


def config_parts(config):
    changed = changed_flags(config)
    return [table(changed) if changed else '<p class="dim">all flags are their defaults</p>',
            f"<details><summary>all flags</summary>{table(config.items())}</details>"]


def wide_table(heads, rows):
    """`rows` of cells, each text or (css class, text)."""
    def cell(tag, content):
        css, text = content if isinstance(content, tuple) else ("", content)
        return f'<{tag}{f" class={css}" if css else ""}>{html.escape(str(text))}</{tag}>'
    lines = ["".join(cell("th", head) for head in heads)] + ["".join(cell("td", c) for c in row) for row in rows]
    return "<table>" + "\n".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def duration(seconds):
    seconds = round(seconds)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}" if seconds >= 3600 else \
        f"{seconds // 60}:{seconds % 60:02}"


def parse_reference(text):
    """'LABEL=LOSS' or 'LABEL=STEP:LOSS,...' -> (label, level or None, [(step, loss)])"""
    label, _, values = text.rpartition("=")
    try:
        if not label:
            raise ValueError
        if ":" not in values:
            return label, float(values), []
        pairs = [point.split(":") for point in values.split(",")]
        return label, None, sorted((int(step), float(loss)) for step, loss in pairs)
    except ValueError:
        raise UserError(f"--reference '{text}': expected LABEL=LOSS or LABEL=STEP:LOSS,STEP:LOSS,...") from None


def compared_with(reference, val):
    """A row of the summary: the last step at which there is a loss of both, and the difference."""
    label, level, points = reference
    theirs = dict(points)
    common = [(step, loss) for step, loss in val if level is not None or step in theirs]
    if not common:
        return label, "no validation at any of its steps yet"
    step, loss = common[-1]
    other = level if level is not None else theirs[step]
    return label, f"{other:.4f} nats per token; this run {loss - other:+.4f} at step {step}"


def page(name, records, references=(), usd_per_hour=0.0, x_kind="step"):
    train, val, bpb = series(records, "step", "loss"), series(records, "val", "loss"), series(records, "val", "bpb")
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
    summary += [compared_with(reference, val) for reference in references]
    if speed:
        summary.append(("median speed", f"{number_text(statistics.median(v for _, v in speed))} tokens/s"))
    if ms:
        seconds = sum(v for _, v in ms) / 1000
        if speed:
            summary.append(("tokens learned from", number_text(Axis(records, "tokens").last)))
        summary.append(("time in training steps", duration(seconds)))
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

    key = '<p><span class="key-train">&#9473;&#9473; training</span>' + (f" (pale: each step; strong: mean of {window} around it)"
                                                                          if window > 1 else "")
    key += ' &#160; <span class="key-val">&#9679; validation</span>' if val else ""
    key += "".join(f' &#160; <span class="key-ref">&#9476;&#9476; {html.escape(label)}</span>' for label, _, _ in references)
    key += "</p>"
    loss_curves = [("train raw" if window > 1 else "train", train, False, "this step")]
    if window > 1:
        loss_curves.append(("train", smoothed(train, window), False, f"mean of {window}"))
    if val:
        loss_curves.append(("val", val, True, "validation"))

    for label, level, points in references:
        drawn = [(0, level), (last_step, level)] if level is not None else [p for p in points if p[0] <= last_step]
        loss_curves.append(("ref", drawn, False, label))

    def drawn_chart(label, unit, curves, from_zero):
        placed = [(css, axis.place(points), dots, of) for css, points, dots, of in curves]
        return chart(label, unit, placed, shared, from_zero)

    charts = [section("Loss", key, drawn_chart("loss", "nats per token", loss_curves, False))]
    if bpb:
        curves = [("val", bpb, True, "validation")]
        charts.append(section("Bits per byte", drawn_chart("validation", "bits per byte", curves, False)))
    charts += [section(title, drawn_chart(label, unit, [("train", points, False, title.lower())], True)) for title, label, unit, points in
               (("Gradient norm", "gradient norm before clipping", "", norm), ("Learning rate", "learning rate", "", lr),
                ("Speed", "speed", "tokens/s", speed))]  # fmt: skip
    mfu = [(step, 100 * part) for step, part in series(records, "step", "mfu")]
    if mfu:
        charts.append(section("MFU", drawn_chart("model FLOPs utilization", "%", [("train", mfu, False, "MFU")], True)))
    if comm["comm_ms"]:
        key = '<p><span class="key-train">&#9473;&#9473; waited for</span>' \
              ' &#160; <span class="key-val">&#9473;&#9473; in collectives</span></p>'
        charts.append(section("Communication between ranks", key, drawn_chart("time of a step", "ms", [
            ("val", comm["comm_ms"], False, "in collectives"), ("train", comm["comm_exposed_ms"], False, "waited for")], True)))
    parts = ['<div class="axes"></div>', f"<h1>{html.escape(name)}</h1>", f'<div class="cards">{table(summary)}</div>',
             '<div class="charts">', *charts, "</div>"]
    step, samples = last_samples(records, 5)
    if samples:
        earlier = [s for s in records if s["type"] == "sample" and s.get("step", 0) != step]
        folded = "".join(f"<h2>Step {s.get('step', 0)}</h2>{sample_text(s)}" for s in earlier[:: max(1, len(earlier) // 20)])
        more = f"<details><summary>how they became so</summary>{folded}</details>" if folded else ""
        parts.append(section(f"Samples at step {step}", *[sample_text(sample) for sample in samples], more))
    header = last_header(records)
    if header:
        parts.append(section("Config", *config_parts(header.get("config", {}))))
        parts.append(section("Where and with what", table([*header.get("machine", {}).items(), *header.get("build", {}).items(),
                             *(("data, " + k, v) for k, v in header.get("data", {}).items())])))  # fmt: skip
    return document(name, parts, axes=axes_for_script([records], x_kind))


def document(title, parts, style="", axes=None):
    body = "\n".join(parts)
    return (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{html.escape(title)}</title>\n'
            f"<style>{STYLE}{style}</style></head>\n<body>\n{body}\n"
            f'<script type="application/json" id="axes">{for_script(axes)}</script>\n<script>{SCRIPT}</script>\n</body></html>\n')


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


def sample_text(sample):
    return (f"<pre><b>{html.escape(str(sample.get('prompt', '')))}</b>"
            f"{html.escape(str(sample.get('text', '')))}</pre>")


def comparison(names, logs, references=(), usd_per_hour=0.0, x_kind="step"):
    """The page of several runs: curves on the same axes, and the settings in which they differ."""
    runs = list(enumerate(zip(names, logs)))
    css = [f"run{i}" for i, _ in runs]
    axes = [Axis(log, x_kind) for log in logs]
    shared = Axis.common(axes)
    key = "<p>" + " &#160; ".join(f'<span class="key-{css[i]}">&#9473;&#9473; {html.escape(name)}</span>'
                                  for i, (name, _) in runs)
    ref_key = "".join(f' &#160; <span class="key-ref">&#9476;&#9476; {html.escape(label)}</span>' for label, _, _ in references)

    bpb = [series(log, "val", "bpb") for log in logs]
    heads = ["run", "steps", "training loss", "best validation", "last validation"]
    heads += (["bits per byte"] if any(bpb) else []) + ["tokens/s", "time"]
    heads += (["USD"] if usd_per_hour else []) + [label for label, _, _ in references] + ["state"]
    rows, train_curves = [], []
    for i, (name, log) in runs:
        train, val = series(log, "step", "loss"), series(log, "val", "loss")
        speed, ms = series(log, "step", "tokens_per_s"), series(log, "step", "ms")
        train_curves.append((css[i], axes[i].place(smoothed(train, smoothing(train))), False, name))
        best = min(val, key=lambda p: p[1]) if val else None
        seconds = sum(v for _, v in ms) / 1000
        row = [("key-" + css[i], name), max((r.get("step", 0) for r in log), default=0),
               f"{last_mean(train, smoothing(train)):.4f}" if train else "",
               f"{best[1]:.4f} at {best[0]}" if val else "", f"{val[-1][1]:.4f} at {val[-1][0]}" if val else ""]
        row += [f"{bpb[i][-1][1]:.4f} at {bpb[i][-1][0]}" if bpb[i] else ""] if any(bpb) else []
        row += [number_text(statistics.median(v for _, v in speed)) if speed else "", duration(seconds)]
        row += [f"{seconds / 3600 * usd_per_hour:.2f}"] if usd_per_hour else []
        rows.append(row + [compared_with(reference, val)[1] for reference in references] + [state_of(log)])

    def overlaid(kind, name, dots=False):
        return [(css[i], axes[i].place(series(log, kind, name)), dots, of) for i, (of, log) in runs]

    val_curves = overlaid("val", "loss", True)
    for label, level, points in references:
        if level is None and x_kind != "step":
            raise UserError(f"a --reference by steps has no place on the axis of several runs with --x {x_kind}: give LABEL=LOSS")
        drawn = [(0, level), (shared[0], level)] if level is not None else [p for p in points if p[0] <= shared[0]]
        val_curves.append(("ref", [(at, loss, at) for at, loss in drawn], False, label))
    key += "</p>"
    charts = [section("Validation loss", key.replace("</p>", ref_key + "</p>"),
                      chart("validation loss", "nats per token", val_curves, shared, False))]  # fmt: skip
    if any(bpb):
        charts.append(section("Bits per byte", key, chart("validation", "bits per byte", overlaid("val", "bpb", True), shared, False)))
    charts.append(section("Training loss", key, chart("training loss, smoothed", "nats per token", train_curves, shared, False)))
    charts += [section(title, key, chart(label, unit, overlaid("step", field), shared, True)) for title, label, unit, field in
               (("Gradient norm", "gradient norm before clipping", "", "norm"), ("Learning rate", "learning rate", "", "lr"),
                ("Speed", "speed", "tokens/s", "tokens_per_s"))]  # fmt: skip
    parts = ['<div class="axes"></div>', f"<h1>{html.escape(', '.join(names))}</h1>", f"<section>{wide_table(heads, rows)}</section>",
             '<div class="charts">', *charts, "</div>"]

    for i, (name, log) in runs:
        step, samples = last_samples(log, 2)
        if samples:
            title = f'Samples of <span class="key-{css[i]}">{html.escape(name)}</span> at step {step}'
            parts.append(section(title, *[sample_text(sample) for sample in samples]))

    facts = []
    for log in logs:
        header = last_header(log)
        facts.append({**header.get("config", {}), **header.get("machine", {}), **header.get("build", {}),
                      **{"data, " + k: v for k, v in header.get("data", {}).items()}})
    keys = [k for k in dict.fromkeys(k for fact in facts for k in fact) if len({str(fact.get(k, "")) for fact in facts}) > 1]
    parts.append(section("In what they differ", wide_table([""] + [("key-" + c, name) for c, name in zip(css, names)],
                            [[k] + [fact.get(k, "") for fact in facts] for k in keys]) if keys
                 else '<p class="dim">in nothing that their logs tell</p>'))
    return document(", ".join(names), parts, run_style(len(names)), axes_for_script(logs, x_kind))


def main():
    parser = argparse.ArgumentParser(description="Draws runs: RUN/log.jsonl to one HTML page.")
    parser.add_argument("runs", metavar="RUN", nargs="+", help="the --out-dir of a run; several are drawn on one page")
    parser.add_argument("--out", metavar="FILE", help="the page [report.html in RUN, or in the folder of all of them]")
    parser.add_argument("--reference", metavar="LABEL=LOSSES", action="append", default=[],
                        help="the validation loss of others: LOSS, or STEP:LOSS,STEP:LOSS,...; may be given again")
    parser.add_argument("--usd-per-hour", metavar="X", type=float, default=0, help="the machine's price, for the cost [0]")
    parser.add_argument("--x", choices=Axis.KINDS, default="step", help="what curves are drawn over [step]")
    parser.add_argument("--watch", metavar="SECONDS", type=float, help="draw again every so many seconds until all runs have ended")
    args = parser.parse_args()
    try:
        ended = write_page(args)
        print(args.out or os.path.join(folder_of(args.runs), "report.html"), flush=True)
        while args.watch is not None and not ended:
            time.sleep(max(1.0, args.watch))
            ended = write_page(args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0
    return 0


def folder_of(runs):
    return runs[0] if len(runs) == 1 else os.path.commonpath([os.path.dirname(os.path.abspath(run)) for run in runs])


def write_page(args):
    """Draws the runs as they are now; whether all have ended."""
    references = [parse_reference(text) for text in args.reference]
    logs, folder = [read_records(os.path.join(run, "log.jsonl")) for run in args.runs], folder_of(args.runs)
    if len(logs) == 1:
        text = page(os.path.basename(os.path.abspath(folder)), logs[0], references, args.usd_per_hour, args.x)
    else:
        paths = [os.path.abspath(run) for run in args.runs]
        if len(set(paths)) < len(paths):
            raise UserError("a run is given twice; expected different ones")
        text = comparison([os.path.relpath(path, folder) for path in paths], logs, references, args.usd_per_hour, args.x)
    ended = all(state_of(log) != "not ended" for log in logs)
    if args.watch is not None and not ended:
        text = text.replace("<title>", f'<meta http-equiv="refresh" content="{max(1, round(args.watch))}"><title>', 1)
    out = args.out or os.path.join(folder, "report.html")
    try:
        with open(out + ".tmp", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(out + ".tmp", out)
    except OSError as error:
        if os.path.isfile(out + ".tmp"):
            os.remove(out + ".tmp")
        raise UserError(f"cannot write {out}: {error.strerror}") from None
    return ended


if __name__ == "__main__":
    sys.exit(main())
