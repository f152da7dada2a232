"""Writes the figures of doc/results/torture.json, which main.py --json wrote, into doc/reliability.md, between its markers.

    python3 dev/torture/page.py            the page
    python3 dev/torture/page.py --check    exit code 1 if the page is not what it would write
"""

import argparse
import json
import sys

from harness import ROOT

PAGE, RESULTS = ROOT / "doc/reliability.md", ROOT / "doc/results/torture.json"
MARKERS = "<!-- torture: dev/torture/page.py -->\n", "<!-- end of torture -->\n"


def text(rows):
    """A table of all parts, in groups of one program on one machine, and a line about each group."""
    groups = {}
    for row in rows:
        groups.setdefault((row["sanitizers"], row["commit"], row["date"], row["machine"], row["seed"]), []).append(row)
    lines = ["| part | what is done to a run | tried | wrong |", "|---|---|--:|--:|"]
    notes = []
    for (sanitizers, commit, date, machine, seed), group in sorted(groups.items()):
        where = f"commit {commit}, {date}, {machine}, seed {seed}"
        if sanitizers:
            again = ", ".join(f"{row['part']} ({row['tried']:,} tried, {row['wrong']} wrong)" for row in group)
            notes.append(f"- Again under {sanitizers}: {again}: {where}")
            continue
        lines += [f"| {row['part']} | {row['what']} | {row['tried']:,} | {row['wrong']} |" for row in group]
        notes.append(f"- {', '.join(row['part'] for row in group)}: {where}")
    return "\n".join(lines) + "\n\n" + "\n".join(notes) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    begin, end = MARKERS
    if page.count(begin) != 1 or page.count(end) != 1:
        sys.exit(f"error: {PAGE}: expected the lines {begin.strip()} and {end.strip()}, once each")
    head, rest = page.split(begin)
    wanted = f"{head}{begin}\n{text(json.loads(RESULTS.read_text()))}\n{end}{rest.split(end)[1]}"
    if args.check and page != wanted:
        sys.exit(f"error: {PAGE} is not up to date: run dev/torture/page.py")
    if not args.check:
        PAGE.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
