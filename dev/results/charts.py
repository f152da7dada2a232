#!/usr/bin/env python3
"""Draws the charts of README.md and doc/ from doc/results/: doc/images/NAME-light.svg and NAME-dark.svg.

    dev/results/charts.py            writes them
    dev/results/charts.py --check    exit code 1 if a committed chart differs from what it would draw (part of `make lint`)

cpu-vs-pytorch: training speed on a CPU compared with PyTorch's, measured (doc/results/against-pytorch.json).
mup: the best learning rate by width, with and without muP, measured (doc/results/mup.csv).
Badges: the license and VERSION. one-step: a diagram for doc/design.md.
gpu-step: tokens per second on a GPU. Shows the measured training runs of doc/results/GPU-DATE/ if there are any, else the
predictions of `./train_gpt plan` (doc/results/steps-predicted.json). The title tells which; a chart never mixes both.
Needs only Python 3.
"""
import argparse
import html
import json
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "dev/bench"), str(ROOT / "scripts")]
from against_pytorch import CONFIGS, best, classes, is_small, ratio, shown  # noqa: E402
import mup  # noqa: E402
from coordinate_check import panels  # noqa: E402
from perf_table import folders_of, newest_results, read_object, read_rows  # noqa: E402

IMAGES = ROOT / "doc/images"
# The colors of each theme: text, fainter text, grid lines, Anvil, Anvil's second type, others, others' second type.
THEMES = {
    "light": ("#1f2328", "#59636e", "#d8dee4", "#0969da", "#80b3ec", "#8c959f", "#ced4da"),
    "dark": ("#e6edf3", "#9198a1", "#2d333b", "#4493f8", "#2a5a9c", "#767e89", "#40464e"),
}
WIDTH, LEFT, RIGHT = 720, 156, 170
BAR, GAP, SPACE = 15, 3, 17  # a bar, between the bars of a group, between groups
NAMES = {
    "small": "0.8M, T = 64",
    "mid": "11M, T = 256",
    "124M-256": "124M, T = 256",
}


def thousands(rate):
    return f"{rate / 1e3:.3g}k" if rate >= 1e3 else f"{rate:.3g}"


def chart(theme, title, subtitle, groups, marks, unit, legend):
    """Horizontal bars. groups: [(name, [(index of the color, low, value, high, label)])]; low and high: the predicted range, or None."""
    text, dim, grid = THEMES[theme][:3]
    widest = max(high or value for _, bars in groups for _, _, value, high, _ in bars)
    scale = (WIDTH - LEFT - RIGHT) / widest
    y, body = 74 if legend else 58, []
    top = y - 6
    for name, bars in groups:
        height = len(bars) * (BAR + GAP) - GAP
        body.append(f'<text x="{LEFT - 10}" y="{y + height / 2 + 4.5:g}" text-anchor="end" fill="{text}">{html.escape(name)}</text>')
        for color, low, value, high, label in bars:
            end = value * scale
            body.append(f'<rect x="{LEFT}" y="{y}" width="{end:.1f}" height="{BAR}" rx="2" fill="{THEMES[theme][color]}"/>')
            if low is not None:
                middle = y + BAR / 2
                body.append(
                    f'<path d="M{LEFT + low * scale:.1f} {middle}H{LEFT + high * scale:.1f}M{LEFT + low * scale:.1f} {middle - 4}v8'
                    f'M{LEFT + high * scale:.1f} {middle - 4}v8" stroke="{text}" stroke-width="1.2" fill="none"/>'
                )
                end = high * scale
            body.append(f'<text x="{LEFT + end + 7:.1f}" y="{y + 12}" fill="{dim}" font-size="12">{html.escape(label)}</text>')
            y += BAR + GAP
        y += SPACE - GAP
    bottom = y - SPACE + 6
    lines = []
    for mark in marks:
        x = LEFT + mark * scale
        lines.append(f'<path d="M{x:.1f} {top}V{bottom}" stroke="{grid}"/>')
        lines.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle" fill="{dim}" font-size="12">{unit(mark)}</text>')
    keys, x = [], LEFT
    for color, name in legend:
        keys.append(f'<rect x="{x}" y="50" width="11" height="11" rx="2" fill="{THEMES[theme][color]}"/>')
        keys.append(f'<text x="{x + 16}" y="60" fill="{text}" font-size="12">{name}</text>')
        x += 30 + 7 * len(name)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 26}" width="{WIDTH}" height="{bottom + 26}" role="img" '
        f'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="13" aria-label="{html.escape(title)}">'
    )
    titles = [
        f'<text x="10" y="20" fill="{text}" font-size="15" font-weight="600">{html.escape(title)}</text>',
        f'<text x="10" y="39" fill="{dim}" font-size="12">{html.escape(subtitle)}</text>',
    ]
    return "\n".join([head, *titles, *keys, *lines, *body, "</svg>"]) + "\n"


def cpu_chart(theme):
    """Speed as a multiple of PyTorch's fastest mode, and the tokens per second beside each bar."""
    results = [r for r in json.loads((ROOT / "doc/results/against-pytorch.json").read_text(encoding="utf-8")) if "turns" in r]
    groups = []
    for result in (r for r in shown(results) if not is_small(r)):
        turns, (_, _, _, T, B, _) = result["turns"], CONFIGS[result["config"]]
        fastest, bars = best(turns, ("fp32", "bf16")), []
        for color, key in ((3, "Anvil bf16"), (4, "Anvil fp32"), (5, best(turns, ["bf16"])), (6, best(turns, ["fp32"]))):
            if key not in turns:
                continue
            times = ratio(turns, fastest, key)
            rate = B * T / statistics.median(turns[key]["ms"]) * 1e3
            bars.append((color, None, times, None, f"{times:.2f}x, {thousands(rate)} tok/s"))
        machine = "" if len(classes(results)) == 1 else ", " + result["class"].removeprefix("AMD ").removesuffix(", AVX-512 with bf16").replace(",", "")
        groups.append((NAMES[result["config"]] + machine, bars))
    first = results[0]
    highest = max(bar[2] for _, bars in groups for bar in bars)
    return chart(
        theme,
        "Training on two CPU cores, beside PyTorch: measured",
        f"Times the speed of PyTorch {first['torch'].split('+')[0]} in its fastest mode, with {first['threads']} threads: "
        f"{'; '.join(classes(results))}.",
        groups,
        range(int(highest) + 1),
        lambda mark: f"{mark}x",
        [(3, "Anvil bf16"), (4, "Anvil fp32"), (5, "PyTorch bf16, its best"), (6, "PyTorch fp32, its best")],
    )


# The runs of scripts/gpu_check.sh that are shown, if they were measured.
GPU_RUNS = {"124M": "GPT-2 124M", "124M, llm.c": "the same, llm.c", "124M, PyTorch": "the same, PyTorch compiled", "1558M": "GPT-2 1558M",
            "nanochat d12": "nanochat d12", "nanochat d12, fp8": "nanochat d12, FP8", "stage-a": "modded-nanogpt's track 3"}  # fmt: skip


def measured_runs():
    """(name of the GPU, date, [(what, tokens per second)]) of the GPU with the most of GPU_RUNS, or None. Of a run with several
    kinds of attention the fastest."""
    found = []
    for folder in newest_results():
        machine, rates = {}, {}
        for part in folders_of(folder):
            machine = machine or read_object(part / "machine.json")
            for row in read_rows(part / "results.jsonl") if (part / "results.jsonl").is_file() else []:
                if row["type"] == "train" and not row.get("smoke") and row["run"] in GPU_RUNS:
                    rates[row["run"]] = max(rates.get(row["run"], 0), row["tokens_per_second"])
        shown = [(GPU_RUNS[run], rates[run]) for run in GPU_RUNS if run in rates]
        found.append((machine.get("GPU", folder.name), folder.name[-10:], shown))
    return max(found, key=lambda one: len(one[2])) if any(one[2] for one in found) else None


def gpu_chart(theme):
    measured = measured_runs()
    if measured:
        gpu, date, rates = measured
        groups = [(what, [(3, None, rate, None, f"{thousands(rate)} tok/s")]) for what, rate in rates]
        title, subtitle = f"A training step on one GPU: measured on {gpu}", f"Tokens per second, bf16, {date}."
        legend = []
    else:
        rows = json.loads((ROOT / "doc/results/steps-predicted.json").read_text(encoding="utf-8"))
        bars = {}
        for row in rows:
            # Of attention only the default, of FP8 only the faster scaling.
            name = row["model"].replace(" in FP8, delayed", ", FP8").replace(", 8 GPUs", " (8)")
            if row["gpu"] in ("H100", "H200") and "--attention" not in name and " in FP8" not in name:
                low, mid, high = row["tokens_per_s_of_a_gpu"]
                label = f"{thousands(mid)} tok/s, MFU {100 * row['mfu'][1]:.0f} %"
                bars.setdefault(name, []).append((3 if row["gpu"] == "H100" else 4, low, mid, high, label))
        groups = list(bars.items())
        title = "A training step on H100 and H200: predicted, not measured"
        subtitle = "Tokens per second of each GPU, (8): of eight; low to high, by `train_gpt plan`."
        legend = [(3, "H100 80GB"), (4, "H200")]
    highest = max(high or value for _, bars in groups for _, _, value, high, _ in bars)
    step = next(s for s in (1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6) if highest / s <= 7)
    marks = [step * i for i in range(int(highest / step) + 1)]
    return chart(theme, title, subtitle, groups, marks, thousands, legend)


def step_diagram(theme):
    """The two streams of a GPU during a step, with twelve layers in four buckets and the embeddings (doc/distributed/how_it_works.md)."""
    text, dim, grid, strong, pale, gray, light = THEMES[theme]
    lanes = [("compute", 46), ("communication", 92), ("host", 138)]
    layers = ["emb.", "0-2", "3-5", "6-8", "9-11"]
    forward, backward = [(22, name) for name in layers], [(36, name) for name in reversed(layers)]
    boxes, x = [], 110
    for width, name in forward:
        boxes.append((0, x, width, pale, name if width > 30 else ""))
        x += width
    spans = [(110, x, "forward")]
    ready = [x := x + 36 for _ in range(5)]  # where each bucket's gradients are complete
    for end, (width, name) in zip(ready, backward):
        boxes.append((0, end - width, width, strong, name))
    spans.append((ready[0] - 36, x, "backward"))
    boxes += [(1, end, 32, gray, f"RS {i}") for i, end in enumerate(ready)]
    boxes.append((1, x + 32, 22, light, "AR"))
    boxes.append((0, x + 54, 22, light, "clip"))
    for i in range(5):
        boxes.append((0, x + 76 + 28 * i, 28, strong, f"{4 - i}"))
        boxes.append((1, x + 104 + 28 * i, 28, gray, f"AG {4 - i}"))
    spans.append((x + 76, x + 216, "update of bucket"))
    start = x + 220
    for i in range(5):
        boxes.append((0, start + 24 * i, 24, pale, ""))
    spans.append((start, start + 120, "next forward"))
    boxes.append((2, 110, 60, light, "step s+1"))
    boxes.append((2, 176, 90, light, "prepares batch"))
    boxes.append((2, start, 60, light, "step s+2"))
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {start + 130} 176" width="{start + 130}" height="176" role="img" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="10" '
        'aria-label="A training step on two streams">'
    ]
    for lane, y in lanes:
        out.append(f'<text x="100" y="{y + 16}" text-anchor="end" fill="{text}" font-size="12">{lane}</text>')
        out.append(f'<path d="M110 {y + 28}H{start + 124}" stroke="{grid}"/>')
    for left, right, name in spans:
        out.append(f'<text x="{(left + right) / 2}" y="36" text-anchor="middle" fill="{dim}" font-size="12">{name}</text>')
    for lane, left, width, color, name in boxes:
        ink = "#fff" if color in (strong, gray) else text
        out.append(f'<rect x="{left + 0.5}" y="{lanes[lane][1]}" width="{width - 1}" height="24" rx="2" fill="{color}"/>')
        out.append(f'<text x="{left + width / 2}" y="{lanes[lane][1] + 16}" text-anchor="middle" fill="{ink}">{name}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def mup_chart(theme):
    """Validation loss over the learning rate, a curve per width, without and with muP; a dot marks the best rate."""
    found, (text, dim, grid, strong, pale, gray, _) = mup.read(), THEMES[theme]
    groups = {
        f"{name}: best rates {mup.distance(found, of):.3g}x apart": {
            f"{width} channels": [(rate, statistics.mean(loss.values())) for rate, loss in sorted(found[of, width].items())]
            for width in mup.WIDTHS
        }
        for name, of in (("standard", "standard"), ("muP", "muP"))
    }
    lowest = min(loss for curves in groups.values() for points in curves.values() for _, loss in points)
    return panels(
        (text, dim, grid, (gray, pale, strong)),
        "The best learning rate by width: measured",
        f"GPT-2 with AdamW, 300 steps of tiny Shakespeare's bytes; mean of {len(mup.SEEDS)} seeds; a dot: the best rate of a width.",
        groups,
        "learning rate",
        "validation loss",
        False,
        (lowest - 0.02, lowest + 0.6),
    )


def badge(name, value, color):
    """A badge that looks like those of shields.io."""
    left, right = 12 + round(6.3 * len(name)), 12 + round(6.3 * len(value))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" aria-label="{name}: {value}">
<clipPath id="r"><rect width="{left + right}" height="20" rx="3"/></clipPath>
<g clip-path="url(#r)"><path fill="#555" d="M0 0h{left}v20H0z"/><path fill="{color}" d="M{left} 0h{right}v20h-{right}z"/></g>
<g fill="#fff" text-anchor="middle" font-family="Verdana, DejaVu Sans, sans-serif" font-size="11">
<text x="{left / 2}" y="14">{name}</text><text x="{left + right / 2}" y="14">{value}</text></g>
</svg>
"""


CHARTS = {"cpu-vs-pytorch": cpu_chart, "gpu-step": gpu_chart, "mup": mup_chart, "one-step": step_diagram}


def images():
    """{path: SVG}"""
    wanted = {IMAGES / f"{name}-{theme}.svg": draw(theme) for name, draw in CHARTS.items() for theme in THEMES}
    license_name = (ROOT / "LICENSE").read_text(encoding="utf-8").split()[0]
    version = (ROOT / "VERSION").read_text(encoding="utf-8").strip()
    wanted[IMAGES / "badge-license.svg"] = badge("license", license_name, "#2f81c7")
    wanted[IMAGES / "badge-release.svg"] = badge("release", version, "#2f81c7")
    return wanted


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    stale = 0
    for path, wanted in images().items():
        if path.is_file() and path.read_text(encoding="utf-8") == wanted:
            continue
        stale += 1
        if args.check:
            print(f"{path.relative_to(ROOT)} is not what doc/results/ and VERSION say: run dev/results/charts.py")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(wanted, encoding="utf-8")
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
