#!/usr/bin/env python3
"""What each part of the recipe `record` is worth: writes the table of doc/recipes.md from doc/results/record.json.

    dev/results/recipes.py --from run/record     takes the results of scripts/experiment.py configs/record.toml
    dev/results/recipes.py [--check]             writes the table again, or exits with 1 if the page has another
"""

import argparse
import json
import math
import pathlib
import statistics
import sys

from pages import UserError, renew_page

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS, PAGE = ROOT / "doc/results/record.json", ROOT / "doc/recipes.md"
MARKERS = "<!-- record: dev/results/recipes.py -->\n", "<!-- end of record -->\n"
KEPT = ("name", "flags", "verdict", "values", "mean", "lengths", "reached")


def difference(values, best):
    """Of the same seeds: mean and standard error."""
    differences = [a - b for a, b in zip(values, best)]
    return f"{statistics.fmean(differences):+.4f} +- {statistics.stdev(differences) / math.sqrt(len(differences)):.4f}"


def table(decisions):
    yield "| change | lines | loss | beside the best before | steps to the baseline's loss | |\n|---|---|--:|--:|--:|---|\n"
    best, shortest = decisions[0], min((float(x) for one in decisions for x in one["lengths"]), default=1)
    for one in decisions:
        lines = "<br>".join(f"`{name} = {value}`" for name, value in one["flags"].items()) if one is not decisions[0] else ""
        beside = difference(one["values"], best["values"]) if one is not decisions[0] else f"seeds: +- {statistics.stdev(one['values']):.4f}"
        reached = one["reached"]
        steps = "" if reached is None else f"{'below ' if reached == shortest else ''}{100 * reached:.0f} %"
        verdict = {"keep": "kept", "discard": "", "crash": "crashed"}[one["verdict"]] if one is not decisions[0] else ""
        yield f"| {one['name']} | {lines} | {one['mean']:.4f} | {beside} | {steps} | {verdict} |\n"
        if one["verdict"] == "keep":
            best = one


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", metavar="DIR", dest="taken", type=pathlib.Path, help="a folder of scripts/experiment.py")
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    if arguments.taken:
        decisions = [json.loads(line) for line in (arguments.taken / "trials.jsonl").read_text(encoding="utf-8").splitlines()]
        rows = ",\n".join(" " + json.dumps({key: one[key] for key in KEPT}) for one in decisions)
        RESULTS.write_text(f"[\n{rows}\n]\n", encoding="utf-8")
    text = "".join(table(json.loads(RESULTS.read_text(encoding="utf-8"))))
    try:
        renew_page(PAGE, text, MARKERS, "dev/results/recipes.py", arguments.check)
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
