#!/usr/bin/env python3
"""Compiles every kernel of llmc/cuda/ for each GPU that Anvil supports, and compares its resources with a table.

    python3 dev/lint/check_kernels.py NVCC [-j N] [--nvdisasm PROGRAM] [--ptx FOLDER] [--renew]    `make cuda-check` (RENEW=1)

- No kernel spills registers or uses local memory; nvcc gives no warning, and ptxas serializes no wgmma.
- Every __global__ function is compiled: launchers are functions of (Cuda&, ...). A template of one type is compiled for
  both types, one of two types for all pairs, and with moments M of both types; Fp8 is e4m3 and e5m2.
- Registers and static shared memory of each kernel are those of doc/results/registers.txt. They depend on the version of
  nvcc, so they are compared only with the version that the table names.
- An SM of an A100, A10, L4, H100 or RTX 5090 has room for as many blocks as the launcher assumes: doc/results/occupancy.txt. For one it
  always has, which takes at most 99 KB of shared memory.
- With nvdisasm (`pip install nvidia-cuda-nvdisasm`): tensors are loaded and stored 128 bits at a time, attention and
  the symmetric GEMM use tensor cores, and no instruction accesses local memory (kernel_code.py).

Exit code 1, with a line for every difference, if any of this does not hold.
"""

import argparse
import concurrent.futures
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import kernel_code

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "doc/results/registers.txt"
OCCUPANCY = ROOT / "doc/results/occupancy.txt"
CHIPS = ["80", "90", "100"]
STATIC_SHARED = 26 << 10  # kStaticSharedBytes of llmc/cuda/device.cuh
# 90 is compiled as 90a, with the features of that chip only, as in make/flags.mk.
ARCHITECTURES = ["80", "90a", "100"]
FLAGS = [
    *"-std=c++20 -O3 -fatbin -x cu -I. --expt-relaxed-constexpr".split(),
    # 1675: OpenMP pragmas, which are for g++
    *"--diag-suppress=1675 -Xptxas=-v,--warn-on-spills,--warn-on-local-memory-usage".split(),
    *[f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in ARCHITECTURES],
]

# An op is a function of (Cuda&, ...). A template with other parameters than types is a part of an op.
OP = re.compile(r"^(?:template <(.*)>\n)?(?:inline )?[\w:<>]+\*? (\w+)\(Cuda& ", re.MULTILINE)
KERNEL = re.compile(r"^__global__\s+void\s+(?:__launch_bounds__\(.*\)\s+)?(\w+)\(", re.MULTILINE)
# C75..: ptxas's information that it serializes wgmma instructions.
WARNING = re.compile(r"warning|error|\(C75\d\d\)", re.IGNORECASE)
COMPILED = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for 'sm_(?P<chip>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


def unit(header):
    """A source that needs every op of a header, or None if it has none."""
    ops = OP.findall(header.read_text(encoding="utf-8"))
    typed = [f"{name}<T>" for parameters, name in ops if parameters == "class T"]
    for parameters, name in ops:
        if parameters == "class Fp8, class T":
            typed += [f"{name}<e4m3, T>", f"{name}<e5m2, T>"]
        elif re.fullmatch(r"class \w+, class \w+", parameters):
            typed.append(f"{name}<T, Other>")
            if parameters.endswith("class M"):  # the type of an optimizer's moments, equal to that of weights or not
                typed.append(f"{name}<T, T>")
    plain = ", ".join(name for parameters, name in ops if not parameters)
    if not typed and not plain:
        return None
    return (
        f'#include "{header.relative_to(ROOT).as_posix()}"\n'
        "template <class... F> void need(F...) {}\n"
        f"template <class T, class Other> void need_typed() {{ need({', '.join(typed)}); }}\n"
        "template void need_typed<float, bf16>();\ntemplate void need_typed<bf16, float>();\n"
        f"void need_plain() {{ need({plain}); }}\n"
    )


def compile_unit(nvcc, folder, header):
    """Compiles a header's kernels. Returns nvcc's output; FOLDER/STEM/ has the machine code of each chip then."""
    source = folder / f"{header.stem}.cu"
    source.write_text(unit(header), encoding="utf-8")
    kept = folder / header.stem
    kept.mkdir()
    command = [nvcc, *FLAGS, "--keep", f"--keep-dir={kept}", "-o", str(source.with_suffix(".fatbin")), str(source)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def keep_ptx(kept, folder):
    """Moves the PTX of a header's kernels to FOLDER/80 and FOLDER/90a, for dev/ptx."""
    for arch in ("80", "90a"):
        (folder / arch).mkdir(parents=True, exist_ok=True)
        for path in kept.glob(f"*compute_{arch}.ptx"):
            shutil.move(path, folder / arch / f"{kept.name}.ptx")


def demangled(names):
    filtered = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    # Removes the types of template arguments: (int)2, (Softcap::Kind)1.
    bare = re.sub(r"\([\w:]+\)(?=\d)", "", filtered.stdout)
    return [re.sub(r"^void ", "", re.sub(r"\(.*", "", line)) for line in bare.splitlines()]


def read_costs(log):
    """{(kernel, chip): (registers, static shared bytes)}, and a line for every kernel that uses local memory."""
    found = [match.groupdict() for match in COMPILED.finditer(log)]
    costs, spills = {}, []
    for kernel, row in zip(demangled([row["name"] for row in found]), found):
        shared = re.search(r"(\d+) bytes smem", row["rest"])
        costs[kernel, row["chip"].rstrip("a")] = int(row["registers"]), int(shared[1]) if shared else 0
        if costs[kernel, row["chip"].rstrip("a")][1] > STATIC_SHARED:
            spills.append(f"{kernel}: more than kStaticSharedBytes of llmc/cuda/device.cuh, {STATIC_SHARED}")
        if row["stack"] != "0" or row["stores"] != "0" or row["loads"] != "0":
            spills.append(
                f"{kernel}, sm_{row['chip']}: {row['stack']} bytes of stack, {row['stores']} stored and "
                f"{row['loads']} loaded to spill registers"
            )
    return costs, spills


def table_of(version, costs):
    kernels = sorted({kernel for kernel, _ in costs})
    width = max(map(len, kernels), default=0)
    lines = [
        "Registers a thread and bytes of static shared memory a block, by `make cuda-check RENEW=1`. No kernel spills.",
        f"nvcc {version}",
        "",
        "kernel".ljust(width) + "".join(f"{'sm_' + chip:>14}" for chip in CHIPS),
    ]
    for kernel in kernels:
        cells = (costs.get((kernel, chip)) for chip in CHIPS)
        lines.append(kernel.ljust(width) + "".join(f"{c[0]:7}{c[1]:7}" if c else f"{'-':>7}{'-':>7}" for c in cells))
    return lines


def instruction_faults(nvdisasm, kept):
    """A line for every kernel whose machine code for Hopper breaks a rule of kernel_code.py."""
    cubins = list(kept.glob("*_90a.cubin"))
    if len(cubins) != 1:
        return [f"{kept.name}: expected machine code for sm_90, found {[cubin.name for cubin in kept.iterdir()]}"]
    code = kernel_code.instructions(nvdisasm, cubins[0])
    return [
        f"{kernel}, sm_90: {fault}"
        for kernel, name in zip(demangled(list(code)), code)
        for fault in kernel_code.faults(kernel, code[name])
    ]


def occupancy_table(version, rows):
    return [
        "Blocks that an SM has room for, beside what the launcher assumes, by `make cuda-check RENEW=1`.",
        f"nvcc {version}",
        "",
        *rows,
    ]


def differences(table, version, lines, cells):
    """A line for each row whose last `cells` columns are not those of the committed table."""
    name = table.relative_to(ROOT)
    if not table.is_file():
        return [f"there is no {name}: make cuda-check RENEW=1 writes it"]
    committed = table.read_text(encoding="utf-8").splitlines()
    if committed[1] != f"nvcc {version}":
        print(f"cuda-check: {name} is of {committed[1]}, this is {version}: not compared")
        return []
    # Compares cells only, because the widths of columns depend on the longest name.
    old, new = (
        {" ".join(line.split()[:-cells]): line.split()[-cells:] for line in each[4:]} for each in (committed, lines)
    )
    return [
        f"{kernel}: {' '.join(new.get(kernel, ['gone']))}; {name} has "
        f"{' '.join(old.get(kernel, ['nothing']))}. If that is meant: make cuda-check RENEW=1"
        for kernel in sorted(old.keys() | new.keys())
        if old.get(kernel) != new.get(kernel)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nvcc")
    parser.add_argument("--cxx", default="g++", help="the host compiler")
    parser.add_argument("--nvdisasm", default="", metavar="PROGRAM", help="looks at instructions, too")
    parser.add_argument("-j", type=int, default=1, metavar="N", help="compile N headers at once")
    parser.add_argument("--ptx", type=pathlib.Path, metavar="FOLDER", help="keep the kernels' PTX in FOLDER/80 and FOLDER/90a")
    parser.add_argument("--renew", action="store_true", help="write the table anew")
    options = parser.parse_args()
    said = subprocess.run([options.nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"V([\d.]+)", said)[1]

    headers = sorted((ROOT / "llmc/cuda").rglob("*.cuh"))
    declared = {name for header in headers for name in KERNEL.findall(header.read_text(encoding="utf-8"))}
    problems, costs = [], {}
    if options.ptx:
        shutil.rmtree(options.ptx, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.j) as pool:
        units = [header for header in headers if unit(header)]
        results = pool.map(lambda header: compile_unit(options.nvcc, pathlib.Path(folder), header), units)
        for header, result in zip(units, results):
            log = result.stdout + result.stderr
            warnings = [line for line in log.splitlines() if WARNING.search(line)]
            problems += [f"{header.relative_to(ROOT)}: {line.strip()}" for line in warnings]
            if result.returncode != 0 and not warnings:
                problems.append(f"{header.relative_to(ROOT)}: nvcc ends with {result.returncode}: {log}")
            own, spills = read_costs(log)
            costs.update(own)
            problems += spills
            if options.ptx:
                keep_ptx(pathlib.Path(folder, header.stem), options.ptx)
        # A kernel may be in several units, and then its faults are found several times.
        if options.nvdisasm:
            looked = pool.map(
                lambda header: instruction_faults(options.nvdisasm, pathlib.Path(folder, header.stem)), units
            )
            problems += sorted({fault for faults in looked for fault in faults})
        else:
            print("cuda-check: instructions are not looked at: no nvdisasm (pip install nvidia-cuda-nvdisasm)")
    compiled = {re.sub(r"<.*", "", kernel) for kernel, _ in costs}
    problems += [f"{kernel} was not compiled: no op launches it" for kernel in sorted(declared - compiled)]

    rows, crowded = kernel_code.occupancy(kernel_code.assumed_launches(options.cxx, ROOT), costs)
    problems += crowded
    # The last number is that of the compared columns: of registers.txt, two for each of three chips; of occupancy.txt, two
    # and one for each of five chips (a launch's threads are part of its name).
    tables = [(TABLE, table_of(version, costs), 6), (OCCUPANCY, occupancy_table(version, rows), 7)]
    for table, lines, cells in tables:
        if options.renew:
            table.parent.mkdir(parents=True, exist_ok=True)
            table.write_text("\n".join(lines) + "\n", encoding="utf-8")
        else:
            problems += differences(table, version, lines, cells)
    print("\n".join(problems), end="\n" if problems else "")
    print(f"cuda-check: {len(compiled)} kernels, {len(costs)} times compiled, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
