#!/usr/bin/env python3
"""Checks that the project does not grow unnoticed: lines, files, flags and words are at most those of BUDGET.

    python3 dev/lint/check_budget.py       prints what is above its budget; exit code 1 if anything is

A change that needs more raises the figure here, and says in its commit message what for. One that needs less lowers it.
"""

import pathlib
import re
import subprocess
import sys

BUDGET = {
    "lines of llmc/ (sources, with comments)": 59_643,
    "sources of llmc/": 445,
    "sources of one folder of llmc/": 59,
    "files of scripts/": 42,
    "flags of `train_gpt train`": 96,
    "words of README.md and doc/": 39_595,
    "words of dev/LOG.md and dev/log/": 17_204,
    "lines of Makefile and make/": 759,
}
SOURCES = {".h", ".cuh", ".cpp", ".cu"}


def found(root):
    """The figures of BUDGET, in its order."""
    names = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
    files = [pathlib.PurePosixPath(name) for name in names if name and (root / name).is_file()]

    def texts(wanted):
        return [(root / file).read_text(encoding="utf-8") for file in files if wanted(file)]

    def is_source(file):
        return file.parts[0] == "llmc" and file.suffix in SOURCES

    def words(wanted):
        return sum(len(text.split()) for text in texts(wanted))

    folders = [file.parent for file in files if is_source(file)]
    yield sum(text.count("\n") for text in texts(is_source))
    yield len(folders)
    yield max(folders.count(folder) for folder in set(folders))
    yield sum(file.parts[0] == "scripts" for file in files)
    train = (root / "doc/flags.md").read_text(encoding="utf-8").split("\n## ")[1]
    yield len(re.findall(r"^\| `--", train, re.MULTILINE))
    yield words(lambda file: file.suffix == ".md" and (file.parts[0] == "doc" or str(file) == "README.md"))
    yield words(lambda file: str(file) == "dev/LOG.md" or file.is_relative_to("dev/log"))
    yield sum(text.count("\n") for text in texts(lambda file: str(file) == "Makefile" or file.suffix == ".mk"))


def main():
    status = 0
    for (what, most), now in zip(BUDGET.items(), found(pathlib.Path(__file__).resolve().parent.parent.parent)):
        if now > most:
            print(f"{what}: {now}, expected {most} at most: remove something, or raise BUDGET and say in the commit message what for")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
