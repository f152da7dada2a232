#!/usr/bin/env python3
"""Writes how the build compiles each file, for editors and clang-tidy: make compile_commands.json

    make -nBk V=1 objects | python3 make/compile_commands.py > compile_commands.json

Kernels get the command for the emulated GPU, which needs no CUDA toolkit.
"""

import json
import os
import shlex
import sys


def main():
    commands = {}
    for line in sys.stdin:
        try:
            words = shlex.split(line)
        except ValueError:
            continue  # a line of a multi-line shell command
        begin = next((i for i, word in enumerate(words) if "++" in os.path.basename(word)), None)
        if begin is None or "-c" not in words:
            continue
        file = words[words.index("-c") + 1]
        # The first of several commands for a file, except for kernels, which get that for the emulator.
        if file not in commands or ("-DANVIL_EMULATED" in words and file.startswith(("llmc/cuda/", "test/", "dev/bench"))):
            commands[file] = words[begin:]
    if not commands:
        sys.exit("error: no command that compiles: expected the output of `make -nBk V=1 objects`")
    entries = [{"directory": os.getcwd(), "file": file, "arguments": words} for file, words in sorted(commands.items())]
    print(json.dumps(entries, indent=1))


if __name__ == "__main__":
    main()
