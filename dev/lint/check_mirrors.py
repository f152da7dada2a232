#!/usr/bin/env python3
"""Checks the layout of the tree: every op in all of its places, unique file names, and who may include what.

    python3 dev/lint/check_mirrors.py       prints FILE: the rule broken, for every one; exit code 1 if any

- An op that is declared in llmc/ops/X.h is implemented in llmc/cpu/X.h. It has entries in the table of llmc/cpu/kernels.cpp,
  where a missing one would be a null pointer, and in one of llmc/cuda/table_*.cu. Every llmc/cpu/X.h has a test test/cpu/X_test.cpp, a
  benchmark dev/bench/X.cu, and kernels llmc/cuda/X.cuh with their test test/cuda/X_cuda_test.cu. Other files llmc/cuda/*.cuh
  are listed here: they are parts of several ops or of a large one. Attention's are in llmc/cuda/attention/.
- A test is in the folder of its subject: X_test.cpp in test/F/ if llmc/F has an X (an op's in test/cpu/, its kernels' in
  test/cuda/). Other tests are in test/F/ for a folder F of llmc/, for scripts/ or dev/.
- A file name identifies a file: it occurs in one folder only. Mirrored files differ in their ending or in `_test`, except for
  an op's declaration and its CPU implementation, and for its kernels and their benchmark.
- Each folder of llmc/ has a README.md of at most twelve lines: what it is, where to start, what stays out.
- Only .cpp files include headers of other projects, which are slow to compile, and some of which nvcc rejects.
"""

import collections
import pathlib
import re
import sys

# Files that are tools, parts or lists of the ops, not ops.
TOOLS = {
    *("amx", "bf16_pairs", "device", "gate", "gemm", "gemm_micro_kernel", "gemm_pack", "gemm_plan", "gemm_stream", "gemm_tiles"),
    *("kernels", "peaks", "moments", "reduce", "simd"),
}
CUDA_PARTS = {
    *("attention_fp32", "attention_stats", "delayed_codes", "device", "flash_attention_backward", "flash_attention_forward"),
    *("flash_attention_hopper", "flash_attention_hopper_backward", "flash_hopper_tile", "flash_tile"),
    *("gate", "hopper", "kernels", "moments", "reduce", "scatter_rows", "sort_tokens", "tensor_list"),
}
ENTRY = re.compile(r"\(\*(\w+)\)\(")
SOURCE = {".h", ".cuh", ".cpp", ".cu"}
FOREIGN = re.compile(
    r"\s*#\s*include\s*[<\"]((?:CLI|nlohmann)/[^>]+|xxhash\.h|mpi\.h|nccl\.h|cudnn\w*\.h|cublas\w*\.h|catch2/[^>]+|llmc/base/json\.h)[>\"]"
)
# Tests include Catch2 through the first header, and the engine's .cpp files nlohmann's JSON through the second.
MAY_INCLUDE = {"test/testing.h": "catch2/", "llmc/base/json.h": "nlohmann/"}


def in_cuda(root, place):
    """The path of a file of llmc/cuda/, which may be in llmc/cuda/attention/; that of any other file."""
    path = root / place
    attention = path.parent / "attention" / path.name
    return attention if attention.is_file() else path


def missing_mirrors(root):
    for op in sorted((root / "llmc/ops").glob("*.h")):
        if op.stem not in {"ops", "op_cost"} and not (root / f"llmc/cpu/{op.name}").is_file():
            yield f"llmc/ops/{op.name}: the op has no llmc/cpu/{op.name}"
    for op in sorted((root / "llmc/cpu").glob("*.h")):
        if op.stem in TOOLS:
            continue
        for place in ("test/cpu/X_test.cpp", "dev/bench/X.cu", "llmc/cuda/X.cuh", "test/cuda/X_cuda_test.cu"):
            if not in_cuda(root, place.replace("X", op.stem)).is_file():
                yield f"llmc/cpu/{op.name}: the op has no {place.replace('X', op.stem)}"
    for kernels in sorted((root / "llmc/cuda").rglob("*.cuh")):
        if kernels.stem not in CUDA_PARTS and not (root / f"llmc/cpu/{kernels.stem}.h").is_file():
            yield f"{kernels.relative_to(root)}: neither an op, llmc/cpu/{kernels.stem}.h, nor in CUDA_PARTS here"


def missing_entries(root):
    on_cpu = set(re.findall(r"^ *o\.(\w+) = ", (root / "llmc/cpu/kernels.cpp").read_text(encoding="utf-8"), re.MULTILINE))
    tables = "\n".join(path.read_text(encoding="utf-8") for path in (root / "llmc/cuda").rglob("table_*.cu"))
    on_gpu = set(re.findall(r"\.(\w+) = ", tables))
    for op in sorted((root / "llmc/ops").glob("*.h")):
        for entry in ENTRY.findall(op.read_text(encoding="utf-8")):
            if entry not in on_cpu:
                yield f"llmc/ops/{op.name}: {entry} is not in the table of llmc/cpu/kernels.cpp"
            if entry not in on_gpu:
                yield f"llmc/ops/{op.name}: {entry} is in no table of llmc/cuda/table_*.cu"


def misplaced_tests(root):
    rooms = {path.name for path in (root / "llmc").iterdir() if path.is_dir()} - {"ops"} | {"scripts", "dev"}
    for test in sorted([*(root / "test").rglob("*_test.cpp"), *(root / "test").rglob("*_test.cu")]):
        where, name = test.relative_to(root / "test").parent.as_posix(), test.relative_to(root).as_posix()
        if where not in rooms:
            yield f"{name}: expected in test/F/, where F is one of {', '.join(sorted(rooms))}"
            continue
        subject = re.sub(r"(_cuda)?_test$", "", test.stem)
        homes = {path.relative_to(root / "llmc").parts[0] for path in (root / "llmc").rglob(f"{subject}.*")} - {"ops"}
        if homes and where not in homes:
            yield f"{name}: its subject is in llmc/{' and llmc/'.join(sorted(homes))}: expected in test/ of that name"


def sources(root):
    for folder in ("llmc", "dev", "test", "data"):
        yield from sorted(path for path in (root / folder).rglob("*") if path.suffix in SOURCE)
    yield from sorted(root.glob("*.cu"))


def repeated_names(root):
    places = collections.defaultdict(list)
    for path in sources(root):
        places[path.name].append(path.relative_to(root).as_posix())
    for name, paths in sorted(places.items()):
        if sorted(paths) in (
            [f"llmc/cpu/{name}", f"llmc/ops/{name}"],
            [f"dev/bench/{name}", f"llmc/cuda/{name}"],
            [f"dev/bench/{name}", f"llmc/cuda/attention/{name}"],
            # Two replacements for the toolkit's headers, which are included as <name>.
            [f"dev/emulator/include/{name}", f"llmc/plan/include/{name}"],
        ):
            continue
        if len(paths) > 1:
            yield f"{paths[0]}: the name {name} occurs again: {', '.join(paths[1:])}"


def folders_without_readme(root):
    folders = {path.parent for path in (root / "llmc").rglob("*") if path.suffix in SOURCE and path.parent.name != "include"}
    for folder in sorted(folders):
        page = folder / "README.md"
        if not page.is_file() or page.read_text(encoding="utf-8").count("\n") > 12:
            yield f"{folder.relative_to(root)}: expected a README.md of at most twelve lines: what it is, where to start, what stays out"


def foreign_headers(root):
    for path in sources(root):
        name = path.relative_to(root).as_posix()
        if path.suffix == ".cpp":
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = FOREIGN.match(line)
            if match and not (name in MAY_INCLUDE and match[1].startswith(MAY_INCLUDE[name])):
                yield f"{name}:{number}: <{match[1]}> is another project's, and takes long to compile: include it in a .cpp file only"


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    found = [*missing_mirrors(root), *missing_entries(root), *misplaced_tests(root), *repeated_names(root), *foreign_headers(root)]
    found += folders_without_readme(root)
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
