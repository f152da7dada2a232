#!/usr/bin/env python3
"""Draws runs: RUN/log.jsonl -> one HTML page with the curves, the last samples and the config.

    scripts/report.py RUN [--out FILE]        FILE is RUN/report.html by default
    scripts/report.py RUN RUN ...             all on one page, with the settings in which they differ; FILE is
                                              report.html in their common parent folder by default
    scripts/report.py RUN --reference 'llm.c=3.29' --reference 'track 3=125:4.586,250:4.098' --usd-per-hour 24
    scripts/report.py RUN --published gpt2-grade            with published results of that target of scripts/speedrun.sh
    scripts/report.py RUN --reference-bpb 'theirs=0.75' --reference-score 'core: theirs=0.25'
    scripts/report.py RUN RUN --x tokens      the x axis: also time (of training steps) and flops. The page can switch it
    scripts/report.py RUN --watch 30          redraws the page every 30 s, and it reloads itself, until the run ends

A reference is a published validation loss, a level or STEP:LOSS points, which is drawn with the runs' and compared with them;
so are bits per byte, and scores on the file of --eval-tasks that the label names before its colon.
The page shows the flags that differ from the defaults in doc/flags.md; a folded list has all of them.

The page is a single file that loads nothing else, and follows the reader's light or dark setting. scripts/run_report/ draws
its curves; a script in the page shows values under the pointer and switches the axis. Needs only Python 3. A truncated last
line is ignored; steps that a resumed run repeated are taken from the later run.
"""
import argparse
import os
import sys
import time

from run_report.charts import Axis
from run_report.pages import comparison, page
from run_report.records import UserError, read_records, state_of
from run_report.references import PUBLISHED, Reference


def main():
    parser = argparse.ArgumentParser(description="Draws runs: RUN/log.jsonl to one HTML page.")
    parser.add_argument("runs", metavar="RUN", nargs="+", help="the --out-dir of a run; several are drawn on one page")
    parser.add_argument("--out", metavar="FILE", help="the page [report.html in RUN, or in the folder of all of them]")
    parser.add_argument("--reference", metavar="LABEL=LOSSES", action="append", default=[],
                        help="the validation loss of others: LOSS, or STEP:LOSS,STEP:LOSS,...; may be given again")
    parser.add_argument("--reference-bpb", metavar="LABEL=BPB", action="append", default=[],
                        help="the same in bits per byte of text")
    parser.add_argument("--reference-score", metavar="FILE: LABEL=SCORE", action="append", default=[],
                        help="the same of the score on a file of --eval-tasks, named without folder and ending")
    parser.add_argument("--published", choices=PUBLISHED, help="the references that others published of this target of scripts/speedrun.sh")
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
    """Draws the current state of the runs. Returns whether all have ended."""
    given = [(kind, text) for kind, texts in (("loss", args.reference), ("bpb", args.reference_bpb), ("score", args.reference_score))
             for text in texts]
    references = [Reference.parse(kind, text) for kind, text in given + PUBLISHED.get(args.published, [])]
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
