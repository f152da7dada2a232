#!/usr/bin/env python3
"""Compares training steps on the CPU with PyTorch's: the same model, batch, optimizer and machine, in alternating turns.

    V/bin/python dev/bench/against_pytorch.py           V: a venv with PyTorch; half an hour, on an idle machine
    V/bin/python dev/bench/against_pytorch.py --quick --configs small
    V/bin/python dev/bench/against_pytorch.py --dtypes fp32                  without bf16 instructions, for which PyTorch's bf16 is slow
    V/bin/python dev/bench/against_pytorch.py --dtypes fp32 --threads 1      small machines: one core,
    V/bin/python dev/bench/against_pytorch.py --dtypes fp32 --isa avx2       and no AVX-512
    python3 dev/bench/against_pytorch.py --page-only    rewrites the table from the stored results, without PyTorch
    python3 dev/bench/against_pytorch.py --check        exit code 1 if the page does not match the stored results

A step is forward and backward of GPT-2 (learned positions, LayerNorm, tanh GELU, tied head), gradient clipping to a norm
of 1, AdamW with weight decay on matrices, and reading the loss. PyTorch runs with its fast options: fused AdamW,
F.scaled_dot_product_attention, set_to_none, batches prepared in advance, a malloc that returns no memory to the system,
and a single OpenMP runtime. It runs in four modes: eager and compiled, in fp32 and under autocast to bf16. They keep
their state in one process, which sleeps while Anvil runs.

Before the measurement both run a step from the same weights on the same batch. Loss, gradient norm and the loss after
the step must agree. Then, --rounds times, each trains for some seconds. A turn counts with its median step, and all
turns with their median. A ratio is the median of the rounds' ratios. Also measures how many cores other processes used
meanwhile, and how much the host of a virtual machine took. A machine whose peak, PyTorch's fastest product of matrices,
changes by more than 15 % from round to round is not fit to measure on: nothing is written. --shakespeare adds nanoGPT's
character-level Shakespeare model, 2000 steps from start to end.

Writes doc/results/against-pytorch.json, where new results replace older ones of the same class of processors,
configuration, threads and instructions, and the section between the markers of doc/performance.md, with a table per class.
"""
import argparse
import contextlib
import datetime
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "dev/results"))
from bench_scaling import NOT_MEASURED, PAGE, busy_s, processor, write_tokens  # noqa: E402
from pages import UserError, renew_page  # noqa: E402

RESULTS = ROOT / "doc/results/against-pytorch.json"
MARKERS = "<!-- against PyTorch: dev/bench/against_pytorch.py -->\n", "<!-- end of against PyTorch -->\n"

# L, NH, C, T, B, V. Of GPT-2 the vocabulary is a multiple of 128, as its trainers have it: PyTorch is faster so.
CONFIGS = {
    "small": (4, 4, 128, 64, 12, 65),
    "mid": (6, 6, 384, 256, 8, 65),
    "124M-64": (12, 12, 768, 64, 4, 50304),
    "124M-256": (12, 12, 768, 256, 4, 50304),
}
# Times PyTorch's best; of Anvil in fp32: times PyTorch's best in fp32.
GOALS = {"small": (2, 1.5), "mid": (2, 1.2), "124M-64": (1.8, 1.3), "124M-256": (1.8, 1.3)}
DTYPES = ("fp32", "bf16")
VENDORS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}
# Flags of /proc/cpuinfo, the best one first, and what a class of processors is called by.
LEVELS = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 with bf16", "avx512f": "AVX-512", "avx2": "AVX2"}
MODES = ("eager", "compiled")
# What keeps either side, and the libraries and the compiler that PyTorch uses, to AVX2, or from AMX.
ISAS = {
    "": {},
    "avx512_bf16": {"ANVIL_CPU_ISA": "avx512_bf16", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
    "avx2": {"ANVIL_CPU_ISA": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
             "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
}  # fmt: skip
ISA_TEXTS = {"": "", "avx512_bf16": ", AVX-512 without AMX", "avx2": ", AVX2 alone"}
RATE, BETAS, DECAY = 3e-4, (0.9, 0.95), 0.1
EPS = 1e-8  # of --recipe gpt2, which is no flag
LEAST_STEPS = 5  # of a turn; the first ones do not count
MOST_CHANGE = 1.15  # of the peak, from one round to another

# The allowed difference: of losses absolute, of the norm relative. bf16 rounds each activation by up to 2^-9 of its size,
# which mostly cancels in means over a batch.
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}


def steps_that_count(ms):
    """Drops the first quarter, at least two steps; returns an empty list if there are not enough steps."""
    return ms[max(2, len(ms) // 4) :] if len(ms) >= LEAST_STEPS else []


# ---- PyTorch ---------------------------------------------------------------------------------------------------


def load_safetensors(path):
    import torch

    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    found = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "F32":
            raise UserError(f"{path}: {name}: expected F32, found {entry['dtype']}")
        begin, end = entry["data_offsets"]
        flat = torch.frombuffer(bytearray(data[8 + length + begin : 8 + length + end]), dtype=torch.float32)
        found[name.removeprefix("transformer.")] = flat.reshape(entry["shape"])
    return found


def gpt_class():
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Block(nn.Module):
        def __init__(self, NH, C):
            super().__init__()
            self.NH = NH
            self.ln_1, self.ln_2 = nn.LayerNorm(C), nn.LayerNorm(C)
            self.attn, self.mlp = nn.Module(), nn.Module()
            self.attn.c_attn, self.attn.c_proj = nn.Linear(C, 3 * C), nn.Linear(C, C)
            self.mlp.c_fc, self.mlp.c_proj = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

        def forward(self, x):
            B, T, C = x.shape
            q, k, v = (
                part.view(B, T, self.NH, C // self.NH).transpose(1, 2)
                for part in self.attn.c_attn(self.ln_1(x)).split(C, 2)
            )
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.attn.c_proj(out.transpose(1, 2).reshape(B, T, C))
            return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self, L, NH, C, T, V):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(V, C), nn.Embedding(T, C)
            self.h = nn.ModuleList(Block(NH, C) for _ in range(L))
            self.ln_f = nn.LayerNorm(C)

        def forward(self, x, y):
            stream = self.wte(x) + self.wpe.weight[: x.shape[1]]
            for block in self.h:
                stream = block(stream)
            logits = F.linear(self.ln_f(stream), self.wte.weight)
            return F.cross_entropy(logits.flatten(0, 1), y.flatten())

    def take_weights(model, path):
        """Loads the weights of an exported model, which stores the matrices of blocks as (in, out)."""
        with torch.no_grad():
            stored = load_safetensors(path)
            for name, p in model.named_parameters():
                value = stored.pop(name)
                p.copy_(value.T if p.dim() == 2 and name.startswith("h.") else value)
        if stored:
            raise UserError(f"{path}: PyTorch's model has no {', '.join(stored)}")
        return model

    return Gpt, take_weights


class Trained:
    """A model that is trained in one of the four modes."""

    def __init__(self, config, dtype, mode, weights):
        import torch

        L, NH, C, T, _, V = CONFIGS[config]
        gpt, take_weights = gpt_class()
        self.torch, self.is_bf16 = torch, dtype == "bf16"
        self.model = take_weights(gpt(L, NH, C, T, V), weights)
        self.run = torch.compile(self.model) if mode == "compiled" else self.model
        groups = [
            {"params": [p for p in self.model.parameters() if p.dim() >= 2], "weight_decay": DECAY},
            {"params": [p for p in self.model.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPS, fused=True)

    def loss(self, batch):
        with self.torch.autocast("cpu", dtype=self.torch.bfloat16, enabled=self.is_bf16):
            return self.run(*batch)

    def step(self, batch):
        loss = self.loss(batch)
        loss.backward()
        norm = self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item(), norm


def batch_of(tokens, T):
    rows = (len(tokens) - 1) // T
    return tokens[: rows * T].view(rows, T), tokens[1 : rows * T + 1].view(rows, T)


def tokens_of(path):
    import torch

    return torch.frombuffer(bytearray(path.read_bytes()[1024:]), dtype=torch.uint16).long()


def openmp_runtimes():
    names = set()
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            name = line.split()[-1]
            if any(word in pathlib.Path(name).name for word in ("libgomp", "libiomp", "libomp.")):
                names.add(name)
    return sorted(names)


def fastest_product(torch, seconds):
    """FLOP/s of the fastest of many products of two matrices of 1024 x 1024 in fp32."""
    a, best_s, end = torch.ones(1024, 1024), math.inf, time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.monotonic()
        torch.mm(a, a)
        best_s = min(best_s, time.monotonic() - begin)
    return 2 * 1024**3 / best_s


def worker(config, threads, folder):
    """Answers each line of JSON on stdin with a line of JSON on stdout, until the end of stdin."""
    import torch

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # compilers may print to stdout; answers must not be mixed with that
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    _, _, _, T, B, _ = CONFIGS[config]
    weights = folder / "model.safetensors"
    text = tokens_of(folder / "train_000000.bin")
    batches = [batch_of(text[start : start + B * T + 1], T) for start in range(0, len(text) - B * T, 997)]
    trained = {}
    for line in sys.stdin:
        asked = json.loads(line)
        dtype, mode = asked.get("dtype"), asked.get("mode")
        if asked["do"] == "check":
            batch = batch_of(tokens_of(folder / "check_000000.bin"), T)
            model = Trained(config, dtype, mode, weights)
            loss, norm = model.step(batch)
            with torch.no_grad():
                after = model.loss(batch).item()
            answer = {"loss": loss, "norm": norm.item(), "after": after}
        elif asked["do"] == "peak":
            answer = {"flops": fastest_product(torch, asked["seconds"])}
        else:
            if (dtype, mode) not in trained:
                trained[dtype, mode] = Trained(config, dtype, mode, weights)
                trained[dtype, mode].step(batches[0])
            ms, end = [], time.monotonic() + asked["seconds"]
            while time.monotonic() < end or not steps_that_count(ms):
                start = time.monotonic()
                trained[dtype, mode].step(batches[len(ms) % len(batches)])
                ms.append((time.monotonic() - start) * 1e3)
            answer = {"ms": ms}
        runtimes = openmp_runtimes()
        if len(runtimes) > 1:
            raise UserError(f"PyTorch's process has several OpenMP runtimes: {' '.join(runtimes)}")
        print(json.dumps(answer | {"version": torch.__version__}), file=answers, flush=True)


# ---- both sides from outside -----------------------------------------------------------------------------------


def take_precedence():
    """Gives a process that has just started a session the highest priority, if that is allowed. Linux shares cores first
    between sessions, and by niceness only within one. Call it before the process has threads, which would keep their own
    priority."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        group = pathlib.Path("/proc/self/autogroup")
        while group.exists() and not group.read_text(encoding="utf-8").endswith("nice -20\n"):
            with contextlib.suppress(BlockingIOError):  # Linux may take only ten of these a second
                group.write_text("-20", encoding="utf-8")
            time.sleep(0.01)


def start(command, threads, isa="", **how):
    """Starts a process with the highest priority. Its threads spin for some milliseconds when they wait, libgomp's
    default, so that other processes do not get a core that is about to be used."""
    environment = dict(
        os.environ, GOMP_SPINCOUNT="300000", OMP_NUM_THREADS=str(threads), MALLOC_TRIM_THRESHOLD_="100000000000",
        MALLOC_MMAP_THRESHOLD_="100000000000", MALLOC_TOP_PAD_="67108864", **ISAS[isa],
    )  # fmt: skip
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, start_new_session=True, preexec_fn=take_precedence, **how
    )


def run(command, args):
    process = start(command, args.threads, args.isa, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def stop(process):
    process.kill()
    process.wait()


def used_s(process):
    """Seconds of CPU time of a process and of the children that it has waited for."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def stolen_s():
    """The seconds of all cores that the host of this virtual machine gave to others."""
    return int(pathlib.Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[8]) / os.sysconf("SC_CLK_TCK")


def processor_class(text):
    """A name for the processors that are alike, from the content of /proc/cpuinfo. A virtual machine may hide the model."""
    found = dict(re.findall(r"^(\S[^\t\n]*?)\s*: (.*)$", text.split("\n\n")[0], re.MULTILINE))
    flags, vendor = found.get("flags", "").split(), found.get("vendor_id", "")
    level = next((name for flag, name in LEVELS.items() if flag in flags), "no AVX2")
    if vendor == "AuthenticAMD" and "avx512f" in flags:
        return "AMD Zen 5" if int(found["cpu family"]) >= 26 else "AMD Zen 4"
    return f"{VENDORS.get(vendor, 'another vendor')}, {level}"


def check_peaks(peaks):
    if max(peaks) > MOST_CHANGE * min(peaks):
        raise UserError("this machine's peak was " + ", ".join(f"{peak * 1e-9:.0f}" for peak in peaks) + " GFLOP/s in the rounds: "
                        f"expected a change of less than {MOST_CHANGE - 1:.0%}. Nothing is written; measure on a quieter host")  # fmt: skip


class Machine:
    """Watches the machine while a process runs."""

    def __init__(self, process):
        self.process = process
        self.begin = self.now()  # which reads self.process

    def now(self):
        return time.monotonic(), busy_s() - used_s(self.process), stolen_s()

    def cores(self):
        """How many cores other processes used since the beginning, the host's other guests included, and those alone."""
        seconds, others, stolen = (now - before for now, before in zip(self.now(), self.begin))
        return max(0.0, others / seconds), stolen / seconds


class PyTorch:
    """Runs a worker process and talks to it."""

    def __init__(self, args, config, folder):
        command = [sys.executable, __file__, "--worker", config, "--threads", str(args.threads), "--folder", folder]
        self.process = start(command, args.threads, args.isa, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **asked):
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise UserError(f"PyTorch's process ended with exit code {self.process.wait()}")
        return json.loads(line)

    def turn(self, dtype, mode, seconds):
        """The milliseconds of each step, and Machine.cores() meanwhile."""
        machine = Machine(self.process)
        ms = self.ask(do="turn", dtype=dtype, mode=mode, seconds=seconds)["ms"]
        return ms, *machine.cores()


def anvil_command(args, config, dtype, folder, **flags):
    L, NH, C, T, B, V = CONFIGS[config]
    flags = {
        "device": "cpu", "dtype": dtype, "threads": args.threads, "launcher": "none", "num-layers": L, "num-heads": NH,
        "channels": C, "seq-len": T, "batch-size": B, "vocab-size": V, "learning-rate": RATE, "lr-schedule": "constant",
        "warmup-steps": 0, "beta1": BETAS[0], "beta2": BETAS[1], "weight-decay": DECAY, "grad-clip": 1,
        "checkpoint-every": 0, "sample-tokens": 0, "val-data": "", "out-dir": f"{folder}/run", **flags,
    }  # fmt: skip
    return shlex.split(args.program) + [f"--{name}={value}" for name, value in flags.items()]


def records(folder, kind):
    try:
        lines = (folder / "log.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [record for record in map(json.loads, lines) if record["type"] == kind]


def anvil_turn(args, config, dtype, folder, seconds):
    """Like PyTorch.turn, with a new process that is killed at the end of its turn, before it writes a checkpoint."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    command = anvil_command(
        args, config, dtype, folder, **{"train-data": f"{folder}/train_*.bin", "steps": 10**9, "print-every": 10**9}
    )
    with open(folder / "output", "w", encoding="utf-8") as output:
        process = start(command, args.threads, args.isa, stdout=output, stderr=subprocess.STDOUT)
        try:
            machine, ms = Machine(process), []
            while sum(ms) < seconds * 1e3 or not steps_that_count(ms):
                time.sleep(0.1)
                if process.poll() is not None:
                    tail = "".join((folder / "output").read_text(encoding="utf-8").splitlines(True)[-5:])
                    raise UserError(f"exit code {process.returncode}: {shlex.join(command)}\n{tail}")
                ms = [record["ms"] for record in records(folder / "run", "step")]
            return ms, *machine.cores()
        finally:
            stop(process)


def same_step(args, config, pytorch, folder):
    """Runs a step of each on the same batch. Raises a UserError if they differ by more than rounding."""
    found = {"PyTorch " + dtype: pytorch.ask(do="check", dtype=dtype, mode="eager") for dtype in args.dtypes}
    want = found["PyTorch fp32"] if "fp32" in args.dtypes else pytorch.ask(do="check", dtype="fp32", mode="eager")
    for dtype in args.dtypes:
        check = f"{folder}/check_*.bin"
        command = anvil_command(
            args, config, dtype, folder, **{"train-data": check, "val-data": check, "val-tokens": 0, "steps": 1}
        )
        shutil.rmtree(folder / "run", ignore_errors=True)
        done = run(command, args)
        if done.returncode != 0:
            raise UserError(f"exit code {done.returncode}: {shlex.join(command)}\n{done.stderr}")
        (step,), after = records(folder / "run", "step"), records(folder / "run", "val")[-1]
        got = {"loss": step["loss"], "norm": step["norm"], "after": after["loss"]}
        found["Anvil " + dtype] = got
        print(f"{config}, {dtype}: loss {got['loss']:.6f} and PyTorch's {want['loss']:.6f}, norm {got['norm']:.6f} and "
              f"{want['norm']:.6f}, loss after the step {got['after']:.6f} and {want['after']:.6f}", flush=True)  # fmt: skip
        most = TOLERANCE[dtype]
        good = abs(got["loss"] - want["loss"]) <= most and abs(got["after"] - want["after"]) <= most
        if not good or not math.isclose(got["norm"], want["norm"], rel_tol=10 * most):
            raise UserError(f"{config}: Anvil in {dtype} and PyTorch in fp32 do not compute the same step")
    return found


def measure(args, config):
    """Checks and measures one configuration; returns its results."""
    _, _, _, T, B, V = CONFIGS[config]
    with tempfile.TemporaryDirectory(prefix="against_pytorch-") as name:
        folder = pathlib.Path(name)
        write_tokens(folder / "train_000000.bin", max(20000, 20 * B * T + 1), V)
        write_tokens(folder / "check_000000.bin", B * T + 1, V)
        command = anvil_command(
            args, config, "fp32", folder, **{"train-data": f"{folder}/train_*.bin", "steps": 0, "out-dir": f"{folder}/begin"}
        )
        run(command, args).check_returncode()
        (folder / "begin/step_00000000/model.safetensors").rename(folder / "model.safetensors")
        pytorch = PyTorch(args, config, name)
        try:
            check = same_step(args, config, pytorch, folder)
            version = ""
            ways = [(dtype, mode) for dtype in args.dtypes for mode in MODES]
            for dtype, mode in ways:  # warm-up: compiles, and touches all memory
                version = pytorch.ask(do="turn", dtype=dtype, mode=mode, seconds=0)["version"]
            turns, peaks = {}, []
            for turn in range(args.rounds):
                peaks.append(pytorch.ask(do="peak", seconds=0.5)["flops"])
                for who, dtype, mode in [("Anvil", d, "") for d in args.dtypes] + [("PyTorch", *way) for way in ways]:
                    if who == "Anvil":
                        ms, others, stolen = anvil_turn(args, config, dtype, folder, args.seconds)
                    else:
                        ms, others, stolen = pytorch.turn(dtype, mode, args.seconds)
                    middle = statistics.median(steps_that_count(ms))
                    key = f"{who} {dtype} {mode}".strip()
                    of_key = turns.setdefault(key, {"ms": [], "others": [], "stolen": []})
                    for name, value in {"ms": middle, "others": others, "stolen": stolen}.items():
                        of_key[name].append(value)
                    print(f"{config}, round {turn + 1}, {key}: {middle:.2f} ms per step, {B * T / middle * 1e3:.0f} tok/s, "
                          f"others used {others:.2f} cores, of which {stolen:.2f} stolen", flush=True)  # fmt: skip
            peaks.append(pytorch.ask(do="peak", seconds=0.5)["flops"])
        finally:
            stop(pytorch.process)
    check_peaks(peaks)
    return facts(args) | {"config": config, "isa": args.isa, "torch": version, "rounds": args.rounds, "check": check,
                          "peaks": peaks, "turns": turns}  # fmt: skip


def shakespeare(args, dtype):
    """Trains nanoGPT's shakespeare_char for a CPU: seconds from start to end and the last validation loss."""
    subprocess.run([ROOT / "data/tinyshakespeare.sh"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory(prefix="against_pytorch-") as name:
        folder = pathlib.Path(name)
        data = ROOT / "data/tinyshakespeare"
        command = anvil_command(args, "small", dtype, folder, **{
            "train-data": f"{data}/train_*.bin", "val-data": f"{data}/val_*.bin", "val-every": 250, "steps": 2000,
            "learning-rate": 1e-3, "lr-schedule": "cosine", "warmup-steps": 100, "final-lr-fraction": 0.1, "beta2": 0.99,
        })  # fmt: skip
        begin, busy = time.monotonic(), busy_s()
        with open(folder / "output", "w", encoding="utf-8") as output:
            process = start(command, args.threads, args.isa, stdout=output, stderr=subprocess.STDOUT)
            _, status, used = os.wait4(process.pid, 0)
        if status != 0:
            raise UserError(f"{shlex.join(command)}\n{(folder / 'output').read_text(encoding='utf-8')}")
        seconds = time.monotonic() - begin
        others = max(0.0, (busy_s() - busy - used.ru_utime - used.ru_stime) / seconds)
        loss = records(folder / "run", "val")[-1]["loss"]
    print(f"shakespeare_char, Anvil {dtype}: {seconds:.1f} s, validation loss {loss:.4f}", flush=True)
    return facts(args) | {"config": f"shakespeare {dtype}", "isa": args.isa, "seconds": seconds, "val_loss": loss, "others": others}


def facts(args):
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return {"class": processor_class(cpuinfo), "machine": processor(), "cores": os.cpu_count(), "threads": args.threads,
            "date": datetime.date.today().isoformat(), "note": args.note}  # fmt: skip


# ---- the page --------------------------------------------------------------------------------------------------


def ratio(turns, slower, faster):
    """The median of the rounds' ratios."""
    return statistics.median(s / f for s, f in zip(turns[slower]["ms"], turns[faster]["ms"]))


def best(turns, dtypes):
    """PyTorch's fastest mode in these types, or None if none of them was measured."""
    keys = [key for key in turns if key.startswith("PyTorch") and key.split()[1] in dtypes]
    return min(keys, key=lambda key: statistics.median(turns[key]["ms"]), default=None)


def verdict(pairs):
    """Whether goals are met; `pairs` of (reached, goal)."""
    return ", ".join(f"{goal:g}: {'met' if reached >= goal else '**missed**'}" for reached, goal in pairs)


def is_small(result):
    """Whether a result was measured on fewer cores than there are, or with a restricted instruction set."""
    return result["isa"] != "" or result["threads"] < result["cores"]


def cells_of(result, key):
    """The cells of an Anvil run: model, type, tok/s, ms per step; and PyTorch's ms, eager and compiled, for each type."""
    _, _, _, T, B, _ = CONFIGS[result["config"]]
    middle = {way: statistics.median(turn["ms"]) for way, turn in result["turns"].items()}
    cells = [f"{result['config']}: {B} x {T} tokens", key.split()[1], f"{B * T / middle[key] * 1e3:.0f}", f"{middle[key]:.1f}"]
    pytorch = {d: f"{middle[f'PyTorch {d} eager']:.1f}, {middle[f'PyTorch {d} compiled']:.1f}"
               for d in DTYPES if f"PyTorch {d} eager" in middle}  # fmt: skip
    return cells, pytorch


def rows_of(result):
    turns, (goal, fp32_goal) = result["turns"], GOALS[result["config"]]
    for key in [key for key in turns if key.startswith("Anvil")]:
        modes = [best(turns, DTYPES), best(turns, ["fp32"])]
        against = [mode and ratio(turns, mode, key) for mode in modes]
        cells, pytorch = cells_of(result, key)
        pair = (against[1], fp32_goal) if key == "Anvil fp32" else (against[0], goal)
        yield cells + [pytorch.get(dtype, "-") for dtype in DTYPES] + [f"{times:.2f}" if times else "-" for times in against] + [verdict([pair])]


def rows_of_small(result):
    turns = result["turns"]
    machine = f"{result['threads']} thread{'s' if result['threads'] > 1 else ''}{ISA_TEXTS[result['isa']]}"
    for key in [key for key in turns if key.startswith("Anvil")]:
        dtype = key.split()[1]
        times = ratio(turns, best(turns, [dtype]), key)
        cells, pytorch = cells_of(result, key)
        yield [machine] + cells + [pytorch[dtype], f"{times:.2f}", verdict([(times, 1)])]


def table(heads, numbers, rows):
    """A Markdown table. `numbers`: the indexes of columns with numbers, which are aligned to the right."""
    lines = ["| " + " | ".join(cells) + " |\n" for cells in [heads, *rows]]
    lines.insert(1, "|" + "|".join("--:" if i in numbers else "---" for i in range(len(heads))) + "|\n")
    return "".join(lines)


def page_text(results):
    return "\n".join(class_text(results_of(results, name)) for name in classes(results)) or NOT_MEASURED


def classes(results):
    """The classes of processors, in the order of their first results."""
    return list(dict.fromkeys(result["class"] for result in results))


def results_of(results, name):
    return [result for result in results if result["class"] == name]


def shown(results):
    """What the page and the chart show: not the model of 124M-256 with short rows, which only the file has."""
    return [result for result in results if result["config"] != "124M-64"]


def class_text(results):
    steps = [result for result in results if "turns" in result]
    text = ""
    if steps:
        first = steps[0]
        text += f"{first['class']} ({first['machine']}), {first['date']}, PyTorch {first['torch']}"
    whole, small = [r for r in shown(steps) if not is_small(r)], [r for r in shown(steps) if is_small(r)]
    if whole:
        text += f", {first['threads']} threads:\n\n" + table(
            ["model", "Anvil", "tok/s", "ms per step", "PyTorch fp32, compiled", "bf16, compiled", "times its best",
             "times its best in fp32", "goal"],
            range(2, 8), [row for result in whole for row in rows_of(result)],
        )  # fmt: skip
    if small:
        text += ":\n\n" if not whole else "\nSmall machines; a ratio is to PyTorch's best in the same type:\n\n"
        text += table(["machine", "model", "Anvil", "tok/s", "ms per step", "PyTorch, compiled", "times its best", "goal"],
                      range(3, 7), [row for result in small for row in rows_of_small(result)])  # fmt: skip
    if steps:
        most = max(max(turn["others"]) for result in steps for turn in result["turns"].values())
        text += f"\nMedians of {min(result['rounds'] for result in steps)} rounds or more; meanwhile others used {most:.2f} "
        stolen = [cores for result in steps for turn in result["turns"].values() for cores in turn.get("stolen", [])]
        text += f"cores of {steps[0]['cores']} at most"
        text += (f", of which the host took {max(stolen):.2f}." if stolen else ".") + "".join(sorted({f" {r['note']}." for r in steps if r["note"]}))
        text += "\n"
    for result in results:
        if "seconds" in result:
            text += f"\nnanoGPT's shakespeare_char, 2000 steps in {result['config'].split()[1]} and eight validations: "
            text += f"{result['seconds']:.0f} s from start to end, validation loss {result['val_loss']:.4f}"
            text += f" ({result['date']}; others used {result['others']:.2f} cores).\n"
    return text


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="./train_gpt", help="a command")
    parser.add_argument("--configs", default=",".join(CONFIGS), help="of " + ", ".join(CONFIGS) + "; empty: none")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--isa", choices=ISAS, default="", help="no other instructions on either side")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4, help="of each turn, and five steps at least")
    parser.add_argument("--quick", action="store_true", help="two rounds of a second each")
    parser.add_argument("--shakespeare", action="store_true", help="train that model, too")
    parser.add_argument("--note", default="", help="a sentence about the measurement, for under the table")
    parser.add_argument("--json", type=pathlib.Path, default=RESULTS, metavar="OUT")
    parser.add_argument("--page", type=pathlib.Path, default=PAGE)
    parser.add_argument("--page-only", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.configs = [word for word in args.configs.split(",") if word]
    args.dtypes = [word for word in args.dtypes.split(",") if word]
    if not set(args.configs) <= set(CONFIGS) or not set(args.dtypes) <= set(TOLERANCE) or args.rounds < 1:
        parser.error("expected --configs and --dtypes as in --help, with commas between them, and a round or more")
    if args.quick:
        args.rounds, args.seconds = 2, 1
    return args


def save(path, results, new):
    """Adds `new`, replacing an older result of its class, configuration, threads and instructions, in a fixed order."""
    kept = {(r["class"], r["config"], r["threads"], r["isa"]): r for r in [*results, new]}
    names, order = classes([*results, new]), [*CONFIGS, "shakespeare fp32", "shakespeare bf16"]
    place = lambda key: (names.index(key[0]), -key[2], key[3], order.index(key[1]))  # noqa: E731
    results[:] = [kept[key] for key in sorted(kept, key=place)]
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def main():
    args = parse_args()
    try:
        if args.worker:
            return worker(args.worker, args.threads, args.folder)
        results = json.loads(args.json.read_text(encoding="utf-8")) if args.json.is_file() else []
        if not (args.page_only or args.check):
            for config in args.configs:
                save(args.json, results, measure(args, config))
            for dtype in args.dtypes if args.shakespeare else []:
                save(args.json, results, shakespeare(args, dtype))
            print("\n" + page_text(results), end="")
        renew_page(args.page, page_text(results), MARKERS, "dev/bench/against_pytorch.py --page-only", args.check)
    except (UserError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
