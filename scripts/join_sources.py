#!/usr/bin/env python3
"""Joins sources into one, of which a compiler reads the headers once: tests, and all that `make cuda-link` compiles.

    python3 scripts/join_sources.py [--part I-of-N] FILE... > JOINED

--part 2-of-8 takes every eighth file from the second on.

First whatever the files include, in their order and under their own #if; then each file in a namespace of its own, so
that names (and even main) may be the same in several. The headers are read a second time there, and `#pragma once`
makes nothing of them.
"""

import pathlib
import re
import sys

DIRECTIVE = re.compile(r"#(include|if|ifdef|ifndef|elif|else|endif)\b")
GUARDED = re.compile(r"#(if|ifdef|ifndef)\b")


def includes(path):
    """The #include lines of a file with the conditions around them; conditions around nothing else are left out."""
    open_groups = [[]]
    for line in path.read_text(encoding="utf-8").splitlines():
        if not DIRECTIVE.match(line):
            continue
        if GUARDED.match(line):
            open_groups.append([line])
        elif line.startswith("#endif"):
            group = open_groups.pop()
            if any(each.startswith("#include") for each in group):
                open_groups[-1] += [*group, line]
        else:
            open_groups[-1].append(line)
    return open_groups[0]


def main():
    names = sys.argv[1:]
    if names[:1] == ["--part"]:
        index, count = map(int, names[1].split("-of-"))
        names = names[2:][index - 1 :: count]
    files = [pathlib.Path(name) for name in names]
    for file in files:
        print("\n".join(includes(file)))
    for file in files:
        print(f'namespace of_{re.sub("[^a-z0-9]", "_", file.stem)} {{\n#include "{file.as_posix()}"\n}}')


if __name__ == "__main__":
    main()
