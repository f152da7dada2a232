"""Writes the figures of doc/results/torture.json, which main.py --json wrote, into doc/reliability.md, between its markers.

    python3 dev/torture/page.py            the page
    python3 dev/torture/page.py --check    exit code 1 if the page is not what it would write
"""

import argparse
import json
import sys

from harness import ROOT

sys.path.insert(0, str(ROOT / "dev/results"))
from pages import UserError, renew_page  # noqa: E402

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
    try:
        renew_page(PAGE, text(json.loads(RESULTS.read_text())), MARKERS, "dev/torture/page.py", args.check)
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
