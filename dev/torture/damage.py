"""Checkpoints that are damaged where they lie: the run goes on from the one before, says why, and ends as it should."""

import os
import shutil

from harness import Case, checkpoints


def put(path, data):
    path.write_bytes(data)


def flip_a_bit(bench, path, others):
    data = bytearray(path.read_bytes())
    at = bench.random.randrange(len(data) * 8)
    data[at // 8] ^= 1 << at % 8
    put(path, bytes(data))
    return f"bit {at} flipped"


def cut(bench, path, others):
    size = bench.random.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f"cut to {size} bytes"


def end_in_zeros(bench, path, others):
    data = path.read_bytes()
    kept = bench.random.randrange(len(data.rstrip(b"\0")))
    put(path, data[:kept] + bytes(len(data) - kept))
    return f"zeros from byte {kept} on"


def lengthen(bench, path, others):
    put(path, path.read_bytes() + bytes([bench.random.randrange(256)]))
    return "a byte longer"


def swap(bench, path, others):
    """With another file of the checkpoint, or with the same one of another step."""
    older = others[0] / path.name
    if bench.random.random() < 0.5 and older.exists() and older.read_bytes() != path.read_bytes():
        put(path, older.read_bytes())
        return "the older checkpoint's"
    other = bench.random.choice([file for file in path.parent.iterdir() if file.read_bytes() != path.read_bytes()])
    put(path, other.read_bytes())
    return f"replaced by {other.name}"


def remove(bench, path, others):
    path.unlink()
    return "removed"


def make_other(bench, path, others):
    path.unlink()
    kind = bench.random.choice(["folder", "pipe", "link to nothing", "link to itself", "/dev/zero", "empty"])
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "empty":
        path.touch()
    else:
        path.symlink_to({"link to nothing": "nothing", "link to itself": path.name}.get(kind, kind))
    return f"is now: {kind}"


def flips(bench):
    yield from damaged(bench, [flip_a_bit])


def files(bench):
    yield from damaged(bench, [cut, end_in_zeros, lengthen, swap, remove, make_other])


def damaged(bench, ways):
    sources = {}
    for config in ("adamw", "ranks"):
        sources[config] = bench.interrupted(config)
    while True:
        config, source = bench.random.choice(list(sources.items()))
        out = bench.fresh()
        shutil.copytree(source, out)
        older, newest = (out / f"step_{step:08d}" for step in checkpoints(out)[-2:])
        name = bench.random.choice(sorted(os.listdir(newest)))
        what = bench.random.choice(ways)(bench, newest / name, [older])
        finished = bench.resume(out, config)
        wrong = bench.wrong_end(out, config, finished)
        if not wrong and f"passed over {newest}" not in finished.err:
            wrong = f"the damage was not noticed: {finished.last_words()}"
        yield Case(wrong, f"configuration {config}, {newest.name}/{name}: {what}")
        bench.remove(out)


def log(bench):
    """What the log holds is looked at by nobody who trains: weights are the same whatever becomes of it."""
    source = bench.interrupted()
    while True:
        out = bench.fresh()
        shutil.copytree(source, out)
        what = bench.random.choice([flip_a_bit, cut, end_in_zeros])(bench, out / "log.jsonl", [])
        finished = bench.resume(out)
        weights = "step_00000024/model.safetensors"
        same = finished.code == 0 and (out / weights).read_bytes() == (bench.straight() / weights).read_bytes()
        yield Case("" if same else f"exit code {finished.code}: {finished.last_words()}", f"log.jsonl: {what}")
        bench.remove(out)
