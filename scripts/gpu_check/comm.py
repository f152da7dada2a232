"""Several ranks that exchange by NCCL: across the GPUs there are, or all on one, which NCCL 2.30.3 and later can do.

What this settles on one card: that the ranks meet, register memory, keep one order of collectives, end together when one of
them dies or hangs, and learn what the same ranks learn in one process. What it cannot: NVLink, networks, and speed.
"""
import contextlib
import json
import math
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import time

from harness import RUNS, ROOT, Failed, NotRun, OutOfTime, die_with_parent, smi
from training import records, tokens_of, train

ONE_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "8"}
ONE_GPU_SINCE = 23003
VOCAB = 512
STEPS = 20
# Four layers in several buckets; eight micro-batches a step for all ranks together.
MODEL = {"num-layers": 4, "num-heads": 4, "channels": 128, "seq-len": 64, "vocab-size": VOCAB, "batch-size": 2,
         "total-batch-size": 2 * 64 * 8, "steps": STEPS, "dtype": "fp32", "learning-rate": 1e-3, "warmup-steps": 4,
         "check-replicas": 1, "print-every": STEPS}  # fmt: skip
# fp32 sums of W numbers in another order differ by 2^-24 (W - 1) of what is added. AdamW scales gradients to the size of the
# learning rate, so that it is the loss after some steps that tells: a rank left out, or one counted twice, moves it by 1e-2.
FP32_SUMS = 1e-4
END_S = 30  # within which ranks end when another one has


def nccl_version(part):
    """That of the library which the trainer loads; 0 if it was built without."""
    linked = part.run(["ldd", part.program("train_gpt")], quiet=True)
    found = re.search(r"libnccl\S* => (/\S+)", linked.text)
    if not found:
        return 0
    ask = "import ctypes, sys; v = ctypes.c_int(); ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(v)); print(v.value)"
    ran = part.run(["python3", "-c", ask, found[1]], quiet=True)
    if ran.code != 0:
        raise Failed(f"{found[1]} cannot be loaded: {ran.why()}")
    part.say(f"  NCCL {ran.text.strip()}: {found[1]}")
    return int(ran.text.split()[-1])


def tests(part):
    """What a GPU settles in one process: virtual ranks on it, and one rank of NCCL."""
    tags = "[sum_ranks][gpu],[local_comm][gpu],[nccl_comm][gpu]"
    ran = part.run([part.program("gpu-tests"), tags], env={"ANVIL_PROGRAMS": "./"})
    part.check("tests of collectives", ran.code == 0 and not ran.timed_out, "" if ran.code == 0 else ran.why())


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Ranks:
    """The processes of one run, each with its output in a file of its own. They are gone when this ends."""

    def __init__(self, part, label, world, flags, environment, spread, arguments=None):
        """arguments: of another command than `train`, in place of its flags."""
        self.part, self.world = part, world
        self.folder = RUNS / label
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        flags = {"device": "cuda", "train-data": tokens_of(VOCAB, 200_000), "val-data": "", "sample-tokens": 0,
                 "checkpoint-every": 0, "out-dir": self.folder, **MODEL, **flags}  # fmt: skip
        self.command = [str(part.program("train_gpt")), *(arguments or (f"--{name}={value}" for name, value in flags.items()))]
        self.environment = {**part.environment(), **environment}
        self.spread, self.ranks, self.killed = spread, [], set()

    def __enter__(self):
        master = f"127.0.0.1:{free_port()}"
        self.part.log.write(f"$ {' '.join(self.command)} --rank 0..{self.world - 1}\n".encode())
        for rank in range(self.world):
            where = [f"--rank={rank}", f"--world-size={self.world}", f"--local-rank={rank if self.spread else 0}",
                     f"--master={master}"]  # fmt: skip
            with open(self.output(rank), "w", encoding="utf-8") as file:
                self.ranks.append(subprocess.Popen(self.command + where, cwd=ROOT, env=self.environment, stdout=file,
                                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                                   start_new_session=True, preexec_fn=die_with_parent))  # fmt: skip
        return self

    def __exit__(self, *_):
        for rank, process in enumerate(self.ranks):
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self.part.log.write(f"-- rank {rank}, exit code {process.returncode}:\n{self.said(rank)}\n".encode())

    def output(self, rank):
        return self.folder / f"rank{rank}.txt"

    def said(self, rank):
        return self.output(rank).read_text(encoding="utf-8", errors="replace")

    def send(self, rank, sign):
        os.kill(self.ranks[rank].pid, sign)

    def wait_for_steps(self, count, seconds):
        """Until the log has so many steps; a rank that ends before is a failure."""
        log, until = self.folder / "log.jsonl", time.monotonic() + min(seconds, self.part.left())
        while not log.is_file() or log.read_text(encoding="utf-8").count('"type":"step"') < count:
            self.must_go_on()
            if time.monotonic() > until:
                raise Failed(f"no step {count} within {seconds:.0f} s")
            time.sleep(0.05)

    def must_go_on(self):
        for rank, process in enumerate(self.ranks):
            if process.poll() is not None:
                raise Failed(f"rank {rank} ended with exit code {process.returncode}: {last_line(self.said(rank))}")

    def codes(self, seconds, ranks=None):
        """The exit codes of these ranks, of all unless told; None for one that has not ended by then."""
        until, codes = time.monotonic() + min(seconds, max(0, self.part.left())), []
        for rank in range(self.world) if ranks is None else ranks:
            try:
                codes.append(self.ranks[rank].wait(max(0.01, until - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(None)
        return codes


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error: " in line]
    return (errors or lines or ["it printed nothing"])[-1][:200]


class World:
    """How ranks are started on this machine."""

    def __init__(self, part):
        self.part, self.gpus = part, max(1, len(smi("name")))
        self.spread = self.gpus > 1
        self.environment = {} if self.spread else ONE_GPU
        sizes = os.environ.get("RANKS") or ("2 4" if not self.spread else f"2 {self.gpus}")
        self.sizes = sorted({int(size) for size in sizes.split()})

    def start(self, label, world, flags):
        if self.part.left() < 10:
            raise OutOfTime
        return Ranks(self.part, label, world, flags, self.environment, self.spread)

    def finish(self, label, world, flags, seconds=120):
        """A run that should end well: its folder."""
        with self.start(label, world, flags) as ranks:
            codes = ranks.codes(seconds)
        for rank, code in enumerate(codes):
            if code != 0:
                said = "did not end" if code is None else f"ended with exit code {code}: {last_line(ranks.said(rank))}"
                raise Failed(f"rank {rank} of {world} {said}")
        return ranks.folder


def losses_in(folder):
    losses = {int(step["step"]): float(step["loss"]) for step in records(folder, "step")}
    return [losses[step] for step in sorted(losses)]


def hashes_in(folder):
    return [record["weight_hash"] for record in records(folder, "ranks")]


def difference(losses, others):
    return max((abs(a - b) for a, b in zip(losses, others)), default=math.inf) if len(losses) == len(others) else math.inf


# ---- the checks ----------------------------------------------------------------------------------------------------------


def same_as_virtual(world, size, name, flags, bound):
    """The losses of as many ranks in one process, which take turns: the same sums by our own kernels. Returns theirs."""
    part, label = world.part, f"{name.replace(' ', '-')}-{size}"
    virtual = train(part, f"virtual-{label}", {**MODEL, **flags, "virtual-ranks": size}, data=tokens_of(VOCAB, 200_000),
                    limit=120)  # fmt: skip
    folder = world.finish(f"nccl-{label}", size, flags)
    found, most = difference(losses_in(folder), virtual.losses), bound(virtual.losses)
    bits = bool(hashes_in(folder)) and hashes_in(folder) == hashes_in(virtual.folder)
    part.check(f"{size} ranks, {name}", found <= most,
               f"losses of {STEPS} steps differ from those of virtual ranks by {found:.2g} at most, may by {most:.2g}"
               + (", and all weights have the same bits" if bits else ""),
               largest=found, bound=most, same_bits=bits)  # fmt: skip
    return virtual.losses


def a_rank_dies(world, size):
    victim = size - 1
    with world.start(f"dies-{size}", size, {"steps": 100000}) as ranks:
        ranks.wait_for_steps(3, 60)
        ranks.send(victim, signal.SIGKILL)
        began = time.monotonic()
        judge_end(world.part, f"{size} ranks, one is killed", ranks, victim, END_S, began)


def a_rank_hangs(world, size):
    victim, timeout_s = size - 1, 10
    with world.start(f"hangs-{size}", size, {"steps": 100000, "comm-timeout": timeout_s}) as ranks:
        ranks.wait_for_steps(3, 60)
        ranks.send(victim, signal.SIGSTOP)
        began = time.monotonic()
        judge_end(world.part, f"{size} ranks, one hangs", ranks, victim, timeout_s + END_S, began)


def judge_end(part, name, ranks, victim, seconds, began):
    """The others end with exit code 3 and name it, or as the watch over a GPU's collectives say how to find it."""
    others = [rank for rank in range(ranks.world) if rank != victim]
    codes = ranks.codes(seconds, others)
    took = time.monotonic() - began
    told = re.compile(rf"error: .*(rank {victim}|a rank that prints no error)")
    silent = [rank for rank in others if not told.search(ranks.said(rank))]
    wrong = [f"rank {rank} " + ("goes on" if code is None else f"ended with {code}: {last_line(ranks.said(rank))}")
             for rank, code in zip(others, codes) if code != 3]  # fmt: skip
    wrong += [f"rank {rank} does not name rank {victim}: {last_line(ranks.said(rank))}" for rank in silent]
    part.check(name, not wrong, "; ".join(wrong) or f"the others ended with 3 after {took:.1f} s and named it")


def resumes_at(world, size, other):
    """Ten steps with `size` ranks, ten more with `other`: the losses as if nothing had been changed."""
    half = STEPS // 2
    straight = world.finish(f"straight-{size}", size, {"checkpoint-every": half, "keep": 2})
    saved = next(iter(sorted(straight.glob(f"step_*{half}"))), None)
    if not saved:
        raise Failed(f"no checkpoint of step {half} in {straight}")
    resumed = world.finish(f"resumed-{other}", other, {"resume": saved})
    first = records(resumed, "step")[0]["step"]
    if first != half + 1:
        raise Failed(f"the resumed run began with step {first}, not {half + 1}")
    found = difference(losses_in(resumed), losses_in(straight)[-half:])
    world.part.check(f"{size} ranks, resumed by {other}", found <= FP32_SUMS,
                     f"losses differ by {found:.2g} at most, may by {FP32_SUMS:g}", largest=found, bound=FP32_SUMS)  # fmt: skip


def memory_of(pid):
    for fields in smi("pid,used_memory", "compute-apps"):
        if len(fields) == 2 and fields[0] == str(pid) and fields[1].isdigit():
            return int(fields[1])
    return None


def memory_of_nccl(world, size):
    """What a process of several takes on its GPU beyond one that is alone."""
    used = {}
    for ranks_there in (1, size):
        with world.start(f"memory-{ranks_there}", ranks_there, {"steps": 100000}) as ranks:
            ranks.wait_for_steps(20, 60)
            # In a container nvidia-smi may know processes by other numbers: then all of the card's, over its ranks.
            seen = [memory_of(process.pid) for process in ranks.ranks]
            if None in seen:
                seen = [float(smi("memory.used")[0][0]) / (1 if world.spread else ranks_there)]
        used[ranks_there] = statistics.mean(seen)
    world.part.result(f"{size} ranks, memory of NCCL", "measured",
                      f"{used[size]:.0f} MiB per rank, {used[1]:.0f} alone: {used[size] - used[1]:.0f} more", mib=used)  # fmt: skip


def speed(world):
    """How fast collectives across all GPUs are: rows for `plan --calibrate`."""
    name = f"bench-comm of {world.gpus} ranks"
    if not world.spread:
        raise NotRun("one GPU: speeds between ranks that share it say nothing about links")
    path = RUNS / "bench-comm.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with Ranks(world.part, "speed", world.gpus, {}, world.environment, True, ["bench-comm", "--device=cuda", f"--json={path}"]) as ranks:
        codes = ranks.codes(120)
        if codes != [0] * world.gpus:
            raise Failed(f"ranks ended with {codes}: {last_line(ranks.said(0))}")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        world.part.add_row(row)
    fastest = max((row["bus_gb_per_s"] for row in rows), default=0)
    world.part.result(name, "measured", f"{len(rows)} rows, {fastest:.0f} GB/s at most")


def by_mpirun(world):
    """As README starts it, where there are several GPUs and Open MPI."""
    name = f"mpirun -np {world.gpus}"
    if not world.spread:
        raise NotRun("one GPU")
    if not shutil.which("mpirun"):
        raise NotRun("mpirun was not found")
    folder = RUNS / "mpirun"
    flags = {"device": "cuda", "train-data": tokens_of(VOCAB, 200_000), "val-data": "", "sample-tokens": 0,
             "checkpoint-every": 0, "out-dir": folder, **MODEL}  # fmt: skip
    command = ["mpirun", "-np", world.gpus, world.part.program("train_gpt"),
               *(f"--{flag}={value}" for flag, value in flags.items())]  # fmt: skip
    ran = world.part.run(command, limit=120,
                         env={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})  # fmt: skip
    if ran.code != 0 or ran.timed_out:
        raise Failed(ran.why())
    world.part.check(name, len(losses_in(folder)) == STEPS, f"{len(losses_in(folder))} steps")


def ranks(part):
    """All of it, each a check of its own."""
    world = World(part)
    version = nccl_version(part)
    if version == 0:
        raise NotRun("train_gpt was built without NCCL")
    if not world.spread and version < ONE_GPU_SINCE:
        raise NotRun(f"NCCL {version} takes one rank per GPU; 2.30.3 and later take several: scripts/carry_deps.sh --nccl")
    for size in world.sizes:
        if size % 2 or 8 % size:
            part.result(f"{size} ranks", "not run", "the batch of this check divides among 2, 4 and 8")
            continue
        exact = {}
        with part.isolated(f"{size} ranks, fp32 gradients"):
            exact["losses"] = same_as_virtual(world, size, "fp32 gradients", {}, lambda _: FP32_SUMS)
        # Virtual ranks round each rank's sum once, NCCL at each of W - 1 hops: so many times what rounding once does.
        with part.isolated(f"{size} ranks, bf16 gradients"):
            same_as_virtual(world, size, "bf16 gradients", {"grad-sum": "bf16"},
                            lambda losses: FP32_SUMS + size * difference(losses, exact.get("losses", losses)))  # fmt: skip
        with part.isolated(f"{size} ranks, Muon"):
            same_as_virtual(world, size, "Muon", {"optimizer": "muon"}, lambda _: FP32_SUMS)
        with part.isolated(f"{size} ranks, one is killed"):
            a_rank_dies(world, size)
        with part.isolated(f"{size} ranks, one hangs"):
            a_rank_hangs(world, size)
        with part.isolated(f"{size} ranks, memory of NCCL"):
            memory_of_nccl(world, size)
    small, large = world.sizes[0], world.sizes[-1]
    for size, other in ((small, large), (large, small)) if small != large else ((small, 1),):
        with part.isolated(f"{size} ranks, resumed by {other}"):
            resumes_at(world, size, other)
    with part.isolated(f"bench-comm of {world.gpus} ranks"):
        speed(world)
    with part.isolated(f"mpirun -np {world.gpus}"):
        by_mpirun(world)
