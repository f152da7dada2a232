#!/usr/bin/env python3
"""Copies a CUDA library with the code of one chip only. NCCL's 340 MB have code for seven chips.

    scripts/one_chip.py LIBRARY CHIP COPY        CHIP: 90 for an H100 or H200; scripts/carry_deps.sh --nccl calls it

Every container of device code (a "fatbin": its parts are named in CUDA 13's fatbinary_section.h and fatBinaryCtl.h) keeps the
code that the chip can run: machine code for it or for the nearest earlier chip of its generation, else PTX. The rest and the
sections for debuggers are set to zero, so that a compressed copy is small. Nothing moves, and the host's code is unchanged.
Exit code 2 if the file is no such library, or has no code for that chip.
"""
import struct
import sys

CONTAINER = struct.pack("<I", 0xBA55ED50)
PTX, CUBIN = 1, 2
SECTIONS = (".nv_fatbin", "__nv_relfatbin")


class UserError(Exception):
    pass


def sections_of(data):
    """The name, offset and size of each section of a 64-bit ELF file."""
    if data[:5] != b"\x7fELF\x02":
        raise UserError("not a 64-bit ELF file")
    table, count, names = (struct.unpack_from(f, data, at)[0] for f, at in (("<Q", 40), ("<H", 60), ("<H", 62)))
    headers = [struct.unpack_from("<IIQQQQ", data, table + 64 * i) for i in range(count)]
    strings = headers[names][4]
    for name, kind, _, _, offset, size in headers:
        at = strings + name
        yield bytes(data[at : data.index(b"\0", at)]).decode(), kind, offset, size


def entries_of(data, begin, end):
    """For each piece of code in a container: its kind, its chip, its offset, and its length with its header."""
    while begin < end:
        kind, _, header, size = struct.unpack_from("<HHIQ", data, begin)
        (chip,) = struct.unpack_from("<I", data, begin + 28)
        if kind not in (PTX, CUBIN) or header < 32 or begin + header + size > end:
            raise UserError(f"at {begin:#x}: not the device code of a CUDA that is known here")
        yield kind, chip, begin, header + size
        begin += header + size


def runs_on(entries, chip):
    """The pieces of code that run on this chip."""
    cubins = [e for e in entries if e[0] == CUBIN and e[1] // 10 == chip // 10 and e[1] <= chip]
    ptx = [e for e in entries if e[0] == PTX and e[1] <= chip]
    best = max((e[1] for e in cubins or ptx), default=None)
    return [e for e in cubins or ptx if e[1] == best]


def keep_one_chip(data, chip):
    """Changes a library. Returns the number of containers with code for the chip, and all chips that have code."""
    chips, kept = set(), 0
    for name, kind, offset, size in list(sections_of(data)):
        if name.startswith(".debug_") and kind != 8:
            data[offset : offset + size] = bytes(size)
        if name not in SECTIONS:
            continue
        at = data.find(CONTAINER, offset, offset + size)
        while at >= 0:
            _, _, header, length = struct.unpack_from("<IHHQ", data, at)
            begin, end = at + header, at + header + length
            entries = list(entries_of(data, begin, end))
            chips |= {e[1] for e in entries if e[0] == CUBIN}
            code = b"".join(bytes(data[e[2] : e[2] + e[3]]) for e in runs_on(entries, chip))
            kept += bool(code)
            # The only code in its container, whose header has its length.
            data[begin:end] = code + bytes(length - len(code))
            struct.pack_into("<Q", data, at + 8, len(code))
            at = data.find(CONTAINER, end, offset + size)
    return kept, chips


def main():
    if len(sys.argv) != 4 or not sys.argv[2].isdigit():
        print("error: expected LIBRARY CHIP COPY", file=sys.stderr)
        return 2
    library, chip, copy = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    try:
        with open(library, "rb") as file:
            data = bytearray(file.read())
        kept, chips = keep_one_chip(data, chip)
        if not kept:
            raise UserError(f"no code for sm_{chip}; it has {', '.join(f'sm_{c}' for c in sorted(chips)) or 'none at all'}")
        with open(copy, "wb") as file:
            file.write(data)
    except (OSError, UserError, struct.error) as error:
        print(f"error: {library}: {error}", file=sys.stderr)
        return 2
    print(f"{library}: {kept} containers with code for sm_{chip}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
