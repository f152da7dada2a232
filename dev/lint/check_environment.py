#!/usr/bin/env python3
"""Checks that doc/environment.md has every ANVIL_ variable that is read, and no other.

    python3 dev/lint/check_environment.py   prints what is missing on either side; exit code 1 if anything is

Finds quoted names in sources and Python programs, and $NAME in shell scripts. ANVIL_TEST_ variables are not checked: they are
private to a test and its processes.
"""

import pathlib
import re
import sys

PAGE = "doc/environment.md"
FOLDERS = ("llmc", "data", "dev", "make", "python", "scripts", "test")
QUOTED = re.compile(r"[\"'](ANVIL_[A-Z_]+)[\"']")
SHELL = re.compile(r"\$\{?(ANVIL_[A-Z_]+)")


def used(root):
    names = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            pattern = SHELL if path.suffix == ".sh" else QUOTED if path.suffix in {".h", ".cuh", ".cpp", ".cu", ".py"} else None
            if not pattern or path.name == "check_environment.py":
                continue
            for name in pattern.findall(path.read_text(encoding="utf-8")):
                if not name.startswith("ANVIL_TEST_"):
                    names.setdefault(name, path.relative_to(root).as_posix())
    return names


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    names = used(root)
    page = set(re.findall(r"^\| `(ANVIL_[A-Z_]+)`", (root / PAGE).read_text(encoding="utf-8"), re.M))
    found = [f"{names[name]}: {name} is not in {PAGE}" for name in sorted(set(names) - page)]
    found += [f"{PAGE}: nothing reads {name}" for name in sorted(page - set(names))]
    print("\n".join(found), end="\n" if found else "")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
