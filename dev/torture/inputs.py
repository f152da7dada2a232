"""Files that are not what they should be, and flags that nobody gives: a message and exit code 2, or a run; never a
crash, an endless wait or a message that asks for a report."""

import os
import re
import shutil

from harness import ROOT, Case

GOOD_ENDS = (0, 2, 4)  # 4: the loss diverged, which a flipped weight may do


def judged(finished, how):
    if finished.code in GOOD_ENDS and "please report" not in finished.err and "Sanitizer" not in finished.err:
        return Case("", how)
    return Case(f"exit code {finished.code}: {finished.last_words()}", how)


def mutate(bench, data):
    """Some bytes changed, cut out, repeated or moved; numbers in text made absurd."""
    data = bytearray(data)
    for _ in range(bench.random.choice((1, 1, 1, 3, 10))):
        if not data:
            break
        at, length = bench.random.randrange(len(data)), bench.random.choice((1, 1, 4, 8, 100))
        kind = bench.random.randrange(7)
        if kind == 0:
            data[at] ^= 1 << bench.random.randrange(8)
        elif kind == 1:
            data[at : at + length] = os.urandom(length) if kind else b""
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            data[at:at] = data[at : at + length] * bench.random.choice((1, 2, 50))
        elif kind == 4:
            del data[at:]
        elif kind == 5:
            data[at : at + length] = bench.random.choice((b"\xff", b"\0")) * length
        else:
            numbers = list(re.finditer(rb"\d+", bytes(data[:4000])))
            if numbers:
                found = bench.random.choice(numbers)
                absurd = (b"0", b"-1", b"9223372036854775807", b"4294967296", b"1e400", b"null", b'""', b"[]")
                data[found.start() : found.end()] = bench.random.choice(absurd)
    return bytes(data)


def files(bench):
    """Models of three formats, tokenizers, shards, texts, and a checkpoint whose checksums are not looked at."""
    run = bench.straight()
    newest = sorted(run.glob("step_*"))[-1]
    model = bench.fresh("model")
    exported = bench.run([bench.program("train_gpt"), "export", "--format", "hf", "--init-from", newest, "--out-dir", model])
    llmc = bench.fresh("llmc")
    bench.run([bench.program("train_gpt"), "export", "--format", "llmc", "--init-from", newest, "--out-dir", llmc])
    if exported.code:
        yield Case(f"export: {exported.last_words()}")
        return
    text = b"".join(path.read_bytes() for path in sorted(ROOT.glob("doc/*.md"))[:3])[:20_000]
    jsonl = b"".join(b'{"text": "line %d of it"}\n' % i for i in range(300))
    start = dict(steps=1, warmup_steps=0, checkpoint_every=0, val_every=0, num_layers=None, num_heads=None, channels=None)
    while True:
        work, out = bench.fresh("work"), bench.fresh()
        kind = bench.random.choice(("model", "llmc", "shard", "tokenizer", "text"))
        if kind == "model":
            shutil.copytree(model, work)
            victim = work / bench.random.choice(sorted(os.listdir(work)))
            command = bench.flags(out, init_from=work, **start)
        elif kind == "llmc":
            shutil.copytree(llmc, work)
            victim = work / "model.bin"
            command = bench.flags(out, init_from=victim, **start)
        elif kind == "shard":
            shutil.copytree(bench.scratch / "data", work)
            victim = bench.random.choice(sorted(work.iterdir()))
            command = bench.flags(
                out, steps=3, warmup_steps=0, train_data=work / "train_*.bin", val_data=work / "val_*.bin"
            )
        else:
            work.mkdir()
            victim = work / (bench.random.choice(("a.txt", "a.jsonl")) if kind == "text" else "tokenizer.json")
            victim.write_bytes(jsonl if victim.suffix == ".jsonl" else text)
            command = [bench.program("data/tokenize"), victim, "--out", out, "--tokenizer"]
            if kind == "text":
                command.append(bench.random.choice(("byte", "char", model / "tokenizer.json")))
            else:
                shutil.copy(model / "tokenizer.json", victim)
                command = [bench.program("data/tokenize"), "--stories", "500", "--out", out, "--tokenizer", victim]
        victim.write_bytes(mutate(bench, victim.read_bytes()))
        # Whoever looks into it needs the very file: it stays if it was wrong.
        case = judged(bench.run(command, timeout_s=30), f"{kind}: {victim}")
        yield case
        bench.remove(out, *([] if case.wrong else [work]))


def flags(bench):
    """Every flag of doc/flags.md, and line of a file, with values that nobody means."""
    text = (ROOT / "doc/flags.md").read_text()
    found, of_files = (re.findall(rf"^\| `{row}", text, re.M) for row in (r"--(?:\[no-\])?([a-z0-9-]+)", "([a-z0-9-]+)="))
    # What needs another machine or hours is not a matter of its value (2^63 steps, or tokens in a step, are a long run),
    # and some folders here are somebody's.
    others = {"out-dir", "help", "version", "doctor", "master", "launcher", "wandb", "generate", "resume"}
    names = sorted(set(found + of_files) - others - {"steps", "total-batch-size"})
    values = (
        "0", "-1", "1", "7", "2147483648", "9223372036854775807", "99999999999999999999", "1e-300", "1e308", "nan", "inf",
        "-0.0", "", " ", "x", "true", "/", "/dev/null", "/dev/full", "a\nb", "\x1b[31m", "é", "x" * 5000, "%s%n", "0x10", "1,2",
    )  # fmt: skip
    cases = [(name, value) for name in names for value in values]
    bench.random.shuffle(cases)
    for name, value in cases:
        out = bench.fresh()
        changes = {"steps": 2, "warmup_steps": 0}
        if name in of_files:
            file = out.with_name(out.name + ".conf")
            file.write_text(f"{name} = {value}\n")
            command = [*bench.flags(out, **changes), f"--config={file}"]
        else:
            command = bench.flags(out, **changes | {name.replace("-", "_"): value})
        yield judged(bench.run(command, timeout_s=30), f"--{name} {value[:50]!r}")
        bench.remove(out)
