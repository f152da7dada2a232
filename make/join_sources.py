#!/usr/bin/env python3
"""Joins sources into one, so that the compiler reads their headers once: tests, and the sources of `make cuda-link`.

    python3 make/join_sources.py [--part I-of-N] [--main] FILE... > JOINED

--part 2-of-8 takes every eighth file from the second on. --main adds a main() that calls the main() of each file with the
program's arguments, up to the first that fails.

The joined source has first all #include lines of the files, in their order and under their own #if, then each file in a
namespace of its own, so that several files may have the same names (even main). There `#pragma once` makes the files' own
#include lines empty.
"""

import argparse
import pathlib
import re

DIRECTIVE = re.compile(r"#(include|if|ifdef|ifndef|elif|else|endif)\b")
GUARDED = re.compile(r"#(if|ifdef|ifndef)\b")


def includes(path):
    """The #include lines of a file with the conditions around them, without conditions around other code."""
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


# main() may have no parameters.
MAIN = """\
using Main = int(int, char**);
static int call(Main* each, int argc, char** argv) { return each(argc, argv); }
[[maybe_unused]] static int call(int (*each)(), int, char**) { return each(); }
int main(int argc, char** argv) {
    int status = 0;
%s
    return status;
}"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", default="1-of-1")
    parser.add_argument("--main", action="store_true")
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    index, count = map(int, arguments.part.split("-of-"))
    files = arguments.files[index - 1 :: count]
    for file in files:
        print("\n".join(includes(file)))
    names = ["of_" + re.sub("[^a-z0-9]", "_", file.stem) for file in files]
    for name, file in zip(names, files):
        print(f'namespace {name} {{\n#include "{file.as_posix()}"\n}}')
    if arguments.main:
        print(MAIN % "\n".join(f"    if (!status) status = call({name}::main, argc, argv);" for name in names))


if __name__ == "__main__":
    main()
