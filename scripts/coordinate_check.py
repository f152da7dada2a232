#!/usr/bin/env python3
"""Coordinate check: whether the sizes of activations depend on a model's width, with the standard parametrization and with muP.

    scripts/coordinate_check.py                                      a table, and coordinate_check.svg
    scripts/coordinate_check.py --widths 64,256,1024 --steps 5 --out check.svg -- --num-layers 4 --learning-rate 0.02

Trains a model of each width for some steps, twice: as it is, and with mup-base-width (the first of the widths). After each step
train_gpt validates, and writes the root mean square of activations to its log (activation-sizes, llmc/eval/activation_sizes.h).
What follows -- goes to train_gpt, such as --train-data; lines of a file for --model are given with --lines 'biases = false'.
$ANVIL_PROGRAMS: the folder of train_gpt, . by default.

Exit code 1: with muP a size at the widest model is not within a factor of sqrt(widest / narrowest) of that at the narrowest one.
That is half way, on a logarithmic axis, between no growth and growth with the width.
"""

import argparse
import html
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
SIZES = ("embedding", "attention", "mlp", "residual", "logits")
FLAGS = """--num-layers 2 --num-heads 4 --seq-len 64 --batch-size 8 --learning-rate 0.01 --lr-schedule constant --warmup-steps 0
    --device cpu --dtype fp32 --launcher none --val-tokens 512 --sample-tokens 0 --checkpoint-every 0 --seed 1"""
LIGHT = ("#1f2328", "#59636e", "#d8dee4", ("#0969da", "#bf8700", "#1a7f37", "#8250df", "#cf222e"))
PANEL, HIGH, LEFT, TOP = 340, 220, 56, 84


def panels(colors, title, subtitle, groups, x_name, y_name, is_y_log, y_range=None):
    """An SVG of panels with common axes. groups: {panel: {curve: [(x, y)]}}; each curve's lowest point is marked unless y is logarithmic."""
    text, dim, grid, lines = colors
    points = [point for curves in groups.values() for curve in curves.values() for point in curve]
    xs = sorted({x for x, _ in points})
    scale = math.log2 if is_y_log else float
    low, high = y_range or (min(y for _, y in points), max(y for _, y in points))
    low, high = scale(low), scale(high)
    names = list(dict.fromkeys(name for curves in groups.values() for name in curves))
    width, height = LEFT + len(groups) * PANEL, TOP + HIGH + 46
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="12" aria-label="{html.escape(title)}">',
        f'<text x="10" y="20" fill="{text}" font-size="15" font-weight="600">{html.escape(title)}</text>',
        f'<text x="10" y="39" fill="{dim}">{html.escape(subtitle)}</text>',
    ]

    def word(x, y, what, color=dim, anchor="middle"):
        out.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{html.escape(what)}</text>')

    def height_of(y):
        return TOP + HIGH * (high - min(max(scale(y), low), high)) / (high - low or 1)

    at = 12
    for name, color in zip(names, lines):
        out.append(f'<rect x="{at}" y="49" width="11" height="11" rx="2" fill="{color}"/>')
        word(at + 16, 59, name, text, "start")
        at += 34 + 7 * len(name)
    step = 1 if is_y_log else next(s for s in (0.05, 0.1, 0.2, 0.5, 1, 2) if (high - low) / s <= 8)
    marks = [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    for panel, (name, curves) in enumerate(groups.items()):
        left = LEFT + panel * PANEL

        def place(x, left=left):
            return left + (PANEL - 40) * math.log(x / xs[0]) / (math.log(xs[-1] / xs[0]) or 1)

        word(left + PANEL / 2 - 20, TOP - 8, name, text)
        for mark in marks:
            y = height_of(2**mark if is_y_log else mark)
            out.append(f'<path d="M{left} {y:.1f}h{PANEL - 40}" stroke="{grid}"/>')
            if panel == 0:
                word(left - 6, y + 4, f"{2**mark if is_y_log else mark:.3g}", dim, "end")
        for x in xs[:: math.ceil(len(xs) / 5)]:
            word(place(x), TOP + HIGH + 17, f"{x:.3g}")
        word(left + PANEL / 2 - 20, TOP + HIGH + 36, x_name)
        for curve, color in zip(names, lines):
            if not curves.get(curve):
                continue
            path = " ".join(f"{place(x):.1f},{height_of(y):.1f}" for x, y in curves[curve])
            out.append(f'<polyline points="{path}" stroke="{color}" stroke-width="1.8" fill="none"/>')
            marked = curves[curve] if is_y_log else [min(curves[curve], key=lambda point: point[1])]
            out += [f'<circle cx="{place(x):.1f}" cy="{height_of(y):.1f}" r="4" fill="{color}"/>' for x, y in marked]
    word(10, TOP - 8, y_name, dim, "start")
    return "\n".join([*out, "</svg>"]) + "\n"


def sizes_of(width, base, args, scratch):
    """The sizes after each step: {step: {name: RMS}}."""
    out = f"{scratch}/{width}-{base}"
    lines = ["activation-sizes = true", f"mup-base-width = {base}", *args.lines]
    pathlib.Path(out + ".cfg").write_text("\n".join(lines) + "\n", encoding="utf-8")
    program = os.path.join(ROOT, os.environ.get("ANVIL_PROGRAMS", "./"), "train_gpt")
    command = [program, *FLAGS.split(), "--channels", str(width), "--steps", str(args.steps), "--val-every", "1"]
    done = subprocess.run([*command, *args.flags, "--config", out + ".cfg", "--out-dir", out], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr.strip() or f"error: train_gpt ended with exit code {done.returncode}")
    records = [json.loads(line) for line in pathlib.Path(out, "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return {r["step"]: {name: float(r["sizes"][name]) for name in SIZES} for r in records if r["type"] == "val"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", default="64,128,256,512")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", default="coordinate_check.svg")
    parser.add_argument("--lines", action="append", default=[])
    parser.add_argument("flags", nargs="*")
    args = parser.parse_args()
    try:
        widths = sorted({int(width) for width in args.widths.split(",")})
    except ValueError:
        parser.error(f"--widths {args.widths}: expected numbers with commas between them, such as 64,128,256")
    if args.steps < 1 or len(widths) < 2 or widths[0] < 1:
        parser.error("expected at least one step and two widths")
    groups, bound, worst = {}, math.sqrt(widths[-1] / widths[0]), ("", 1.0)
    with tempfile.TemporaryDirectory() as scratch:
        for name, base in (("standard", 0), (f"muP, mup-base-width = {widths[0]}", widths[0])):
            sizes = {width: sizes_of(width, base, args, scratch) for width in widths}
            print(f"{name}\n{'step':>6} {'':10}" + "".join(f"{width:>10}" for width in widths) + f"{'growth':>10}")
            for step in sorted({1, (args.steps + 1) // 2, args.steps}):
                for of in SIZES:
                    row = [sizes[width][step][of] for width in widths]
                    growth = row[-1] / row[0] if row[0] > 0 else math.nan
                    print(f"{step:>6} {of:10}" + "".join(f"{value:>10.4f}" for value in row) + f"{growth:>9.2f}x")
                    if base and step == args.steps and not abs(math.log(growth)) <= abs(math.log(worst[1])):
                        worst = (of, growth)
            groups[name] = {of: [(width, sizes[width][args.steps][of]) for width in widths] for of in SIZES}
    title = f"Coordinate check: sizes after {args.steps} steps"
    svg = panels(LIGHT, title, "Root mean square of activations by width.", groups, "channels", "RMS", True)
    pathlib.Path(args.out).write_text(svg.replace(">", '><rect width="100%" height="100%" fill="#fff"/>', 1), encoding="utf-8")
    good = 1 / bound <= worst[1] <= bound
    print(f"muP: {worst[0]} changes most, {worst[1]:.2f}x; expected within {bound:.2f}x: {'yes' if good else 'NO'}; chart: {args.out}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
