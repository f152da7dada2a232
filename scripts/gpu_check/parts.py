"""The parts of scripts/gpu_check.sh: which steps they have, and those that are no training run."""
import contextlib
import csv
import glob
import gzip
import json
import os
import re
import shutil

import comm
import perf_table
import training
from harness import ROOT, RUNS, Clocks, Failed, NotRun, benches, gpu_name

# Where a wrong kernel costs most comes first; topics that are not named here follow in the alphabet's order.
IMPORTANT = ["hopper", "attention", "matmul", "cross_entropy", "layernorm", "adamw", "linear", "embedding", "residual", "gelu",
             "rmsnorm", "attention_decode", "muon", "global_norm", "scatter"]  # fmt: skip
SANITIZED = ["hopper", "attention", "layernorm", "cross_entropy", "embedding", "matmul"]


# ---- what is here ------------------------------------------------------------------------------------------------------


def versions(part):
    """nvidia-smi, the libraries that the programs load, and what the trainer says of this machine."""
    part.run(["nvidia-smi"])
    train_gpt = part.program("train_gpt")
    linked = part.run(["ldd", train_gpt], quiet=True)
    libraries = re.findall(r"(lib(?:cublasLt|cudnn|nccl|cudart)\S*) => (\S+)", linked.text)
    part.say("\n".join(f"  {name}: {path}" for name, path in libraries))
    missing = [name for name, path in libraries if path == "not"]
    part.check("libraries are there", not missing, "not found: " + ", ".join(missing) if missing else
               ", ".join(name for name, _ in libraries))  # fmt: skip
    with part.isolated("doctor"):
        data = training.tokens_of(training.GPT2_VOCAB)
        ran = part.run([train_gpt, "doctor", "--device=cuda", "--model=gpt2-124M", "--vocab-size=50257", "--dtype=bf16",
                        f"--train-data={data}", "--val-data=", f"--out-dir={RUNS}/doctor"], limit=60)  # fmt: skip
        part.check("doctor", ran.code == 0, "" if ran.code == 0 else ran.why())


def build(part):
    """The trainer, the tests and the benchmarks, on all cores."""
    targets = ["all", "build/cuda/gpu-tests", *(f"build/cuda/bench/{name}" for name in benches())]
    with part.isolated("build"):
        try:
            part.make(*targets)
            part.result("build", "ok", f"{len(targets)} targets")
            return
        except Failed as error:
            part.result("build", "FAILED", str(error))
    for target in targets:  # one by one, to tell which
        with part.isolated(target):
            part.make(target)
            part.result(target, "ok")


# ---- tests -------------------------------------------------------------------------------------------------------------


def run_tests(part, check, tags, limit=None, before=()):
    """Whether all of them have passed."""
    ran = part.run([*before, part.program("gpu-tests"), tags], limit=limit, env={"ANVIL_PROGRAMS": "./"})
    if ran.timed_out and part.left() < 10:
        part.result(check, "not reached", "out of time before it was over")
        return False
    counts = re.findall(r"\d+ passed, \d+ failed", ran.text)
    return part.check(check, ran.code == 0 and not ran.timed_out, (counts[-1] if counts else "") if ran.code == 0 else ran.why())


def conformance(part):
    run_tests(part, "conformance", "[conformance]", 90)


# Kernels that no GPU has run, and attention's: the tests, how long they may take, and what trains with what they test.
UNTRIED = [
    ("test hopper", "[hopper][gpu]", 40, {"own", "mixed"}),
    ("test attention", "[attention][gpu]~[cudnn]", 75, {"own", "mixed"}),
    ("test attention, cuDNN", "[attention][cudnn][gpu]", 35, {"cudnn", "mixed"}),
]


def untried(part):
    """Before anything is trained with them: a kernel that hangs costs its own limit, and is left out of what follows."""
    for check, tags, limit, paths in UNTRIED:
        passed = False
        with part.isolated(check):
            passed = run_tests(part, check, tags, limit)
        part.broken |= set() if passed else paths
    part.tested |= {"hopper", "attention"}
    if part.broken:
        part.say(f"  left out of what follows: --attention {', '.join(sorted(part.broken))}")


def topics(part, first):
    """Topics with tests that need a GPU, those of `first` before all others. What only the emulator runs has none here."""
    named = sorted(path.name.removesuffix("_cuda_test.cu") for path in (ROOT / "test").rglob("*_cuda_test.cu"))
    ordered = [topic for topic in first if topic in named] + [topic for topic in named if topic not in first]
    for topic in ordered:
        listed = part.run([part.program("gpu-tests"), "--list-tests", f"[{topic}][gpu]"], limit=30, quiet=True)
        if not re.search(r"^0 (matching )?test cases", listed.text, re.MULTILINE):
            yield topic


def tests(part):
    for topic in topics(part, IMPORTANT):
        if topic in part.tested:
            continue
        if part.left() < 8:
            part.result(f"test {topic}", "not reached", "out of time", 0)
            continue
        with part.isolated(f"test {topic}"):
            run_tests(part, f"test {topic}", f"[{topic}][gpu]", 300)


def find_tool(name, *places):
    """A tool of NVIDIA's: on the PATH, beside nvcc, or where its package puts it."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    found = [f"{os.path.dirname(nvcc)}/{name}", f"/usr/local/cuda/bin/{name}", *(p for q in places for p in sorted(glob.glob(q)))]
    return shutil.which(name) or next((path for path in found if os.access(path, os.X_OK)), None)


def sanitize(part):
    """A topic at a time: a tool that hangs in one should not hide the others, and time may run out."""
    sanitizer = find_tool("compute-sanitizer", "/opt/nvidia/*/compute-sanitizer/compute-sanitizer")
    if not sanitizer:
        raise NotRun("compute-sanitizer was not found")
    for tool in ("memcheck", "racecheck"):
        # Not the programs that tests start: what they run has tests of its own.
        options = ["--tool", tool, "--error-exitcode", "9", "--target-processes", "application-only"]
        # Every call is checked by us, and some tests ask for more memory than there is.
        options += ["--report-api-errors", "no"] if tool == "memcheck" else []
        for topic in topics(part, SANITIZED):
            if part.left() < 8:
                part.result(f"{tool} {topic}", "not reached", "out of time", 0)
                continue
            with part.isolated(f"{tool} {topic}"):
                run_tests(part, f"{tool} {topic}", f"[{topic}][gpu]", 150, [sanitizer, *options])


# ---- speed -------------------------------------------------------------------------------------------------------------


class NewRows:
    """Rows of a benchmark's file, each kept as soon as it is whole."""

    def __init__(self, part, name, more):
        self.part, self.more = part, more
        self.path = RUNS / f"{name}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        self.read = self.kept = 0
        self.wrong = None

    def keep(self, _=None):
        text = self.path.read_bytes()[self.read :] if self.path.is_file() else b""
        whole = text[: text.rfind(b"\n") + 1]
        self.read += len(whole)
        for line in whole.splitlines():
            try:
                row = json.loads(line)
                perf_table.check_bench_row(self.path.name, row)
            except (ValueError, perf_table.UserError) as error:
                self.wrong = self.wrong or error
                continue
            self.part.add_row({**row, **self.more})
            self.kept += 1
            if row["op"] == "matmul" and row["dtype"] == "bf16":
                self.part.peak = max(self.part.peak or 0, row["peak"])


def bench(part, name, label=None, flags=(), env=None, limit=150, **more):
    """Runs a benchmark. more: what its rows say besides."""
    label = label or f"bench {name}"
    with part.isolated(label):
        program, rows = part.program(name), NewRows(part, name, more)
        with Clocks() as clocks:
            ran = part.run([program, "--json", rows.path, *flags], limit=limit, env=env, on_line=rows.keep)
        rows.keep()
        if ran.code != 0 or ran.timed_out:
            raise Failed(f"{ran.why()}; {rows.kept} rows are kept")
        if not rows.wrong and not rows.kept and name not in FIRST_BENCHES:
            raise NotRun("it measures nothing of a GPU")
        if rows.wrong or not rows.kept:
            raise Failed(str(rows.wrong or "it wrote no row"))
        part.result(label, "ok", f"{rows.kept} rows", **clocks.seen())


MATMUL_CACHE = {"ANVIL_MATMUL_CACHE": os.environ.get("ANVIL_MATMUL_CACHE", str(ROOT / "build/cuda/matmul.txt"))}


def peak(part):
    """The rate of a large GEMM, against which training is held."""
    bench(part, "matmul", "peak", ["--shape", "small"], limit=60)


# Of dev/bench, those that `first` runs: the most of a step's time. All others are for `third`.
FIRST_BENCHES = ("matmul", "attention")


def first_benches(part):
    for name in FIRST_BENCHES:
        bench(part, name, env=MATMUL_CACHE, limit=60)


def all_benches(part):
    names = benches()
    for name in [*(name for name in ("matmul", "attention", "layernorm") if name in names),
                 *(name for name in names if name not in ("matmul", "attention", "layernorm", "sustained"))]:  # fmt: skip
        if part.left() < 8:
            part.result(f"bench {name}", "not reached", "out of time", 0)
        else:
            bench(part, name, env=MATMUL_CACHE)


# Those that `plan` has a model of (llmc/plan/gpus.h).
MODELED = ("A100", "H100", "H200", "B200", "4090")


def model_beside_it(part):
    """The model of `plan` beside each benchmark that says something about it: what it predicted, and what was measured."""
    name = next((name for name in MODELED if re.search(rf"\b{name}\b", gpu_name())), None)
    if not name:
        raise NotRun(f"plan has no model of {gpu_name()}")
    rows, trace = part.out / "results.jsonl", RUNS / "model.json"
    trace.parent.mkdir(parents=True, exist_ok=True)
    ran = part.run([part.program("train_gpt"), "plan", f"--gpu={name}", "--model=gpt2-124M", "--vocab-size=50257",
                    "--train-data=none", f"--calibrate={rows}", f"--trace={trace}"], limit=30, quiet=True)  # fmt: skip
    if ran.code != 0 or ran.timed_out:
        raise Failed(ran.why())
    found = json.loads(trace.read_text(encoding="utf-8"))["otherData"]["calibration"]["rows"]
    for row in found:
        part.add_row({"type": "model", **row})
    part.result("model beside it", "measured", f"{len(found)} rows; plan's own table is in {part.name}.log")


def sustained(part):
    """The GEMM of the peak for half a minute: what is left of it when the card is warm."""
    bench(part, "sustained", limit=90)


# ---- where a step goes, op by op and kernel by kernel ------------------------------------------------------------------------------------

NCU_METRICS = "gpu__time_duration.sum,dram__bytes.sum,sm__inst_executed_pipe_tensor.sum"


def profile_flags(part):
    return [f"--{name}={value}" for name, value in {
        **training.GPT2, "device": "cuda", "dtype": "bf16", "batch-size": training.micro_batch(), "warmup-steps": 2,
        "total-batch-size": training.micro_batch() * 1024, "attention": training.attention_of(part),
        "train-data": training.tokens_of(training.GPT2_VOCAB), "val-data": "", "sample-tokens": 0, "checkpoint-every": 0,
        **training.tuned()}.items()]  # fmt: skip


def profile(part):
    """The trainer's own: events around each op. Its table goes to the log, its trace to trace.json."""
    train_gpt = part.program("train_gpt")
    if "--profile " not in training.help_of(part):
        raise NotRun("this train_gpt has no --profile")
    trace = RUNS / "trace.json"
    ran = part.run([train_gpt, *profile_flags(part), "--steps=6", f"--profile={trace}", f"--out-dir={RUNS}/profile"], limit=90)
    if ran.code != 0 or ran.timed_out or not trace.is_file():
        raise Failed(ran.why())
    with gzip.open(part.out / "trace.json.gz", "wb") as file:
        file.write(trace.read_bytes())
    ops, steps = ops_of(json.loads(trace.read_text(encoding="utf-8"))["traceEvents"])
    for op, (calls, ms) in sorted(ops.items(), key=lambda item: -item[1][1]):
        part.add_row({"type": "op", "op": op, "calls": calls, "ms": ms})
    part.result("profile", "measured", f"{len(ops)} ops in trace.json.gz, {sum(ms for _, ms in ops.values()):.1f} ms of each "
                f"of {steps} steps; its table is in {part.name}.log")  # fmt: skip


def ops_of(events):
    """Of a trace in Chrome's format: calls and ms of each op in a step, but not of ops inside of others, and how many steps."""
    whole = sorted((e for e in events if e.get("ph") == "X"), key=lambda e: (e["tid"], e["ts"], -e["dur"]))
    steps = max(1, sum(e.get("cat") == "phase" and re.fullmatch(r"step \d+", e["name"]) is not None for e in whole))
    ops, end = {}, {}
    for event in whole:
        if event.get("cat") != "op" or event["ts"] < end.get(event["tid"], -1):
            continue
        end[event["tid"]] = event["ts"] + event["dur"] - 1e-3
        calls, ms = ops.get(event["name"], (0, 0))
        ops[event["name"]] = (calls + 1, ms + event["dur"] / 1e3)
    return {name: (round(calls / steps, 3), ms / steps) for name, (calls, ms) in ops.items()}, steps


def kernels_by_ncu(part):
    """Every kernel of 620 launches in a row, about a step, under Nsight Compute: how long, how many bytes. The caches are as
    the kernel before left them, as in training."""
    ncu = find_tool("ncu", "/opt/nvidia/nsight-compute/*/ncu")
    if not ncu:
        raise NotRun("ncu was not found")
    # A step of one micro-batch has some 600 launches: from the second one on, when all is warm. The tuning is there from before.
    ran = part.run([ncu, "--clock-control", "none", "--cache-control", "none", "--metrics", NCU_METRICS, "--csv",
                    "--launch-skip", "700", "--launch-count", "620", part.program("train_gpt"), *profile_flags(part), "--steps=3",
                    f"--out-dir={RUNS}/ncu"], limit=150, quiet=True)  # fmt: skip
    launches = {}
    for row in csv.DictReader(line for line in ran.text.splitlines() if line.startswith('"')):
        launch = launches.setdefault(row.get("ID"), {"kernel": row.get("Kernel Name", "?")})
        with contextlib.suppress(ValueError, KeyError):
            launch[row["Metric Name"]] = float(row["Metric Value"].replace(",", "")) * UNITS.get(row["Metric Unit"], 1)
    kernels = {}
    for launch in launches.values():
        sums = kernels.setdefault(launch["kernel"], {"launches": 0, "ms": 0.0, "bytes": 0.0, "tensor_instructions": 0.0})
        sums["launches"] += 1
        for name, metric in zip(("ms", "bytes", "tensor_instructions"), NCU_METRICS.split(",")):
            sums[name] += launch.get(metric, 0.0)
    if not kernels:
        raise Failed(f"ncu measured no kernel: {ran.why()}")
    for kernel, sums in sorted(kernels.items(), key=lambda item: -item[1]["ms"]):
        part.add_row({"type": "kernel", "kernel": kernel[:300], **sums})
    part.result("kernels by ncu", "measured", f"{len(launches)} launches of {len(kernels)} kernels, "
                f"{sum(k['ms'] for k in kernels.values()):.1f} ms")  # fmt: skip


# ncu says in which unit each number is: ms and bytes here.
UNITS = {"nsecond": 1e-6, "ns": 1e-6, "usecond": 1e-3, "us": 1e-3, "msecond": 1, "ms": 1, "second": 1e3, "s": 1e3,
         "byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}  # fmt: skip


# ---- the parts -----------------------------------------------------------------------------------------------------------


class Step:
    """expected: seconds on an H100, as rehearsed and estimated, beside the steps of training that it `trains`: each a run and
    an attention of doc/results/predicted-GPU.json. spare: takes what time is left, and what it does not reach is no failure."""

    def __init__(self, function, seconds, expected=0, trains=(), spare=False):
        self.function, self.seconds, self.expected, self.trains, self.spare = function, seconds, expected, trains, spare
        self.name = function.__name__.replace("_", " ")

    def expected_s(self):
        return self.expected + sum(training.expected_s(run, attention) for run, attention in self.trains)


PARTS = {
    # In the order in which an answer is worth most: whatever cuts it off, what matters is there.
    "first": [
        Step(versions, 60, 15), Step(conformance, 90, 15), Step(untried, 150, 60), Step(peak, 40, 12),
        Step(training.each_attention, 150, trains=[("124M", "cudnn"), ("124M", "mixed"), ("124M", "own")]),
        Step(training.gpt2_1558M, 150, 10, trains=[("1558M", "auto")]),
        Step(training.against_cpu, 60, 20), Step(training.same_bits, 90, 40), Step(first_benches, 100, 50),
        Step(model_beside_it, 30, 2), Step(profile, 60, 15), Step(kernels_by_ncu, 120, 60),
        Step(training.quickstart, 60, 35, spare=True),
        Step(training.largest_batch, 90, trains=[("124M, auto", "cudnn"), ("124M, auto", "mixed")], spare=True),
        Step(training.head_rows, 90, trains=[("124M, head 320", "auto"), ("124M, head 8192", "auto")], spare=True),
        Step(training.not_deterministic, 60, trains=[("124M, fastest", "cudnn")], spare=True),
        Step(training.pytorch, 150, 60, spare=True), Step(tests, 590, spare=True),
    ],
    "second": [Step(tests, 590)],
    "third": [Step(sustained, 60), Step(all_benches, 590), Step(model_beside_it, 30)],
    "fourth": [Step(peak, 60), Step(training.modern, 400), Step(sanitize, 590, spare=True)],
    "comm": [Step(comm.tests, 60), Step(comm.ranks, 590)],
    "peers": [Step(training.each_attention, 240), Step(training.pytorch, 150), Step(training.llmc, 90)],
    "build": [Step(build, 590)],
    "conformance": [Step(conformance, 590)],
    "train": [Step(peak, 60), Step(training.each_attention, 240), Step(training.largest_batch, 90),
              Step(training.against_cpu, 60), Step(training.same_bits, 120)],
    "modern": [Step(peak, 60), Step(training.modern, 590)],
    "sanitize": [Step(sanitize, 590)],
}  # fmt: skip
ALIASES = {"test": "second", "bench": "third"}
ALL = ["first", "second", "third", "fourth", "comm"]
