#!/usr/bin/env python3
"""Tries configurations one after another under one time budget, and keeps what is better.

    scripts/experiment.py SPEC.toml [--out run/experiment] [--train-gpt ./train_gpt]

SPEC.toml fixes what is compared, so that whoever proposes trials, a person or a program, cannot move the goal:

    [fixed]
    budget = 60                                  # seconds of training each; schedules follow the time
    metric = "val_bpb"                           # of results.tsv, lower is better; or val_loss
    train-data = "data/x/train_*.bin"
    val-data = "data/x/val_*.bin"
    val-tokens = 1000000
    seeds = 3                                    # runs of the baseline: how far apart they are is the noise

    [base]                                       # flags of ./train_gpt; underscores or hyphens
    num-layers = 4
    learning-rate = 1e-3

    [[trial]]
    name = "twice the rate"
    learning-rate = 2e-3

    [search]                                     # instead of, or after, the trials: so many random ones
    trials = 10
    seed = 1
    learning-rate = { from = 1e-4, to = 1e-2, log = true }
    beta2 = [0.95, 0.99]

First comes the baseline, with as many seeds as there are. A trial is what is best so far with the trial's flags on top,
one run with the first seed. It is kept if it is better than the best by more than the noise (the standard deviation of the
baseline's seeds), and discarded if it is worse by as much; in between it runs with the other seeds as well, and the mean
decides. A run that ends with an error is a crash, and is discarded. autoresearch's loop (Karpathy, 2026, program.md),
with the noise in view.

OUT/results.tsv has a line for each run (doc/formats.md), OUT/trials.jsonl a record for each decision and OUT/index.html all
of them on a page, with the curves of those that ran to their end. What was killed goes on where it was when it is started
again: finished runs are not repeated. Another [fixed] part, or base, in the same OUT is refused. Needs Python 3.11.
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

try:
    import tomllib
except ImportError:
    sys.exit("error: Python 3.11 or newer is needed, which reads TOML")

HERE = pathlib.Path(__file__).resolve().parent
# What a trial may not touch: the goal, and what this script gives.
FIXED = {"train-data", "val-data", "val-tokens", "tokenizer", "packing", "document-token", "time-budget", "steps", "schedule-by",
         "seed", "out-dir", "results", "description", "resume", "summary", "config"}  # fmt: skip
FIXED_KEYS = {"budget", "metric", "train-data", "val-data", "val-tokens", "tokenizer", "packing", "document-token", "seeds"}
METRICS = ("val_bpb", "val_loss")


def fail(message):
    sys.exit(f"error: {message}")


def flags_of(table, where):
    """{flag: text}, with hyphens. An error for what only [fixed] says."""
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
        for key in ("budget", "train-data", "val-data"):
            if key not in fixed:
                fail(f"{path}: [fixed] has no {key}")
        self.budget, self.metric = float(fixed["budget"]), fixed.get("metric", METRICS[0])
        self.seeds = int(fixed.get("seeds", 3))
        if self.budget <= 0:
            fail(f"{path}: budget = {self.budget:g}: expected seconds above 0")
        if self.metric not in METRICS:
            fail(f"{path}: metric = {self.metric!r}: expected {' or '.join(METRICS)}")
        if self.seeds < 2:
            fail(f"{path}: seeds = {self.seeds}: expected at least 2, or nothing is known of the noise")
        self.fixed_flags = {key: str(fixed[key]) for key in fixed if key not in ("budget", "metric", "seeds")}
        self.base = flags_of(spec.get("base", {}), "[base]")
        self.trials = []
        for i, trial in enumerate(spec.get("trial", []), 1):
            name = trial.pop("name", f"trial {i}")
            self.trials.append((str(name), flags_of(trial, f"[[trial]] {name!r}")))
        self.trials += searched(spec.get("search", {}))
        if not self.trials:
            fail(f"{path}: nothing to try: give [[trial]] or [search]")
        names = [name for name, _ in self.trials]
        if len(set(names)) < len(names):
            fail(f"{path}: two trials have one name")
        goal = json.dumps([self.budget, self.metric, self.seeds, self.fixed_flags, self.base], sort_keys=True)
        self.goal_hash = hashlib.sha256(goal.encode()).hexdigest()[:16]


def searched(search):
    """Random trials: the same for the same seed."""
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

    def finished(self):
        """{folder: metric} of the runs in results.tsv; nan: it failed."""
        if not self.results.exists():
            return {}
        lines = self.results.read_text(encoding="utf-8").splitlines()
        names, done = lines[0].split("\t"), {}
        for line in lines[1:]:
            row = dict(zip(names, line.split("\t")))
            if row["status"].startswith("SIG"):  # it was stopped, and goes on
                continue
            done[row["out_dir"]] = math.nan if row["status"].startswith("failed") else float(row[self.spec.metric])
        return done

    def run(self, name, flags, seed):
        """The metric of a run, made now unless it is there; nan if it crashed."""
        folder = self.out / f"{slug(name)}_seed{seed}"
        done = self.finished()
        if str(folder) in done:
            return done[str(folder)]
        given = self.spec.fixed_flags | flags | {
            "time-budget": f"{self.spec.budget:g}", "schedule-by": "time", "seed": str(seed), "out-dir": str(folder),
            "resume": "auto", "results": str(self.results), "description": name}  # fmt: skip
        given = {"sample-tokens": "0"} | given
        command = [self.train_gpt, *(f"--{key}={value}" for key, value in given.items())]
        with open(self.out / f"{folder.name}.txt", "ab") as log:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False).returncode
        done = self.finished()
        if str(folder) in done:
            return done[str(folder)]
        if code < 0 or code >= 128 or code == 0:  # it was stopped from outside: so is this
            sys.exit(f"{name}, seed {seed}: stopped; start this again to go on")
        last = (self.out / f"{folder.name}.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if not self.results.exists() and code == 2 and name == "baseline":
            fail(f"the baseline does not run: {last[-1] if last else shlex.join(command)}")
        self.crashed = last[-1] if last else f"exit code {code}"
        return math.nan

    def decide(self, name, flags, verdict, why, values):
        mean = statistics.fmean(values) if values and not any(map(math.isnan, values)) else math.nan
        self.decisions.append({"name": name, "flags": flags, "verdict": verdict, "why": why, "values": values, "mean": mean})
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
            fail(f"the baseline crashed; see {self.out}/baseline_seed1.txt")
        noise = statistics.stdev(values)
        best, best_flags, best_values = statistics.fmean(values), spec.base, values
        self.decide("baseline", spec.base, "keep", f"{len(values)} seeds, {noise:.4f} apart", values)
        for name, changes in spec.trials:
            flags = best_flags | changes
            values = [self.run(name, flags, seeds[0])]
            # One run beside one run of the same seed: what the seed does is in both.
            beside = best_values[0]
            if not math.isnan(values[0]) and abs(values[0] - beside) <= 2 * noise:
                values += [self.run(name, flags, seed) for seed in seeds[1:]]
            if any(map(math.isnan, values)):
                self.decide(name, changes, "crash", self.crashed, values)
                continue
            mean, whole = statistics.fmean(values), len(values) == len(seeds)
            reference = best if whole else beside
            gain = reference - mean
            needed = noise / math.sqrt(len(values)) if whole else 2 * noise
            runs = f"{len(values)} seeds" if whole else "one seed"
            if gain > needed:
                if not whole:  # what follows is compared with all seeds
                    values += [self.run(name, flags, seed) for seed in seeds[1:]]
                    if any(map(math.isnan, values)):
                        self.decide(name, changes, "crash", self.crashed, values)
                        continue
                    mean = statistics.fmean(values)
                best, best_flags, best_values = mean, flags, values
                self.decide(name, changes, "keep", f"{gain:.4f} better than {reference:.4f} ({runs}; {needed:.4f} needed)", values)
            else:
                how = f"{gain:.4f} better" if gain > 0 else f"{-gain:.4f} worse"
                self.decide(name, changes, "discard", f"{how} than {reference:.4f} ({runs}; {needed:.4f} needed)", values)
        print(f"best: {spec.metric} {best:.4f} with", " ".join(f"--{key} {value}" for key, value in best_flags.items()))


def slug(name):
    return "".join(c if c.isalnum() else "_" for c in name)[:60]


STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
:root { color-scheme: light dark }
table { border-collapse: collapse } td, th { padding: .2rem 1rem .2rem 0; text-align: left; vertical-align: top }
.keep { font-weight: 600 } .discard, .crash { opacity: .65 } code { font-size: .87rem }
"""


def write_page(experiment):
    spec, out, rows = experiment.spec, experiment.out, []
    for i, one in enumerate(experiment.decisions):
        flags = " ".join(f"--{key} {value}" for key, value in one["flags"].items())
        values = ", ".join("crash" if math.isnan(v) else f"{v:.4f}" for v in one["values"])
        mean = "" if math.isnan(one["mean"]) else f"{one['mean']:.4f}"
        cells = [str(i), html.escape(one["name"]), f"<code>{html.escape(flags)}</code>", mean, values, one["verdict"],
                 html.escape(one["why"])]  # fmt: skip
        rows.append(f'<tr class="{one["verdict"]}">' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    runs = [folder for folder in experiment.finished() if (pathlib.Path(folder) / "log.jsonl").exists()]
    link = ""
    if runs:
        curves = [sys.executable, str(HERE / "report.py"), *runs, "--x", "time", "--out", str(out / "curves.html")]
        if subprocess.run(curves, capture_output=True, check=False).returncode == 0:
            link = '<p><a href="curves.html">The curves of all runs</a></p>'
    head = "".join(f"<th>{name}</th>" for name in ("", "trial", "flags", spec.metric, "runs", "", "why"))
    page = (f"<!doctype html><meta charset=utf-8><title>Experiment</title><style>{STYLE}</style><h1>Experiment</h1>"
            f"<p>{spec.budget:g} s of training each; {spec.metric}, lower is better; each trial is the best before it with these flags "
            f"on top.</p><table><tr>{head}</tr>{''.join(rows)}</table>{link}\n")  # fmt: skip
    (out / "index.html").write_text(page, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("spec", type=pathlib.Path, help="what is fixed, the baseline, and what to try")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("run/experiment"))
    parser.add_argument("--train-gpt", default="./train_gpt")
    arguments = parser.parse_args()
    Experiment(Spec(arguments.spec), arguments.out, arguments.train_gpt).go()


if __name__ == "__main__":
    main()
