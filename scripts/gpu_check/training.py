"""Training runs: how fast they are, and whether their losses are those of the CPU, of other kernels, and of a second run."""
import array
import hashlib
import json
import math
import os
import random
import re
import shutil
import statistics

from harness import RUNS, ROOT, Clocks, Failed, NotRun, gpu_name, library_folders, smi

REFERENCE = ROOT / "doc/results/cpu-losses-124M.json"
GPT2_VOCAB = 50257
# Between kernels that round bf16 at other places, over ten steps whose loss falls by nats. Not derived: a wrong mask, scale or
# index moves the first losses by a tenth and more.
BF16_RUNS = 1e-2
# The other way around: sums of the same numbers in another order, in fp32, which rounds a logit by 2^-24 sqrt(V) at most.
FP32_SUMS = 10 * 2.0**-24 * math.sqrt(GPT2_VOCAB)


# A run that is timed: as published ones, in steps of 2^19 tokens. The first half of its steps does not count.
TOKENS = 2**19
STEPS = {"1558M": 4}
MOST_STEPS = 10
START_S = 8  # until the first step: the context, weights, cuDNN's plans; and the timing of GEMMs after it


def predicted_gpu():
    """Whose predictions hold: this card's, or for others those of an H100."""
    return "H200" if "H200" in gpu_name() else "H100"


def expected_s(run, attention):
    """Seconds of a run in all, at the rate that `plan` predicts."""
    known = json.loads((ROOT / f"doc/results/predicted-{predicted_gpu().lower()}.json").read_text(encoding="utf-8"))["runs"]
    rate = next(row["mid"] for row in known if (row["run"], row["attention"]) == (run, attention))
    return START_S + STEPS.get(run, MOST_STEPS) * TOKENS / rate


def write_tokens(path, count, vocab, seed=1):
    """A shard as doc/formats.md has it. Token k comes with a probability of about 1/(k + 1), as words do."""
    draw = random.Random(seed).random
    header = array.array("i", [20240520, 1, count] + [0] * 253)
    tokens = array.array("H", (int(vocab ** draw()) - 1 for _ in range(count)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header.tobytes() + tokens.tobytes())


def reference():
    """What the CPU reference was: command, flags, tokens, losses in fp32 and bf16."""
    return json.loads(REFERENCE.read_text(encoding="utf-8"))


def tokens_of(vocab, count=None):
    """The pattern of a shard of synthetic tokens, made the first time: as many as the CPU reference learned from."""
    count = count or reference()["tokens"]
    path = RUNS / f"tokens-{vocab}-{count}" / "train_000000.bin"
    if not path.is_file():
        write_tokens(path, count, vocab)
    return path.parent / "train_*.bin"


def sha256(path):
    sha = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            sha.update(block)
    return sha.hexdigest()


def micro_batch():
    """Sequences of 1024 tokens for GPT-2 124M that the GPU's memory holds."""
    memory = float((smi("memory.total") or [["0"]])[0][0])
    return 64 if memory > 150000 else 32 if memory > 36000 else 16 if memory > 20000 else 8


def records(folder, kind):
    """A run's records of a type; a line that was cut short is none."""
    rows = []
    if not (folder / "log.jsonl").is_file():
        return rows
    for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row.get("type") == kind:
            rows.append(row)
    return rows


class Trained:
    """A run that is over: its folder, its steps' records, what it printed."""

    def __init__(self, folder, ran, clocks):
        self.folder, self.text, self.clocks, self.seconds = folder, ran.text, clocks, ran.seconds
        self.steps = records(folder, "step")
        self.losses = [float(step["loss"]) for step in self.steps]

    def bits(self):
        """What two runs of the same bits have in common."""
        weights = sorted(self.folder.glob("step_*/model.safetensors"))
        return [(step["loss"], step["norm"]) for step in self.steps], sha256(weights[-1]) if weights else ""


def train(part, label, flags, data=None, until=None, limit=None, env=None):
    """Trains on synthetic tokens with these flags, a dictionary. until: a step after which the run is killed, for its last
    checkpoint would take longer than the run."""
    folder = RUNS / label
    shutil.rmtree(folder, ignore_errors=True)
    flags = {"device": "cuda", "dtype": "bf16", "train-data": data or tokens_of(GPT2_VOCAB), "val-data": "",
             "sample-tokens": 0, "checkpoint-every": 0, "print-every": 1, "out-dir": folder, **flags}  # fmt: skip
    command = [part.program("train_gpt"), *(f"--{name}={value}" for name, value in flags.items())]
    log = folder / "log.jsonl"

    def enough(_):
        # Whole lines alone: the one of the last step may be half there.
        return until and log.is_file() and log.read_text(encoding="utf-8").rpartition("\n")[0].count('"type":"step"') >= until

    with Clocks() as clocks:
        ran = part.run(command, limit=limit, env=env, on_line=enough)
    if ran.code != 0 or ran.timed_out:
        raise Failed(ran.why())
    trained = Trained(folder, ran, clocks.seen())
    if not trained.steps:
        raise Failed(f"no step is in {log.name}")
    return trained


def judge(part, label, run, what, trained, falls_by=1.0, skip=10, **more):
    """A row with a run's speed over the steps after the first `skip`, or half of them, and whether its loss fell as it
    should. more: what the row says besides; of `batch` perf_table.py finds the prediction."""
    timed = trained.steps[min(skip, len(trained.steps) // 2) :]
    tokens_per_second = sum(s["tokens_per_s"] * s["ms"] for s in timed) / sum(s["ms"] for s in timed)
    found = re.search(r"([\d.]+) MFLOP per token", trained.text)
    mflop = float(found[1]) if found else None
    mfu = 100 * tokens_per_second * mflop * 1e6 / part.peak if mflop and part.peak else None
    first, last = trained.losses[0], trained.losses[-1]
    part.add_row({
        "type": "train", "run": run, "what": f"{what}, {len(trained.steps)} steps", "tokens_per_second": tokens_per_second,
        "step_ms": statistics.median(s["ms"] for s in timed), "first_loss": first, "last_loss": last,
        "losses": trained.losses[:30], "mflop_a_token": mflop, "mfu_percent": mfu, **trained.clocks, **more})  # fmt: skip
    note = (f"{tokens_per_second:.0f} tok/s, MFU {'not known' if mfu is None else f'{mfu:.1f} %'}, "
            f"loss {first:.3f} to {last:.3f}")  # fmt: skip
    fell = math.isfinite(last) and last < first - falls_by
    part.check(label, fell, note + ("" if fell else f": it should have fallen by more than {falls_by:g}"))


# ---- GPT-2 124M ------------------------------------------------------------------------------------------------------

GPT2 = {"model": "gpt2-124M", "vocab-size": GPT2_VOCAB, "seq-len": 1024, "learning-rate": 6e-4}


def help_of(part):
    return part.run([part.program("train_gpt"), "--help-all"], limit=30, quiet=True).text


def attentions(part):
    """What --attention can be told to take, but auto, which is one of the others."""
    found = re.search(r"--attention ([a-z|]+)", help_of(part))
    named = [name for name in (found[1].split("|") if found else []) if name != "auto"] or ["auto"]
    passed = [name for name in named if name not in part.broken]
    if not passed:
        raise NotRun("the tests of every attention have failed")
    return passed


def attention_of(part):
    """What runs take that are not about attention: auto, which is cuDNN's, unless that is broken."""
    return attentions(part)[0] if "cudnn" in part.broken else "auto"


def speed_124M(part, attention, label=None, run="124M", env=None, flags=None):
    """GPT-2 124M in steps of 2^19 tokens: what trained."""
    label, size = label or f"train 124M, {attention}", (flags or {}).get("batch-size", micro_batch())
    limit = 60 if predicted_gpu() in gpu_name() else 120
    batch = size if size == "auto" else f"{size} x {TOKENS // 1024 // size}"
    trained = train(part, label.replace(" ", "-").replace(",", ""), {
        **GPT2, "batch-size": size, "total-batch-size": TOKENS, "steps": MOST_STEPS, "warmup-steps": 10,
        "attention": attention, **tuned(), **(flags or {})}, until=MOST_STEPS, limit=limit, env=env)  # fmt: skip
    start = records(trained.folder, "start")
    taken = f" ({start[0]['config']['batch-size']})" if size == "auto" and start else ""
    judge(part, label, run, f"GPT-2 124M, T 1024, B {batch}{taken}, bf16", trained, attention=attention, batch=batch,
          falls_by=0.2)  # fmt: skip
    shutil.rmtree(trained.folder, ignore_errors=True)
    return trained


def tuned():
    """The file that remembers which of cuBLASLt's algorithms are fastest here."""
    return {"tune-matmul": ROOT / "build/cuda/matmul.txt"}


def each_attention(part):
    """cuDNN's, our own, and both mixed: the speed of each, and the same losses."""
    losses = {}
    for attention in sorted(part.broken):
        part.result(f"train 124M, {attention}", "not run", "its tests have failed", 0)
    for attention in sorted(attentions(part)):
        with part.isolated(f"train 124M, {attention}"):
            losses[attention] = speed_124M(part, attention).losses
    if len(losses) > 1:
        with part.isolated("own and cuDNN's losses"):
            largest = max(max(step) - min(step) for step in zip(*losses.values()))
            part.check("own and cuDNN's losses", largest <= BF16_RUNS,
                       f"differ by {largest:.2g} at most, may by {BF16_RUNS:g}", largest=largest, bound=BF16_RUNS)  # fmt: skip


def largest_batch(part):
    """--batch-size auto: steps of 2^19 tokens in the largest micro-batches that fit, as `plan` predicts for this card."""
    for attention in [name for name in ("cudnn", "mixed") if name in attentions(part)] or [attention_of(part)]:
        label = f"train 124M auto, {attention}"
        with part.isolated(label):
            speed_124M(part, attention, label, "124M, auto", flags={"batch-size": "auto"})


def not_deterministic(part):
    """cuDNN's backward at its fastest, whose bits are others each time: what the same bits cost."""
    if "cudnn" not in attentions(part) or "--[no-]deterministic" not in help_of(part):
        raise NotRun("this train_gpt has no --no-deterministic, or no cuDNN")
    speed_124M(part, "cudnn", "train 124M, --no-deterministic", "124M, fastest", flags={"deterministic": "false"})


# ---- others that train it ------------------------------------------------------------------------------------------------


def peer(part, name, what, command, ms_of, limit, env=None):
    """A row with another program's speed: the median of its steps after the first three. ms_of(text): its steps' times."""
    with part.isolated(f"train 124M, {name}"):
        with Clocks() as clocks:
            ran = part.run(command, limit=limit, env=env)
        ms = ms_of(ran.text)[3:]
        if ran.code != 0 or len(ms) < 3:
            raise Failed(ran.why())
        step_ms = statistics.median(ms)
        rate = TOKENS / step_ms * 1e3
        part.add_row({"type": "train", "run": f"124M, {name}", "what": f"{what}, {len(ms)} steps", "tokens_per_second": rate,
                      "step_ms": step_ms, "mfu_percent": None, "attention": name, "batch": f"{micro_batch()} x "
                      f"{TOKENS // 1024 // micro_batch()}", **clocks.seen()})  # fmt: skip
        part.result(f"train 124M, {name}", "measured", f"{rate:.0f} tok/s")


def pytorch(part):
    """The same model, batch and optimizer by the PyTorch of python3, if it has one."""
    asked = part.run(["python3", "-c", "import torch; print(torch.cuda.is_available(), torch.__version__)"], limit=60, quiet=True)
    if asked.code != 0 or not asked.text.startswith("True "):
        raise NotRun("python3 has no PyTorch that sees a GPU")
    peer(part, "PyTorch", f"GPT-2 124M, T 1024, PyTorch {asked.text.split()[1]} compiled, bf16 autocast",
         ["python3", ROOT / "scripts/gpu_check/pytorch_step.py", micro_batch(), 1024, TOKENS, MOST_STEPS],
         lambda text: [json.loads(line)["ms"] for line in text.splitlines() if line.startswith("{")], 150)  # fmt: skip


def llmc(part):
    """The same by llm.c's train_gpt2cu, if $LLMC names one (built with USE_CUDNN=1 for what it does best)."""
    if not os.environ.get("LLMC"):
        raise NotRun("$LLMC names no train_gpt2cu of llm.c")
    data = tokens_of(GPT2_VOCAB)
    # No validation, sample or evaluation between the steps.
    flags = {"i": data, "j": data, "e": "d12", "b": micro_batch(), "t": 1024, "d": TOKENS, "x": MOST_STEPS, "v": 1000, "m": 1,
             "s": 0, "h": 0, "l": 6e-4, "c": 0.1}  # fmt: skip
    peer(part, "llm.c", f"GPT-2 124M, T 1024, llm.c ({os.environ.get('LLMC_COMMIT', 'commit not told')}), bf16",
         [os.environ["LLMC"], *(str(word) for name, value in flags.items() for word in (f"-{name}", value))],
         lambda text: [float(ms) for ms in re.findall(r"\| +([\d.]+) ms \|", text)], 90,
         {"LD_LIBRARY_PATH": ":".join([*map(str, library_folders()), os.environ.get("LD_LIBRARY_PATH", "")])})  # fmt: skip


def same_bits(part):
    """Ten steps twice: losses, norms and all weights. `mixed` has the kernels of both others."""
    batch, passed = micro_batch(), attentions(part)
    for attention in sorted(name for name in passed if name != "mixed" or len(passed) == 1):
        with part.isolated(f"the same bits twice, {attention}"):
            bits = []
            for turn in ("once", "again"):
                trained = train(part, f"bits-{attention}-{turn}", {
                    **GPT2, "batch-size": batch, "total-batch-size": batch * 1024, "steps": 10, "warmup-steps": 4,
                    "attention": attention}, limit=30)  # fmt: skip
                bits.append(trained.bits())
                shutil.rmtree(trained.folder, ignore_errors=True)
            steps = [one == other for one, other in zip(bits[0][0], bits[1][0])]
            differs = f"step {steps.index(False) + 1} differs" if False in steps else "the weights differ after 10 steps"
            part.check(f"the same bits twice, {attention}", bits[0] == bits[1],
                       "losses, norms and weights of 10 steps" if bits[0] == bits[1] else differs)  # fmt: skip


def against_cpu(part):
    """The first five losses, as the CPU had them: doc/results/cpu-losses-124M.json, which says by which command."""
    known = reference()
    data = tokens_of(GPT2_VOCAB)
    found = sha256(data.parent / "train_000000.bin")
    if found != known["tokens_sha256"]:
        raise Failed(f"the synthetic tokens are others here: sha256 {found}, in {REFERENCE.name} {known['tokens_sha256']}")
    # In bf16 the GPU rounds where the CPU does, after other sums: both lie about as far from fp32.
    bf16_bound = 2 * max(abs(a - b) for a, b in zip(known["losses"]["fp32"], known["losses"]["bf16"])) + FP32_SUMS
    for dtype, bound in (("fp32", FP32_SUMS), ("bf16", bf16_bound)):
        with part.isolated(f"five losses as on a CPU, {dtype}"):
            flags = {**known["flags"], "dtype": dtype, "attention": attention_of(part)}
            trained = train(part, f"reference-{dtype}", flags, data=data, until=flags["steps"], limit=30)
            want = known["losses"]["fp32"]
            largest = max((abs(a - b) for a, b in zip(trained.losses, want)), default=math.inf)
            part.check(f"five losses as on a CPU, {dtype}", len(trained.losses) == len(want) and largest <= bound,
                       f"differ from the CPU's in fp32 by {largest:.2g} at most, may by {bound:.2g}", largest=largest,
                       bound=bound, losses=trained.losses)  # fmt: skip
            shutil.rmtree(trained.folder, ignore_errors=True)


def head_rows(part):
    """The head in chunks of 320 rows and of 8192: what the size of a chunk costs, and the same losses."""
    losses = []
    for rows in (320, 8192):
        with part.isolated(f"head in chunks of {rows}"):
            losses.append(speed_124M(part, attention_of(part), f"head in chunks of {rows}", f"124M, head {rows}",
                                     {"ANVIL_HEAD_ROWS": str(rows)}).losses)  # fmt: skip
    if len(losses) == 2:
        with part.isolated("losses at both chunks"):
            largest = max(abs(a - b) for a, b in zip(*losses))
            part.check("losses at both chunks", largest <= BF16_RUNS, f"differ by {largest:.2g} at most, may by {BF16_RUNS:g}")


# ---- others ----------------------------------------------------------------------------------------------------------


def gpt2_1558M(part):
    memory = float((smi("memory.total") or [["0"]])[0][0])
    if memory < 40000:
        raise NotRun(f"{memory:.0f} MiB of memory: it needs 40000 and more")
    # With less than 80 GB it is no card of the predictions, and may be a slow one.
    size, micro_batches = (16, TOKENS // 1024 // 16) if memory > 70000 else (4, 4)
    steps, attention, batch = STEPS["1558M"], attention_of(part), f"{size} x {micro_batches}"
    trained = train(part, "1558M", {
        "model": "gpt2-1558M", "vocab-size": GPT2_VOCAB, "seq-len": 1024, "learning-rate": 2e-4, "batch-size": size,
        "total-batch-size": size * 1024 * micro_batches, "steps": steps, "warmup-steps": 2, "attention": attention,
        **tuned()}, until=steps, limit=140)  # fmt: skip
    judge(part, "train 1558M", "1558M", f"GPT-2 1558M, T 1024, B {batch}, bf16", trained, falls_by=0.05,
          attention=attention, batch=batch)  # fmt: skip


def modern(part):
    """nanochat's model of 12 layers in bf16 and fp8, and modded-nanogpt's track 3."""
    capability = float((smi("compute_cap") or [["0"]])[0][0])
    batch = micro_batch()
    data = tokens_of(32768)
    nanochat = ("nanochat d12, T 2048, SSSL, B auto", {"depth": 12, "vocab-size": 32768, "batch-size": "auto"})
    models = [
        ("nanochat d12", *nanochat, "bf16"),
        ("nanochat d12, fp8", *nanochat, "fp8"),
        ("stage-a", f"modded-nanogpt's track 3, T 1024, B {batch}", {"model": "stage-a", "seq-len": 1024, "batch-size": batch},
         "bf16"),
    ]  # fmt: skip
    for label, what, flags, dtype in models:
        with part.isolated(f"train {label}"):
            if dtype == "fp8" and capability < 8.9:
                part.result(f"train {label}", "not run", f"FP8 begins with sm_89, this is {capability}")
                continue
            trained = train(part, label.replace(" ", "-").replace(",", ""), {
                **flags, "dtype": dtype, "total-batch-size": TOKENS, "steps": 100, "warmup-steps": 20, **tuned()},
                data=data, until=100, limit=180)  # fmt: skip
            judge(part, f"train {label}", label, f"{what}, {dtype}", trained, attention="auto")
            shutil.rmtree(trained.folder, ignore_errors=True)


def quickstart(part):
    """The README's first command, with its samples, for a few seconds of training."""
    part.program("train_gpt"), part.program("tokenize")
    # Without a network the built-in stories are at hand at once; a download would first be tried again and again.
    ran = part.run([ROOT / "scripts/quickstart.sh", "--minutes", "0.3"], limit=150,
                   env={"NO_BUILD": "1", "OUT_DIR": str(RUNS / "quickstart"),
                        "ANVIL_MIRROR": os.environ.get("ANVIL_MIRROR", str(RUNS / "no-mirror"))})  # fmt: skip
    if ran.code != 0 or ran.timed_out:
        raise Failed(ran.why())
    losses = [step["loss"] for step in records(RUNS / "quickstart", "step")]
    samples = [row["text"] for row in records(RUNS / "quickstart", "sample")]
    if not losses:
        raise Failed(f"no step is in its log: {ran.why()}")
    part.check("quickstart", bool(samples and samples[-1]) and losses[-1] < losses[0],
               f"{len(losses)} steps, loss {losses[0]:.2f} to {losses[-1]:.2f}, sample of "
               f"{len(samples[-1]) if samples else 0} characters, {ran.seconds:.0f} s in all")  # fmt: skip
