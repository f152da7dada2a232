#!/usr/bin/env python3
"""Runs the kernels' tests on the PTX machine, and plants faults that they must find.

    python3 dev/ptx/main.py TESTS FOLDER [-j N]                          `make ptx`
    python3 dev/ptx/main.py TESTS FOLDER [-j N] --mutants N [--seed S]   `make ptx-mutants`

TESTS is the program with tests on the emulator, FOLDER has the PTX of all kernels for each chip: 80 and 90a
(dev/lint/check_kernels.py --ptx). Every kernel must run, and the faults of NAMED must be found. --mutants plants N faults
at random over kernels and kinds, and writes doc/results/ptx_mutants.txt. Exit code 1 if a test fails, a kernel has not
run, or a fault of NAMED is not found.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "doc/results/ptx_mutants.txt"
# Tests of kernels, and of whole models on them.
OP_TOPICS = sorted(
    [path.name.removesuffix("_cuda_test.cu") for path in (ROOT / "test/cuda").glob("*_cuda_test.cu")],
    key=lambda topic: (topic != "attention", topic),  # the longest first
)
TOPICS = [*OP_TOPICS, "architecture", "kv_cache", "dropout_model"]
RUNS = [("90a", "in_order"), ("90a", "reverse"), ("80", "random")]
MEASURE_ONLY = {"flush_kernel", "random_kernel"}
SECONDS, MUTANT_SECONDS = 900, 200  # of one topic

# (what, chip, a kernel's name, a topic, pattern, replacement): the first match in the kernel is replaced.
NAMED = [
    ("a descriptor's stride", "90a", "flash_forward_hopper_kernel<64>", "attention", r"4611686293305360384", "4611686293305360392"),
    ("a descriptor's swizzle", "90a", "flash_forward_hopper_kernel<64>", "attention", r"4611686293305360384", "9223372311732748288"),
    ("b not transposed", "90a", "flash_forward_hopper_kernel<64>", "attention", r"(wgmma\.mma_async[^;]*\}, \{[^;]*, p, 1, 1, )1;", r"\g<1>0;"),
    ("a not transposed", "90a", "flash_backward_hopper_kernel<64>", "attention", r"(wgmma\.mma_async[^;]*, p, 1, 1, )1, 1;", r"\g<1>0, 1;"),
    ("a wait's parity", "90a", "flash_forward_hopper_kernel<64>", "attention", r"(try_wait[^;]*, )(%r\d+);", r"\g<1>1;"),
    ("no fence of the proxies", "90a", "flash_backward_hopper_kernel<64>", "attention", r"fence\.proxy\.async\.shared::cta;", ""),
    ("no fence of mbarriers", "90a", "flash_forward_hopper_kernel<64>", "attention", r"fence\.mbarrier_init\.release\.cluster;", ""),
    ("no wgmma.fence", "90a", "flash_forward_hopper_kernel<64>", "attention", r"wgmma\.fence\.sync\.aligned;", ""),
    ("one group less waited for", "90a", "flash_forward_hopper_kernel<64>", "attention", r"wgmma\.wait_group\.sync\.aligned 0;", "wgmma.wait_group.sync.aligned 1;"),
    ("a release that is a store", "90a", "flash_backward_hopper_kernel<64>", "attention", r"st\.release\.gpu\.s32", "st.u32"),
    ("a copy's group not waited for", "80", "flash_forward_kernel<64, 0>", "attention", r"cp\.async\.wait_group 0;", "cp.async.wait_group 1;"),
    ("no barrier", "80", "layernorm_backward_kernel<float, 1, 4>", "layernorm", r"bar\.sync\s+0;", ""),
]

# Kinds of faults that --mutants plants: a pattern, and what a match becomes.
KINDS = {
    "barrier removed": (r"\tbar\.sync[^;]*;|\tbarrier\.cta\.sync[^;]*;", ""),
    "warp barrier removed": (r"\tbar\.warp\.sync[^;]*;", ""),
    "shuffle from another lane": (r"(shfl\.sync\.bfly\.b32[^,]*,[^,]*, )(\d+)", lambda m: m[1] + str(int(m[2]) ^ 1 or 2)),
    "predicate negated": (r"@(%p\d+)( bra)", r"@!\1\2"),
    "bound off by one": (r"setp\.(lt|ge|gt|le)\.(s32|s64|u32|u64)", lambda m: f"setp.{dict(lt='le', le='lt', gt='ge', ge='gt')[m[1]]}.{m[2]}"),
    "rounded to zero": (r"(fma|cvt|div|mul)\.rn\.(f32|f64|bf16x2\.f32|f32\.s32|f32\.f64)", r"\1.rz.\2"),
    "address": (r"((?:ld|st)\.(?:shared|global)[\w.]*\.(?:f32|u32)[^;]*\[%\w+)(\])", r"\g<1>+4]"),
    "sum for difference": (r"sub\.f32", "add.f32"),
    "difference for sum": (r"add\.f32", "sub.f32"),
    "other FP8": (r"e4m3x2", "e5m2x2"),
    "maximum for minimum": (r"(min|max)\.(f32|s32|s64|u32|u64)", lambda m: ("max" if m[1] == "min" else "min") + "." + m[2]),
    "selection swapped": (r"(selp\.[bsuf]\d+\s+%\w+, )([^,]+), ([^,]+)", r"\1\3, \2"),
    "copy not waited for": (r"cp\.async\.wait_group (\d)", lambda m: f"cp.async.wait_group {int(m[1]) + 1}"),
    "transposed or not": (r"ldmatrix\.sync\.aligned\.m8n8\.x4\.(trans\.)?shared", lambda m: "ldmatrix.sync.aligned.m8n8.x4." + ("" if m[1] else "trans.") + "shared"),
    "constant": (r"(mul|fma\.rn)\.f32([^;]*, )0f3F(\w{6})", r"\1.f32\g<2>0f40\3"),
    "asynchronous": (
        r"fence\.proxy\.async[^;]*;|wgmma\.fence[^;]*;|st\.release\.gpu\.s32|ld\.acquire\.gpu\.s32|wgmma\.wait_group\.sync\.aligned 0|mbarrier\.arrive\.shared[^;]*;",
        lambda m: {"st.r": "st.u32", "ld.a": "ld.s32"}.get(m[0][:4], "wgmma.wait_group.sync.aligned 1" if "wait" in m[0] else ""),
    ),
}


def kernel_texts(folder):
    """{mangled name: (file, begin, end)} of a chip's PTX. Of several files with a kernel the first counts."""
    found = {}
    for path in sorted(folder.glob("*.ptx")):
        text = path.read_text()
        for entry in re.finditer(r"\.visible \.entry (\w+)\(.*?\n\n\}\n", text, re.DOTALL):
            found.setdefault(entry[1], (path, entry.start(), entry.end()))
    return found


def demangled(names):
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    bare = re.sub(r"\([\w:]+\)(?=\d)", "", done)  # types of template arguments
    return dict(zip(names, (re.sub(r"^void |\(.*", "", line) for line in bare.splitlines())))


def run_topic(tests, folder, topic, schedule, ran=None, is_mutant=False):
    """Runs a topic's tests. Returns (exit code, output)."""
    chip = folder.name
    env = dict(os.environ, ANVIL_PTX=str(folder), ANVIL_EMULATOR_SCHEDULE=schedule, ANVIL_EMULATOR_CHIP="80" if chip == "80" else "90")
    if ran:
        env["ANVIL_PTX_RAN"] = str(ran)
    command = ["nice", str(tests), f"[{topic}]"] + (["-a"] if is_mutant else [])
    limit = MUTANT_SECONDS if is_mutant else SECONDS
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=limit)
        return done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as expired:
        return 124, f"{topic} took longer than {limit} s: {expired}"


def plant(texts, name, change, into):
    """Writes a chip's folder `into` whose kernel `name` is change(text)."""
    path, begin, end = texts[name]
    into.mkdir()
    for other in path.parent.glob("*.ptx"):
        (into / other.name).symlink_to(other.resolve())
    text = path.read_text()
    (into / "000.ptx").write_text(text[:begin] + change(text[begin:end]) + text[end:])


def run_tests(options, scratch):
    """Runs all topics on all chips. Returns what is wrong, line by line."""
    problems, ran = [], {chip: scratch / f"ran-{chip}" for chip, _ in RUNS}
    with concurrent.futures.ThreadPoolExecutor(options.j) as pool:
        jobs = {
            (chip, schedule, topic): pool.submit(run_topic, options.tests, options.folder / chip, topic, schedule, ran[chip])
            for chip, schedule in RUNS
            for topic in TOPICS
        }
        for (chip, schedule, topic), job in jobs.items():
            code, output = job.result()
            if code:
                problems.append(f"{topic}, sm_{chip}, {schedule}: exit code {code}\n{output[-6000:]}")
    for chip, path in ran.items():
        names = demangled(sorted(kernel_texts(options.folder / chip)))
        missed = set(names) - set(path.read_text().split())
        problems += sorted(
            f"{names[name]}, sm_{chip}, was not run by any test"
            for name in missed
            if names[name].split("<")[0] not in MEASURE_ONLY and not (chip == "80" and "hopper" in name)
        )
        print(f"ptx: sm_{chip}: {len(names) - len(missed)} of {len(names)} kernels ran")
    return problems


def find_named(options, scratch):
    """Plants the faults of NAMED. Returns a line for each that no test finds."""
    problems, jobs = [], []
    with concurrent.futures.ThreadPoolExecutor(options.j) as pool:
        for number, (what, chip, kernel, topic, pattern, replacement) in enumerate(NAMED):
            texts = kernel_texts(options.folder / chip)
            names = {bare: name for name, bare in demangled(sorted(texts)).items()}
            into = scratch / f"named{number}" / chip
            into.parent.mkdir()

            def change(text):
                changed, count = re.subn(pattern, replacement, text, count=1)
                if count == 0:
                    raise ValueError(f"{kernel}, sm_{chip}: no match for {what}")
                return changed

            plant(texts, names[kernel], change, into)
            jobs.append((what, kernel, pool.submit(run_topic, options.tests, into, topic, "reverse", None, True)))
        for what, kernel, job in jobs:
            if job.result()[0] == 0:
                problems.append(f"{kernel} with a fault, {what}, passes its tests")
    print(f"ptx: {len(NAMED) - len(problems)} of {len(NAMED)} named faults found")
    return problems


def plant_at_random(options, scratch):
    """Plants faults at random, and writes the table."""
    draw = random.Random(options.seed)
    topics = collections.defaultdict(set)  # of (chip, kernel)
    with concurrent.futures.ThreadPoolExecutor(options.j) as pool:
        ran = {topic: scratch / f"topic-{topic}" for topic in OP_TOPICS}
        folder = options.folder / "90a"
        list(pool.map(lambda topic: run_topic(options.tests, folder, topic, "in_order", ran[topic]), OP_TOPICS))
    for topic, path in ran.items():
        for name in path.read_text().split() if path.exists() else ():
            topics["90a", name].add(topic)
    # sm_80 differs in what converts to FP8, and has the other attention.
    for name in kernel_texts(options.folder / "80"):
        if "hopper" not in name and ("flash_" in name or "quantize" in name):
            topics["80", name].add("attention" if "flash_" in name else "quantize")
    texts = {chip: kernel_texts(options.folder / chip) for chip in ("90a", "80")}
    names = {chip: demangled(sorted(texts[chip])) for chip in texts}
    places = collections.defaultdict(list)  # of each kind
    for chip, kernels in texts.items():
        for name, (path, begin, end) in sorted(kernels.items()):
            if (chip, name) not in topics:
                continue
            text = path.read_text()[begin:end]
            for kind, (pattern, _) in KINDS.items():
                count = len(re.findall(pattern, text))
                if count:
                    places[kind].append((chip, name, count))

    def attempt(number):
        kind = chosen[number][0]
        chip, name, count = chosen[number][1]
        which, (pattern, replacement) = chosen[number][2], KINDS[kind]
        into = scratch / f"mutant{number}" / chip
        into.parent.mkdir()
        seen = iter(range(count))
        line = []

        def change(text):
            def replace(match):
                if next(seen) != which:
                    return match[0]
                whole = text[text.rfind("\n", 0, match.end()) + 1 : text.find("\n", match.end())]
                line.append(" ".join(whole.split())[:60])
                return match.expand(replacement) if isinstance(replacement, str) else replacement(match)

            return re.sub(pattern, replace, text)

        plant(texts[chip], name, change, into)
        for topic in sorted(topics[chip, name]):
            for schedule in ("in_order", "reverse"):
                code, output = run_topic(options.tests, into, topic, schedule, None, True)
                if code:
                    why = "hangs" if code == 124 else "reported" if "PTX of" in output else "wrong results"
                    return kind, names[chip][name], chip, line[0], why
        return kind, names[chip][name], chip, line[0], "NOT FOUND"

    kinds = sorted(places)
    chosen = []
    for number in range(options.mutants):
        kind = kinds[number % len(kinds)]
        place = draw.choice(places[kind])
        chosen.append((kind, place, draw.randrange(place[2])))
    with concurrent.futures.ThreadPoolExecutor(options.j) as pool:
        rows = list(pool.map(attempt, range(options.mutants)))
    found = sum(row[4] != "NOT FOUND" for row in rows)
    lines = [
        f"Faults planted at random in nvcc's PTX, and what the kernels' tests on the PTX machine say of them: {found} of",
        f"{len(rows)} are found. By `make ptx-mutants MUTANTS={options.mutants} SEED={options.seed}`.",
        "",
    ]
    for kind in kinds:
        own = [row for row in rows if row[0] == kind]
        lines.append(f"{kind}: {sum(row[4] != 'NOT FOUND' for row in own)} of {len(own)}")
    lines += [""] + [f"{why:14} {kind:26} {kernel}, sm_{chip}: {line}" for kind, kernel, chip, line, why in sorted(rows)]
    TABLE.write_text("\n".join(lines) + "\n")
    print(f"ptx: {found} of {len(rows)} faults found: {TABLE.relative_to(ROOT)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("-j", type=int, default=1, metavar="N", help="run N programs at once")
    parser.add_argument("--mutants", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.tests = options.tests.resolve()
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        if options.mutants:
            plant_at_random(options, scratch)
            return 0
        problems = run_tests(options, scratch) + find_named(options, scratch)
    print("\n".join(problems), end="\n" if problems else "")
    print(f"ptx: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
