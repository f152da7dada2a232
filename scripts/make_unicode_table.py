#!/usr/bin/env python3
"""Writes llmc/data/unicode_table.h: the code points that are letters, numbers and marks, and the data for NFC.

    python3 -m venv /tmp/unicode && /tmp/unicode/bin/pip install unicodedata2==16.0.0
    /tmp/unicode/bin/python scripts/make_unicode_table.py           writes the table
    /tmp/unicode/bin/python scripts/make_unicode_table.py --check   exit code 1 if it differs from the committed one

The version of Unicode is that of tiktoken 0.14 and `tokenizers` 0.23. With another version, text in a newer script would
be split differently and get other ids.
"""

import pathlib
import sys

import unicodedata2

VERSION = "16.0.0"
TABLE = pathlib.Path(__file__).resolve().parent.parent / "llmc/data/unicode_table.h"

HEAD = """\
/*
Of Unicode {version}, as ranges of code points, both ends included: the letters (general categories L*), of which some
are uppercase (Lu, Lt) or lowercase (Ll), the numbers (N*), the marks (M*), and canonical combining classes but 0. And
what code points are canonically made of: itself, one or two parts, and whether these become it again in NFC.
Made by scripts/make_unicode_table.py.
*/
#pragma once

// clang-format off
"""


def ranges_of(*categories):
    found, start = [], None
    for c in range(0x110001):
        inside = c < 0x110000 and unicodedata2.category(chr(c)).startswith(categories)
        if inside and start is None:
            start = c
        elif not inside and start is not None:
            found.append((start, c - 1))
            start = None
    return found


def combining_classes():
    found = []
    for c in range(0x110000):
        kind = unicodedata2.combining(chr(c))
        if found and found[-1][1] == c - 1 and found[-1][2] == kind:
            found[-1][1] = c
        elif kind:
            found.append([c, c, kind])
    return found


def decompositions():
    """All decompositions but Hangul's, which are computed."""
    found = []
    for c in range(0x110000):
        parts = unicodedata2.decomposition(chr(c))
        if not parts or parts.startswith("<"):
            continue
        parts = [int(part, 16) for part in parts.split()]
        back = unicodedata2.normalize("NFC", "".join(map(chr, parts))) == chr(c)
        found.append([c, parts[0], parts[1] if len(parts) > 1 else 0, int(back and len(parts) > 1)])
    return found


def array(name, rows):
    lines, line = [f"inline constexpr char32_t {name}[][{len(rows[0])}] = {{"], "   "
    for row in rows:
        item = " {" + ", ".join(f"0x{value:X}" for value in row) + "},"
        if len(line) + len(item) > 118:
            lines.append(line)
            line = "   "
        line += item
    return "\n".join([*lines, line, "};", ""])


def main():
    if unicodedata2.unidata_version != VERSION:
        sys.exit(f"unicodedata2 has Unicode {unicodedata2.unidata_version}: expected {VERSION}")
    text = HEAD.format(version=VERSION) + array("kLetters", ranges_of("L")) + array("kNumbers", ranges_of("N"))
    text += array("kUppercase", ranges_of("Lu", "Lt")) + array("kLowercase", ranges_of("Ll")) + array("kMarks", ranges_of("M"))
    text += array("kCombiningClasses", combining_classes()) + array("kDecompositions", decompositions())
    if "--check" not in sys.argv:
        TABLE.write_text(text, encoding="utf-8")
    elif TABLE.read_text(encoding="utf-8") != text:
        sys.exit(f"{TABLE.name} is not what this script makes")


if __name__ == "__main__":
    main()
