"""SIGKILL for runs whose shards are brought by --fetch: the trainer, the commands, and then often what they have brought."""

import shutil
import signal
import subprocess
import tempfile
import time

from harness import Case, difference, kill_after

CONFIGS = ("adamw", "bf16", "ranks", "four_ranks")
ORDERS = ({"data_order": "shards"}, {"shuffle": False}, {"packing": "best-fit", "document_token": 0})


def start(bench, out, config, data, err, **changes):
    patterns = {"train_data": data / "train_*.bin", "val_data": data / "val_*.bin"}
    return bench.start_session(bench.flags(out, config, resume="auto", **patterns, **changes), err)


def damage(near, far):
    """What is wrong with a shard that counts, which is one with its name."""
    for shard in (near / "fetched").glob("*.bin"):
        if shard.read_bytes() != (far / shard.name).read_bytes():
            return f"{shard.name} has its name and is not whole"
    return ""


def at_random(bench):
    """Kills one run again and again, the trainer alone or all that it has started, and resumes it, in half of the cases
    without what was brought. A shard that has its name is whole at any time; at its end the run is compared."""
    far = bench.scratch / "far"
    tokenize = bench.program("data/tokenize")
    texts = ["--stories", "9000", "--tokenizer", "char", "--shard-tokens", "450", "--out", far]
    for words in (texts, ["--list", far]):
        subprocess.run([tokenize, *words], check=True, stdout=subprocess.DEVNULL)
    # Slow enough for kills in the middle of a copy.
    fetch = f'head -c 700 {far}/$ANVIL_SHARD >"$ANVIL_SHARD_PATH"; sleep 0.02; cp {far}/$ANVIL_SHARD "$ANVIL_SHARD_PATH"'
    straight, longest_s = {}, {}
    while True:
        config, order = bench.random.choice(CONFIGS), bench.random.choice(ORDERS)
        case = f"{config} {order}"
        if case not in straight:
            straight[case] = bench.fresh("all_shards")
            with tempfile.TemporaryFile("w+") as err:
                if start(bench, straight[case], config, far, err, **order).wait() != 0:
                    err.seek(0)
                    raise SystemExit(f"torture: the undisturbed run of {case} failed: {err.read()[-300:]}")
        out, near = bench.fresh("fetches"), bench.fresh("near")
        near.mkdir()
        for name in ("shards.json", "tokenizer.json"):
            shutil.copy(far / name, near)
        is_whole = True  # nothing has killed it yet
        while True:
            began = time.monotonic()
            moment_s = bench.random.uniform(0, longest_s[case]) if case in longest_s else 300
            with tempfile.TemporaryFile("w+") as err:
                process = start(bench, out, config, near, err, fetch=fetch, **order)
                is_killed = kill_after(process, moment_s, bench.random.random() < 0.5)
                err.seek(0)
                said = err.read().strip()
            is_whole = is_whole and not is_killed
            if is_whole:  # the shortest, since others may keep the machine busy for a while
                longest_s[case] = min(longest_s.get(case, moment_s), time.monotonic() - began)
            how = f"{case}, killed after {moment_s:.4f} s"
            wrong = damage(near, far)
            if process.returncode not in (0, -signal.SIGKILL) or said:
                wrong = f"exit code {process.returncode}: {said[-300:]}"
            if process.returncode == 0:
                wrong = wrong or difference(out, straight[case])
                shards = list((near / "fetched").glob("*.bin"))
                wrong = wrong or ("" if len(shards) <= 3 else f"{len(shards)} shards are left")
            if is_killed or wrong:
                yield Case(wrong, how)
            if process.returncode == 0 or wrong:
                break
            if bench.random.random() < 0.5:
                bench.kill_sessions()
                shutil.rmtree(near / "fetched", ignore_errors=True)
        bench.remove(out, near)
