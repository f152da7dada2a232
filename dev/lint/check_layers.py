#!/usr/bin/env python3
"""Checks that includes point down, from platform to train_gpt.cu: LAYERS has the order.

    python3 dev/lint/check_layers.py        prints FILE:LINE: the rule broken, for every one; exit code 1 if any

Folders of one layer do not include each other. Programs, tests and benchmarks are above all layers and may include any
header of llmc/; nothing in llmc/ includes them.
"""

import pathlib
import re
import sys

LAYERS = [
    ["llmc/platform"],
    ["llmc/base"],
    ["llmc/ops", "llmc/io", "llmc/data"],
    ["llmc/cpu", "llmc/cuda", "llmc/cuda/attention"],
    ["llmc/model", "llmc/comm"],
    ["llmc/comm/tcp", "llmc/comm/host", "llmc/comm/gpu"],
    ["llmc/comm/launch"],
    ["llmc/optim", "llmc/eval", "llmc/interop"],
    ["llmc/run"],
    ["llmc/checkpoint"],
    ["llmc/train"],
    ["llmc/commands", "llmc/plan", "llmc/plan/include"],
]
# Kernels and cuDNN are parts of one device: each includes the other.
TOGETHER = {"llmc/cuda", "llmc/cuda/attention"}
LEVEL = {folder: level for level, folders in enumerate(LAYERS) for folder in folders}
INCLUDE = re.compile(r'\s*#\s*include\s*"([^"]+)"')


def broken_rule(folder, included):
    """What is wrong with a file of `folder` that includes `included`, or None."""
    target = str(pathlib.PurePosixPath(included).parent)
    if not included.startswith("llmc/"):
        return f'"{included}" is not of llmc/: the engine includes nothing above it, and by full path'
    if target not in LEVEL:
        return f"{target} is in no layer: add it to LAYERS in dev/lint/check_layers.py"
    if target == folder or LEVEL[target] < LEVEL[folder] or {target, folder} == TOGETHER:
        return None
    if LEVEL[target] == LEVEL[folder]:
        return f"{folder} must not include {target}: they are siblings"
    return f"{folder} must not include {target}: arrows point down"


def findings(root):
    for path in sorted((root / "llmc").rglob("*")):
        if path.suffix not in {".h", ".cuh", ".cpp", ".cu"}:
            continue
        name = path.relative_to(root).as_posix()
        folder = path.parent.relative_to(root).as_posix()
        if folder not in LEVEL:
            yield f"{name}:1: {folder} is in no layer: add it to LAYERS in dev/lint/check_layers.py"
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            rule = match and broken_rule(folder, match[1])
            if rule:
                yield f"{name}:{number}: {rule}"


def main():
    found = list(findings(pathlib.Path(__file__).resolve().parents[2]))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
