#!/usr/bin/env python3
"""Checks what programmatic dependent launch relies on: every kernel begins with wait_for_previous_kernels(), and only launch()
launches kernels (llmc/cuda/device.cuh).

    python3 dev/lint/check_waits.py         prints FILE:LINE: the rule broken, for every one; exit code 1 if any
    python3 dev/lint/check_waits.py --test  checks that it finds the call missing in each kernel, and in the wrong place
"""

import pathlib
import re
import sys

KERNEL = re.compile(r"^__global__[^{;]*\{\n", re.MULTILINE)
CALL = "    wait_for_previous_kernels();\n"


def findings(name, text):
    for kernel in KERNEL.finditer(text):
        if not text.startswith(CALL, kernel.end()):
            line = text.count("\n", 0, kernel.end()) + 1
            yield f"{name}:{line}: the kernel does not begin with wait_for_previous_kernels()"
    if text.count("\n__global__") != len(KERNEL.findall(text)):
        yield f"{name}:1: a kernel whose body does not begin on a line of its own"
    for launch in re.finditer(r"<<<", text):
        if not name.endswith("/device.cuh"):
            yield f"{name}:{text.count(chr(10), 0, launch.start()) + 1}: only launch() launches kernels"


def test(sources):
    kernels = 0
    for name, text in sources.items():
        for kernel in KERNEL.finditer(text):
            kernels += 1
            without = text[: kernel.end()] + text[kernel.end() + len(CALL) :]
            later = text[: kernel.end()] + "    int first = 0;\n" + text[kernel.end() :]
            for wrong in (without, later):
                assert len(list(findings(name, wrong))) == 1, f"{name}: not found\n{kernel[0]}"
    assert kernels > 70, kernels
    assert len(list(findings("llmc/cuda/x.cuh", "\n__global__ void f() {}\n"))) == 1
    assert len(list(findings("llmc/cuda/x.cuh", "f<<<1, 1>>>();\n"))) == 1


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    sources = {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted((root / "llmc").rglob("*.cu*"))
    }
    if sys.argv[1:] == ["--test"]:
        return test(sources)
    found = [finding for name, text in sources.items() for finding in findings(name, text)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
