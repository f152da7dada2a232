#!/usr/bin/env python3
"""Writes how the build compiles each file, for editors and clang-tidy: make compile_commands.json

    make -nBk V=1 objects | python3 make/compile_commands.py > compile_commands.json

Tests are compiled in joined sources (make/join_sources.py): each gets the command of its joined source. Kernels get the
command for the emulated GPU, which needs no CUDA toolkit.
"""

import json
import os
import shlex
import sys

SOURCES = (".cpp", ".cu")


def joined_sources(words):
    """(OUT, FILES) of a call of join_sources.py."""
    part = words.index("--part")
    index, count = map(int, words[part + 1].split("-of-"))
    end = words.index(">")
    return words[end + 1].removesuffix(".new"), words[part + 2 : end][index - 1 :: count]


def main():
    joined, commands = {}, {}
    for line in sys.stdin:
        try:
            words = shlex.split(line)
        except ValueError:
            continue  # a line of a multi-line shell command
        if "make/join_sources.py" in words and "--part" in words:
            out, files = joined_sources(words)
            joined[out] = files
        elif "-c" in words and words[-2:-1] == ["-o"]:
            begin = next((i for i, word in enumerate(words) if "++" in os.path.basename(word)), None)
            source = words[words.index("-c") + 1]
            if begin is None or not source.endswith(SOURCES):
                continue
            for file in joined.get(source, [source]):
                # The first of several commands for a file, except for kernels, which get that for the emulator.
                if file not in commands or ("-DANVIL_EMULATED" in words and file.startswith(("llmc/cuda/", "test/", "dev/bench"))):
                    commands[file] = [file if word == source else word for word in words[begin:]]
    if not commands:
        sys.exit("error: no command that compiles: expected the output of `make -nBk V=1 objects`")
    entries = [{"directory": os.getcwd(), "file": file, "arguments": words} for file, words in sorted(commands.items())]
    print(json.dumps(entries, indent=1))


if __name__ == "__main__":
    main()
