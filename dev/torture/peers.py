"""Ranks that die, and strangers at the port where ranks meet."""

import os
import signal
import socket
import subprocess
import threading
import time

from harness import Case, checkpoints, difference

RANK_LOST = 3


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# The same bits on any number of ranks.
ALIKE = {"total_batch_size": 128, "grad_sum": "tree"}


def start_rank(bench, out, rank, count, port, torture=None, **changes):
    meeting = {"rank": rank, "world_size": count, "master": f"localhost:{port}"}
    return bench.start(bench.flags(out, **ALIKE | meeting | changes), torture)


def ends(processes, limit_s):
    """What each said, and how it ended; those that do not end are killed and have the code None."""
    limit = time.monotonic() + limit_s
    ended = []
    for process in processes:
        try:
            process.wait(max(0.01, limit - time.monotonic()))
            code = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            code = None
        _, err = process.communicate()
        ended.append((code, err))
    return ended


def reference(bench):
    """What any number of ranks comes to."""
    out = bench.fresh("alike")
    finished = bench.run(bench.flags(out, **ALIKE))
    if finished.code:
        raise SystemExit(f"torture: the undisturbed run failed: {finished.last_words()}")
    return out


def deaths(bench):
    """One of two or four ranks is killed, at a random moment or at one of its system calls: the others end with 3, and
    one process goes on to the same end."""
    want = reference(bench)
    calls = bench.count_calls(**ALIKE)
    while True:
        out, port, count = bench.fresh(), free_port(), bench.random.choice((2, 2, 4))
        victim, moment_s = bench.random.randrange(count), bench.random.uniform(0, 0.4)
        at_call, how = {}, f"rank {victim} of {count} killed after {moment_s:.3f} s"
        if bench.random.random() < 0.5:
            # Rank 0 makes most of the calls that one process would, the others a few of them.
            n = bench.random.randrange(1, calls if victim == 0 else 40)
            at_call = {"DIR": out, "AT": n, "DO": bench.random.choice(("before", "inside", "after"))}
            how = f"rank {victim} of {count} killed {at_call['DO']} its call {n}"
        ranks = [
            start_rank(bench, out, rank, count, port, at_call if rank == victim else None, comm_timeout=5)
            for rank in range(count)
        ]
        if at_call:
            ranks[victim].wait(60)
        else:
            time.sleep(moment_s)
            ranks[victim].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        ended = ends(ranks, 60)
        seconds = time.monotonic() - killed
        wrong = wrong_survivors(ended, victim, seconds)
        if not wrong:
            # Where no rank had begun to train, there is nothing that could be resumed.
            finished = bench.run(bench.flags(out, **ALIKE, resume="auto"))
            wrong = different_end(out, want) if finished.code == 0 else f"resume: {finished.last_words()}"
        yield Case(wrong, how)
        bench.remove(out)


def wrong_survivors(ended, victim, seconds):
    """"" if all survivors ended as they must. Those that had not met yet wait for the victim, to their time limit."""
    if ended[victim][0] != -signal.SIGKILL:
        return ""  # it was over
    for rank, (code, err) in enumerate(ended):
        if rank == victim or code == 0:
            continue
        if code != RANK_LOST:
            return f"rank {rank} ended with {code}: {err.strip()[-300:]}"
        before_all_met = "(--comm-timeout" in err
        if not before_all_met and f"rank {victim}" not in err:
            return f"rank {rank} did not name rank {victim}: {err.strip()[-300:]}"
        if not before_all_met and seconds > 5:
            return f"rank {rank} went on for {seconds:.1f} s"
    return ""


def talk(bench, port, stop):
    """Connects until told to stop, and says something that no rank says, or nothing; how many there were."""
    count, kept = 0, []
    while not stop.is_set():
        try:
            stranger = socket.create_connection(("127.0.0.1", port), timeout=1)
        except OSError:
            time.sleep(0.005)
            continue
        count += 1
        words = [
            b"", os.urandom(bench.random.randrange(1, 200)), bytes(200), b"\xff" * 200, b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"SSH-2.0-x\r\n", os.urandom(70_000),
        ]  # fmt: skip
        try:
            stranger.sendall(bench.random.choice(words))
        except OSError:
            pass
        if bench.random.random() < 0.7:
            stranger.close()
        else:
            kept.append(stranger)
        time.sleep(0.002)
    for stranger in kept:
        stranger.close()
    return count


def strangers(bench):
    """While two ranks meet and train, others connect: the run ends as it would without them."""
    want = reference(bench)
    while True:
        out, port = bench.fresh(), free_port()
        stop, counts = threading.Event(), []
        talker = threading.Thread(target=lambda: counts.append(talk(bench, port, stop)))
        ranks = [start_rank(bench, out, 0, 2, port)]
        talker.start()
        time.sleep(bench.random.uniform(0.05, 0.5))
        ranks.append(start_rank(bench, out, 1, 2, port))
        ended = ends(ranks, 60)
        stop.set()
        talker.join()
        bad = [(code, err) for code, err in ended if code != 0]
        if bad and "is in use" in bad[0][1]:
            continue  # another process took the port meanwhile
        wrong = f"exit code {bad[0][0]}: {bad[0][1].strip()[-300:]}" if bad else different_end(out, want)
        # A case each, all of one run.
        for i in range(max(1, counts[0])):
            yield Case(wrong if i == 0 else "", f"{counts[0]} connections at port {port}")
        bench.remove(out)


def different_end(out, want):
    """Ranks store the optimizer's state in a file each, one process in one: where they made the last checkpoint, weights
    are compared."""
    last = f"step_{checkpoints(want)[-1]:08d}"
    if not (out / last / "optimizer.safetensors.index.json").exists():
        return difference(out, want)
    weights = f"{last}/model.safetensors"
    return "" if (out / weights).read_bytes() == (want / weights).read_bytes() else f"{weights} differs"
