#!/usr/bin/env python3
"""Writes llmc/data/unicode_table.h: which code points are letters and which are numbers.

    python3 -m venv /tmp/unicode && /tmp/unicode/bin/pip install unicodedata2==16.0.0
    /tmp/unicode/bin/python scripts/make_unicode_table.py           writes the table
    /tmp/unicode/bin/python scripts/make_unicode_table.py --check   exit code 1 if it differs from the committed one

The version of Unicode is that of tiktoken 0.14 and `tokenizers` 0.23: with another, text in a script that came later
would be split elsewhere and get other ids.
"""

import pathlib
import sys

import unicodedata2

VERSION = "16.0.0"
TABLE = pathlib.Path(__file__).resolve().parent.parent / "llmc/data/unicode_table.h"

HEAD = """\
/*
The letters (general categories L*) and numbers (N*) of Unicode {version}, as ranges of code points, both ends included.
Made by scripts/make_unicode_table.py.
*/
#pragma once

// clang-format off
"""


def ranges_of(category):
    found, start = [], None
    for c in range(0x110001):
        inside = c < 0x110000 and unicodedata2.category(chr(c))[0] == category
        if inside and start is None:
            start = c
        elif not inside and start is not None:
            found.append((start, c - 1))
            start = None
    return found


def array(name, ranges):
    lines, line = [f"inline constexpr char32_t {name}[][2] = {{"], "   "
    for first, last in ranges:
        item = f" {{0x{first:X}, 0x{last:X}}},"
        if len(line) + len(item) > 118:
            lines.append(line)
            line = "   "
        line += item
    return "\n".join([*lines, line, "};", ""])


def main():
    if unicodedata2.unidata_version != VERSION:
        sys.exit(f"unicodedata2 has Unicode {unicodedata2.unidata_version}: expected {VERSION}")
    text = HEAD.format(version=VERSION) + array("kLetters", ranges_of("L")) + array("kNumbers", ranges_of("N"))
    if "--check" not in sys.argv:
        TABLE.write_text(text, encoding="utf-8")
    elif TABLE.read_text(encoding="utf-8") != text:
        sys.exit(f"{TABLE.name} is not what this script makes")


if __name__ == "__main__":
    main()
