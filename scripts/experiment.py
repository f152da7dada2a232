#!/usr/bin/env python3
"""Tries configurations one after another, each with the same time budget or number of steps, and keeps the better one.

    scripts/experiment.py SPEC.toml [--out run/experiment] [--train-gpt ./train_gpt]

SPEC.toml fixes what is compared, so that a person or program that proposes trials cannot change the goal:

    [fixed]
    budget = 60                                  # seconds of training each; schedules follow the time. Or steps = 600
    metric = "val_bpb"                           # of results.tsv, lower is better; or val_loss
    train-data = "data/x/train_*.bin"
    val-data = "data/x/val_*.bin"
    val-tokens = 1000000
    seeds = 3                                    # runs of the baseline, whose deviation is the noise
    shorter = [0.8, 0.9]                         # with steps: what is kept is run with fewer steps, too

    [base]                                       # flags of ./train_gpt and lines of its files; underscores or hyphens
    num-layers = 4
    learning-rate = 1e-3

    [[trial]]
    name = "twice the rate"
    learning-rate = 2e-3

    [search]                                     # instead of, or after, the trials: random ones
    trials = 10
    seed = 1
    learning-rate = { from = 1e-4, to = 1e-2, log = true }
    beta2 = [0.95, 0.99]

The baseline runs first, with all seeds. A trial is the best configuration so far with the trial's flags added, run with the
first seed. It is kept if it is better than the best by more than twice the noise (the standard deviation of the baseline's
seeds), and discarded if it is worse by more than that. In between it runs with the other seeds, too, and is kept if the
mean is better by more than the noise over the square root of the number of seeds. With steps all seeds always run. A run
that ends with an error is a crash, and is discarded. This is autoresearch's loop (Karpathy, 2026, program.md), with the
noise taken into account. `shorter` runs tell how many steps, in percent of the baseline's, reach the baseline's loss
(on a line over the logarithm of the steps, between the two nearest lengths).

OUT/results.tsv has a line for each run (doc/formats.md), and OUT/trials.jsonl a record for each decision. OUT/index.html
shows them on a page: each run as a dot, the value that a trial had to beat, the tokens that it was trained on, and the
curves. Start it again after a kill, or with another SPEC.toml, to go on: runs of the same name and flags are not repeated.
Another [fixed] part, or base, in the same OUT is refused. Needs Python 3.11.
"""

import argparse
import hashlib
import html
import json
import math
import pathlib
import random
import shlex
import statistics
import subprocess
import sys

from run_report.charts import number_text, ticks

try:
    import tomllib
except ImportError:
    sys.exit("error: Python 3.11 or newer is needed, which reads TOML")

HERE = pathlib.Path(__file__).resolve().parent
# Flags that a trial may not change: those of the goal, and those that this script sets.
FIXED = {"train-data", "val-data", "val-tokens", "tokenizer", "packing", "document-token", "time-budget", "steps", "seed",
         "out-dir", "results", "description", "resume", "summary", "config"}  # fmt: skip
FIXED_KEYS = {"budget", "steps", "shorter", "metric", "train-data", "val-data", "val-tokens", "tokenizer", "packing", "document-token", "seeds"}
METRICS = ("val_bpb", "val_loss")


def fail(message):
    sys.exit(f"error: {message}")


def flags_of(table, where):
    """{flag: text}, with hyphens. Refuses flags of [fixed]."""
    flags = {}
    for key, value in table.items():
        name = key.replace("_", "-")
        if name in FIXED:
            fail(f"{where}: {key} is fixed for all trials: it belongs to [fixed], or to nobody")
        if isinstance(value, (dict, list)):
            fail(f"{where}: {key} = {value!r}: expected a number, a string or a truth value")
        flags[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return flags


class Spec:
    def __init__(self, path):
        try:
            spec = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError) as error:
            fail(f"{path}: {error}")
        if unknown := set(spec) - {"fixed", "base", "trial", "search"}:
            fail(f"{path}: unknown part {sorted(unknown)[0]!r}: expected [fixed], [base], [[trial]] and [search]")
        fixed = {key.replace("_", "-"): value for key, value in spec.get("fixed", {}).items()}
        if unknown := set(fixed) - FIXED_KEYS:
            fail(f"{path}: [fixed] has {sorted(unknown)[0]!r}: expected some of {', '.join(sorted(FIXED_KEYS))}")
        for key in ("train-data", "val-data"):
            if key not in fixed:
                fail(f"{path}: [fixed] has no {key}")
        if ("budget" in fixed) == ("steps" in fixed):
            fail(f"{path}: [fixed]: expected either budget, in seconds, or steps")
        self.budget, self.steps = float(fixed.get("budget", 0)), int(fixed.get("steps", 0))
        self.shorter = [float(x) for x in fixed.get("shorter", [])]
        self.metric, self.seeds = fixed.get("metric", METRICS[0]), int(fixed.get("seeds", 3))
        if self.budget <= 0 and self.steps <= 0:
            fail(f"{path}: [fixed]: expected budget or steps above 0")
        if self.shorter and (not self.steps or self.shorter != sorted(self.shorter) or self.shorter[0] <= 0 or self.shorter[-1] >= 1):
            fail(f"{path}: shorter = {self.shorter}: expected rising fractions of steps, between 0 and 1")
        if self.metric not in METRICS:
            fail(f"{path}: metric = {self.metric!r}: expected {' or '.join(METRICS)}")
        if self.seeds < 2:
            fail(f"{path}: seeds = {self.seeds}: expected at least 2, or nothing is known of the noise")
        self.fixed_flags = {key: str(fixed[key]) for key in fixed if key not in ("budget", "steps", "shorter", "metric", "seeds")}
        self.base = flags_of(spec.get("base", {}), "[base]")
        self.trials = []
        for i, trial in enumerate(spec.get("trial", []), 1):
            name = trial.pop("name", f"trial {i}")
            self.trials.append((str(name), flags_of(trial, f"[[trial]] {name!r}")))
        self.trials += searched(spec.get("search", {}))
        if not self.trials:
            fail(f"{path}: nothing to try: give [[trial]] or [search]")
        names = [name for name, _ in self.trials]
        for i, name in enumerate(names):
            if name == "baseline" or name in names[:i]:
                fail(f"{path}: {'a trial is called' if name == 'baseline' else 'two trials are called'} {name!r}: give it another name")
        goal = json.dumps([self.budget or self.steps, self.metric, self.seeds, self.fixed_flags, self.base], sort_keys=True)
        self.goal_hash = hashlib.sha256(goal.encode()).hexdigest()[:16]


def searched(search):
    """Random trials, which are the same for the same seed."""
    search = dict(search)
    count, rng = int(search.pop("trials", 0)), random.Random(search.pop("seed", 1))
    if search and not count:
        fail("[search] has no `trials`, the number of them")
    trials = []
    for i in range(1, count + 1):
        flags = {}
        for key, choice in search.items():
            if isinstance(choice, list) and choice:
                flags[key] = rng.choice(choice)
            elif isinstance(choice, dict) and {"from", "to"} <= set(choice):
                low, high = choice["from"], choice["to"]
                if choice.get("log"):
                    flags[key] = float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.4g}")
                elif isinstance(low, int) and isinstance(high, int):
                    flags[key] = rng.randint(low, high)
                else:
                    flags[key] = float(f"{rng.uniform(low, high):.4g}")
            else:
                fail(f"[search] {key} = {choice!r}: expected a list, or {{ from = A, to = B, log = true }}")
        trials.append((f"search {i}", flags_of(flags, "[search]")))
    return trials


class Experiment:
    def __init__(self, spec, out, train_gpt):
        self.spec, self.out, self.train_gpt = spec, out, train_gpt
        self.results, self.journal = out / "results.tsv", out / "trials.jsonl"
        out.mkdir(parents=True, exist_ok=True)
        goal = out / "goal"
        if goal.exists() and goal.read_text(encoding="utf-8").strip() != spec.goal_hash:
            fail(f"{out} holds an experiment with another [fixed] part or base: give another --out")
        goal.write_text(spec.goal_hash + "\n", encoding="utf-8")
        self.decisions, self.crashed = [], ""

    def rows(self):
        """{folder: its line of results.tsv as {column: text}} for runs that have ended."""
        if not self.results.exists():
            return {}
        lines = self.results.read_text(encoding="utf-8").splitlines()
        names, done = lines[0].split("\t"), {}
        for line in lines[1:]:
            row = dict(zip(names, line.split("\t")))
            if row["status"].startswith("SIG"):  # stopped by a signal, will be resumed
                continue
            done[row["out_dir"]] = row
        return done

    def finished(self):
        """{folder: metric} of finished runs; nan: the run failed."""
        return {folder: math.nan if row["status"].startswith("failed") else float(row[self.spec.metric])
                for folder, row in self.rows().items()}  # fmt: skip

    def length(self, fraction):
        """The flag that ends a run."""
        if self.spec.steps:
            return {"steps": str(round(fraction * self.spec.steps))}
        return {"time-budget": f"{self.spec.budget:g}"}

    def folder(self, name, flags, seed, fraction=1):
        """Of a run: a result belongs to these flags, and a name may get others or look like another name."""
        flags = flags | (self.length(fraction) if fraction < 1 else {})
        flags_hash = hashlib.sha256(json.dumps(flags, sort_keys=True).encode()).hexdigest()[:12]
        return self.out / f"{slug(name)}_{flags_hash}_seed{seed}"

    def run(self, name, flags, seed, fraction=1):
        """The metric of a run, which is run now unless it is finished; nan if it crashed."""
        folder = self.folder(name, flags, seed, fraction)
        done = self.finished()
        if str(folder) in done:
            return done[str(folder)]
        given = self.spec.fixed_flags | flags | self.length(fraction) | {
            "seed": str(seed), "out-dir": str(folder),
            "resume": "auto", "results": str(self.results), "description": name}  # fmt: skip
        given = {"sample-tokens": "0"} | given
        config = self.out / f"{folder.name}.cfg"  # which takes what is no flag, too
        config.write_text("".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in given.items()), encoding="utf-8")
        command = [self.train_gpt, f"--config={config}"]
        with open(self.out / f"{folder.name}.txt", "ab") as log:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False).returncode
        done = self.finished()
        if str(folder) in done:
            return done[str(folder)]
        if code < 0 or code >= 128 or code == 0:  # the run was stopped from outside: stop, too
            sys.exit(f"{name}, seed {seed}: stopped; start this again to go on")
        last = (self.out / f"{folder.name}.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if not self.results.exists() and code == 2 and name == "baseline":
            fail(f"the baseline does not run: {last[-1] if last else shlex.join(command)}")
        self.crashed = last[-1] if last else f"exit code {code}"
        return math.nan

    def reached(self, name, flags, mean):
        """{fraction of the steps: mean of all seeds} down to the first that misses the baseline's mean, and the fraction
        that reaches it; None if there is no telling."""
        goal = self.decisions[0]["mean"] if self.decisions else mean
        at, lengths = 1, {1: mean}
        for fraction in reversed(self.spec.shorter):
            values = [self.run(name, flags, seed, fraction) for seed in range(1, self.spec.seeds + 1)]
            below = lengths[fraction] = statistics.fmean(values)
            if math.isnan(below) or mean > goal:
                return lengths, None
            if below > goal:
                return lengths, math.exp(math.log(at) + (goal - mean) / (below - mean) * math.log(fraction / at))
            at, mean = fraction, below
        return lengths, at

    def decide(self, name, flags, changes, verdict, why, values, below=None):
        """Records a decision. below: the bound on the mean, or on the only value, for the trial to be kept."""
        mean = statistics.fmean(values) if values and not any(map(math.isnan, values)) else math.nan
        runs = [str(self.folder(name, flags, seed)) for seed in range(1, len(values) + 1)]
        lengths, reached = self.reached(name, flags, mean) if verdict == "keep" and self.spec.shorter else ({}, None)
        if reached is not None and self.decisions:
            most = "at most " if reached == self.spec.shorter[0] else ""
            why += f"; {most}{100 * reached:.1f} % of the steps reach the baseline's"
        self.decisions.append({"name": name, "flags": changes, "verdict": verdict, "why": why, "values": values, "mean": mean,
                               "below": below, "runs": runs, "lengths": lengths, "reached": reached})  # fmt: skip
        with open(self.journal, "w", encoding="utf-8") as file:
            for decision in self.decisions:
                file.write(json.dumps(decision) + "\n")
        shown = "-" if math.isnan(mean) else f"{mean:.4f}"
        print(f"{verdict:8s} {self.spec.metric} {shown}  {name}: {why}", flush=True)
        write_page(self)

    def go(self):
        spec, seeds = self.spec, range(1, self.spec.seeds + 1)
        values = [self.run("baseline", spec.base, seed) for seed in seeds]
        if any(map(math.isnan, values)):
            fail(f"the baseline crashed: {self.crashed}; see {self.folder('baseline', spec.base, 1)}.txt")
        noise = statistics.stdev(values)
        best, best_flags, best_values = statistics.fmean(values), spec.base, values
        self.decide("baseline", spec.base, spec.base, "keep", f"standard deviation of {len(values)} seeds: {noise:.4f}", values)
        for name, changes in spec.trials:
            flags = best_flags | changes
            values = [self.run(name, flags, seeds[0])]
            # Compares runs with the same seed, so that the seed's effect cancels.
            beside = best_values[0]
            if not math.isnan(values[0]) and (spec.steps or abs(values[0] - beside) <= 2 * noise):
                values += [self.run(name, flags, seed) for seed in seeds[1:]]
            if any(map(math.isnan, values)):
                self.decide(name, flags, changes, "crash", self.crashed, values)
                continue
            mean, whole = statistics.fmean(values), len(values) == len(seeds)
            reference = best if whole else beside
            gain = reference - mean
            needed = noise / math.sqrt(len(values)) if whole else 2 * noise
            runs = f"mean of {len(values)} seeds" if whole else "same seed"
            if gain > needed:
                if not whole:  # later trials are compared over all seeds
                    values += [self.run(name, flags, seed) for seed in seeds[1:]]
                    if any(map(math.isnan, values)):
                        self.decide(name, flags, changes, "crash", self.crashed, values)
                        continue
                    mean = statistics.fmean(values)
                best, best_flags, best_values = mean, flags, values
                self.decide(name, flags, changes, "keep", f"{gain:.4f} better than {reference:.4f} ({runs}); {needed:.4f} needed", values, reference - needed)
            else:
                how = f"{gain:.4f} better" if gain > 0 else f"{-gain:.4f} worse"
                why = f"{how} than {reference:.4f} ({runs}); {needed:.4f} better needed"
                self.decide(name, flags, changes, "discard", why, values, reference - needed)
        print(f"best: {spec.metric} {best:.4f} with", " ".join(f"--{key} {value}" for key, value in best_flags.items()))


def slug(name):
    return "".join(c if c.isalnum() else "_" for c in name)[:60]


STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem }
:root { color-scheme: light dark; --kept: light-dark(#0b63ce, #6cb0ff) }
table { border-collapse: collapse } td, th { padding: .2rem 1rem .2rem 0; text-align: left; vertical-align: top }
td.number, th.number { text-align: right; white-space: nowrap }
.best { font-weight: 600 } .discard, .crash { opacity: .65 } code { font-size: .87rem; font-weight: normal }
svg { max-width: 100%; height: auto; fill: currentColor; font-size: 13px } svg .keep { fill: var(--kept); opacity: 1 }
svg path { stroke: currentColor } svg .grid { opacity: .15 }
"""


def drawn(decisions, metric):
    """A chart of the trials, one per row, with a dot per run; the line marks the bound that they had to beat."""
    left, width, row = 220, 760, 26
    values = [v for one in decisions for v in [*one["values"], one["below"]] if v is not None and not math.isnan(v)]
    low, high = min(values), max(values)
    low, high = low - 0.05 * (high - low or 1), high + 0.05 * (high - low or 1)
    x = lambda value: left + (value - low) / (high - low) * (width - left - 20)  # noqa: E731
    bottom, parts = row * len(decisions) + 10, []
    for value in ticks(low, high, 6):
        parts.append(f'<path class="grid" d="M{x(value):.1f} 5V{bottom}"/>')
        parts.append(f'<text x="{x(value):.1f}" y="{bottom + 16}" text-anchor="middle">{number_text(value)}</text>')
    for i, one in enumerate(decisions):
        y = row * i + row / 2 + 5
        name = one["name"] if len(one["name"]) < 30 else one["name"][:28] + "..."
        parts.append(f'<text x="{left - 12}" y="{y + 4}" text-anchor="end">{html.escape(name)}</text>')
        for value in one["values"]:
            if not math.isnan(value):
                parts.append(f'<circle class="{one["verdict"]}" cx="{x(value):.1f}" cy="{y}" r="5"/>')
        if one["below"] is not None:
            parts.append(f'<path d="M{x(one["below"]):.1f} {y - 10}v20" stroke-width="2"/>')
        if one["verdict"] == "crash":
            parts.append(f'<text x="{left}" y="{y + 4}">crash</text>')
    parts.append(f'<text x="{(left + width) / 2}" y="{bottom + 34}" text-anchor="middle">{metric}</text>')
    return f'<svg viewBox="0 0 {width} {bottom + 40}" width="{width}" role="img" aria-label="{metric} of all runs">{"".join(parts)}</svg>'


def write_page(experiment):
    spec, out, rows = experiment.spec, experiment.out, []
    decisions, results = experiment.decisions, experiment.rows()
    best = [one for one in decisions if one["verdict"] == "keep"][-1]
    uneven, best_flags = [], {}
    for i, one in enumerate(decisions):
        if one["verdict"] == "keep":
            best_flags |= one["flags"]
        flags = " ".join(f"--{key} {value}" for key, value in one["flags"].items())
        values = ", ".join("crash" if math.isnan(v) else f"{v:.4f}" for v in one["values"])
        mean = "" if math.isnan(one["mean"]) else f"{one['mean']:.4f}"
        tokens = [int(results[folder]["tokens"]) for folder in one["runs"] if folder in results]
        if tokens and max(tokens) > 1.1 * min(tokens):
            uneven.append(f"{one['name']} {min(tokens) / 1e6:.3g}M and {max(tokens) / 1e6:.3g}M")
        millions = f"{statistics.fmean(tokens) / 1e6:.3g}M" if tokens else ""
        cells = [(str(i), ""), (html.escape(one["name"]), ""), (f"<code>{html.escape(flags)}</code>", ""), (mean, "number"), (values, ""),
                 (millions, "number"), (one["verdict"], ""), (html.escape(one["why"]), "")]  # fmt: skip
        kind = one["verdict"] + (" best" if one is best else "")
        rows.append(f'<tr class="{kind}">' + "".join(f'<td class="{align}">{cell}</td>' for cell, align in cells) + "</tr>")
    runs = [folder for one in decisions for folder in one["runs"] if (pathlib.Path(folder) / "log.jsonl").exists()]
    link = ""
    if runs:
        curves = [sys.executable, str(HERE / "report.py"), *runs, "--x", "time", "--out", str(out / "curves.html")]
        if subprocess.run(curves, capture_output=True, check=False).returncode == 0:
            link = '<p><a href="curves.html">The curves of all runs</a></p>'
    baseline = decisions[0]
    outcome = (f"Best of {len(decisions)}: <b>{html.escape(best['name'])}</b>, {spec.metric} {best['mean']:.4f}, {baseline['mean'] - best['mean']:.4f} below the "
               f"baseline's {baseline['mean']:.4f}. With <code>{html.escape(' '.join(f'--{k} {v}' for k, v in best_flags.items()))}</code>")  # fmt: skip
    length = f"{spec.steps} steps" if spec.steps else f"{spec.budget:g} s"
    one_run = "" if spec.steps else "One run decides if it differs from the best's run of the same seed by more than twice that; else the means"
    rule = (f"Each run trained for {length}; {spec.metric}, lower is better. A trial is the best before it with its flags on top. The noise is "
            f"{statistics.stdev(baseline['values']):.4f}, the standard deviation of the baseline's {len(baseline['values'])} seeds. "
            f"{one_run or 'The means'} of all seeds decide, by more than the noise over the root of their number. "
            f"Dots: runs, in color where the trial was kept; line: what it had to beat.")  # fmt: skip
    warning = f"<p>Runs of the same flags learned from unequal numbers of tokens ({html.escape('; '.join(uneven))}): the machine was not theirs alone, which is in the noise.</p>" if uneven else ""  # fmt: skip
    named = {"": "", "trial": "", "flags": "", spec.metric: "number", "runs": "", "tokens": "number", "verdict": "", "why": ""}
    head = "".join(f'<th class="{align}">{name}</th>' for name, align in named.items())
    page = (f"<!doctype html><meta charset=utf-8><title>Experiment</title><style>{STYLE}</style><h1>Experiment</h1>"
            f"<p>{outcome}</p>{drawn(decisions, spec.metric)}<p>{rule}</p>{warning}"
            f"<table><tr>{head}</tr>{''.join(rows)}</table>{link}\n")  # fmt: skip
    (out / "index.html").write_text(page, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", metavar="SPEC.toml", type=pathlib.Path, help="what is fixed, the baseline, and what to try")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("run/experiment"), help="the folder of all runs and the page [%(default)s]")
    parser.add_argument("--train-gpt", metavar="FILE", default="./train_gpt", help="the program [%(default)s]")
    arguments = parser.parse_args()
    Experiment(Spec(arguments.spec), arguments.out, arguments.train_gpt).go()


if __name__ == "__main__":
    main()
