#!/usr/bin/env python3
"""Checks what doc/comparison.md says of other projects: each string in `code style` stands in the file and commit that its row names.

    dev/lint/check_neighbors.py [--clones DIR]      DIR: has, or gets, a bare clone of each repository, DIR/OWNER+NAME; needs git

Prints the rows that are wrong (exit code 1), and projects that have newer commits.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

PAGE = pathlib.Path(__file__).resolve().parents[2] / "doc/comparison.md"


def rows(text, header):
    """Cells of the rows below the table header `header`."""
    below = text.split(header + "\n", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in below.split("\n")[1:]]


def git(folder, *words):
    return subprocess.run(["git", "-C", folder, *words], capture_output=True, encoding="utf-8", errors="replace")


def wrong_rows(text, clones):
    """Lines about rows whose file or strings are not there."""
    commits = {project: (repository.strip("`"), commit.split("`")[1]) for project, repository, commit in rows(text, "| project | repository | commit |")}
    for project, (repository, commit) in commits.items():
        folder = clones / repository.replace("/", "+")
        if not folder.exists():
            subprocess.run(["git", "clone", "-q", "--bare", "--filter=blob:none", f"https://github.com/{repository}", folder], check=True)
        newest = git(folder, "log", "-1", "--format=%h, %as").stdout.strip()
        if not newest.startswith(commit):
            print(f"{project}: read at {commit}, the newest is {newest}")
    for row, project, file, what in rows(text, "| row | project | file | what stands there |"):
        if file == "none":
            continue
        repository, commit = commits[project]
        shown = git(clones / repository.replace("/", "+"), "show", f"{commit}:{file.strip('`')}")
        if shown.returncode:
            yield f"{project}, {row}: {file} is not in commit {commit}"
        for string in re.findall(r"`([^`]+)`", what):
            # Paths beside the file, such as infini_train/src/checkpoint, are looked up in the tree.
            if string not in shown.stdout and git(clones / repository.replace("/", "+"), "cat-file", "-e", f"{commit}:{string}").returncode:
                yield f"{project}, {row}: '{string}' does not stand in {file} at {commit}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clones", type=pathlib.Path, help="a folder of bare clones; by default a temporary one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        found = list(wrong_rows(PAGE.read_text(encoding="utf-8"), args.clones or pathlib.Path(temporary)))
    print(*found, sep="\n")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
