"""What a page is made of: its style, its script, sections and tables."""

from .charts import for_script
from .markup import Markup, joined, markup

STYLE = """
:root { color-scheme: light dark; --fg: #1f2328; --bg: #ffffff; --grid: #e4e8ec; --dim: #59636e; --box: #f6f8fa;
        --train: #0969da; --val: #bc4c00; }
@media (prefers-color-scheme: dark) {
  :root { --fg: #e6edf3; --bg: #0d1117; --grid: #262c35; --dim: #9198a1; --box: #161b22; --train: #58a6ff; --val: #f0883e; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--fg); background: var(--bg); max-width: 76rem; margin: 1.5rem auto;
       padding: 0 1.2rem; }
h1 { font-size: 1.5rem; margin: .3rem 1rem .2rem 0; overflow-wrap: anywhere } h2 { font-size: 1.05rem; margin: .2rem 0 .3rem }
section { background: var(--box); border-radius: .6rem; padding: .8rem 1rem; margin: 0 0 1rem; min-width: 0; overflow-x: auto }
section p { margin: .2rem 0 }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(32rem, 100%), 1fr)); gap: 0 1rem }
.charts > section:first-child, .charts > section:last-child:nth-child(even) { grid-column: 1 / -1 }
.cards table, .cards tbody { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(15rem, 46%), 1fr)); gap: .7rem; margin: 0 0 1rem }
.cards tbody { grid-column: 1 / -1; margin: 0 } .cards tr { background: var(--box); border-radius: .6rem; padding: .55rem .9rem }
.cards td { display: block; padding: 0 } .cards td:first-child { color: var(--dim); font-size: .85rem }
figure { margin: 0; position: relative } .charts > section:first-child figure { max-width: 66rem; margin: auto }
svg { width: 100%; height: auto; display: block } svg text { fill: var(--dim); font: 15px system-ui, sans-serif }
.charts > section:first-child svg text { font-size: 12px }
@media (max-width: 40rem) { body { padding: 0 .6rem } .cards tr { padding: .35rem .6rem } svg text, .charts > section:first-child svg text { font-size: 20px } }
.grid { stroke: var(--grid); stroke-width: 1 } .line { fill: none; stroke-width: 1.8; stroke-linejoin: round }
.train { stroke: var(--train) } .raw { opacity: .28; stroke-width: 1 } .val { stroke: var(--val) }
.ref { stroke: var(--dim); stroke-dasharray: 5 4 } .cursor { stroke: var(--dim); stroke-width: 1; pointer-events: none }
.dot { fill: var(--val); stroke: none } .key-ref { color: var(--dim) } .key-train { color: var(--train) } .key-val { color: var(--val) }
.tip { position: absolute; top: 2.2rem; pointer-events: none; background: var(--bg); border: 1px solid var(--grid); border-radius: .4rem;
       padding: .35rem .6rem; font-size: .82rem; white-space: nowrap; z-index: 1; box-shadow: 0 2px 8px #0003 }
.tip b { font-variant-numeric: tabular-nums } .axes label { margin-right: .8rem; cursor: pointer; white-space: nowrap }
header { display: flex; flex-wrap: wrap; justify-content: space-between; align-items: baseline; margin: 0 0 .8rem }
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


def section(title, *content):
    return markup("<section><h2>{}</h2>{}</section>", title, joined(content, "\n"))


def table(rows):
    return markup("<table>{}</table>", joined((markup("<tr><td>{}</td><td>{}</td></tr>", k, v) for k, v in rows), "\n"))


def wide_table(heads, rows):
    """`rows` of cells, each text or (css class, text)."""
    def cell(tag, content):
        css, text = content if isinstance(content, tuple) else ("", content)
        return markup("<{tag}{css}>{text}</{tag}>", tag=tag, css=markup(" class={}", css) if css else "", text=text)
    lines = [joined(cell("th", head) for head in heads)] + [joined(cell("td", c) for c in row) for row in rows]
    return markup("<table>{}</table>", joined((markup("<tr>{}</tr>", line) for line in lines), "\n"))


def folded(summary, *content):
    return markup("<details><summary>{}</summary>{}</details>", summary, joined(content))


def key(css, sign, text):
    """What a color or a line of a chart stands for."""
    return markup('<span class="key-{}">{} {}</span>', css, Markup(sign), text)


def legend(all_of_them):
    return markup("<p>{}</p>", joined(all_of_them, " &#160; "))


def duration(seconds):
    seconds = round(seconds)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}" if seconds >= 3600 else \
        f"{seconds // 60}:{seconds % 60:02}"


def sample_text(sample):
    return markup("<pre><b>{}</b>{}</pre>", sample.get("prompt", ""), sample.get("text", ""))


def document(title, parts, style="", axes=None):
    return markup(
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>{}</title>\n'
        "<style>{}{}</style></head>\n<body>\n{}\n"
        '<script type="application/json" id="axes">{}</script>\n<script>{}</script>\n</body></html>\n',
        title, Markup(STYLE), Markup(style), joined(parts, "\n"), for_script(axes), Markup(SCRIPT))  # fmt: skip
