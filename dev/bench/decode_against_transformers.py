#!/usr/bin/env python3
"""Compares decoding on the CPU with `transformers`: tokens per second of GPT-2 124M in bf16, for one sequence and eight.

    python3 -m venv /tmp/v && /tmp/v/bin/pip install torch==2.13.0 transformers
    /tmp/v/bin/python dev/bench/decode_against_transformers.py [--rounds 3] [--tokens 128] [--threads 2] [--train-gpt ./train_gpt]
    python3 dev/bench/decode_against_transformers.py --page-only     rewrites the table from the stored results
    python3 dev/bench/decode_against_transformers.py --check         exit code 1 if the page does not match them

Both use random weights, greedy decoding and a KV cache. They alternate, so that other load on the machine affects both:
the ratio is what counts. The roofline is the size of the weights, which each step reads once, over the rate at which the
same number of threads sums 512 MB. With --cpu-time, for one thread on a busy machine, seconds are CPU time: they do not
include waiting for a core, but include contention in caches and memory. Prints one line per measurement, and writes
doc/results/decode-against-transformers.json, with an entry per processor, instruction set and number of threads, and the
section between the markers of doc/performance.md.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "dev/results"))
from against_pytorch import table  # noqa: E402
from bench_scaling import PAGE, UserError, processor, renew_page  # noqa: E402

RESULTS = ROOT / "doc/results/decode-against-transformers.json"
MARKERS = "<!-- decoding: dev/bench/decode_against_transformers.py -->\n", "<!-- end of decoding -->\n"


def instructions():
    """What decoding in bf16 is made of here."""
    flags = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return "AVX-512 with bf16" if "avx512_bf16" in flags else "AVX-512" if "avx512bw" in flags else "AVX2"


def page_text(results):
    rows, notes = [], ""
    for r in results:
        where = f"{r['machine']}, {r['instructions']}"
        for row in r["rows"]:
            roofline = r["read_gb_per_s"] * 1e9 / r["weight_bytes"] * row["sequences"]
            share = f"{100 * row['anvil'] / roofline:.0f} % of {roofline:.0f}"
            other, ratio = ("-" if row[key] is None else f"{row[key]:.1f}" for key in ("transformers", "ratio"))  # None: not measured
            rows.append([where, str(r["threads"]), str(row["sequences"]), f"{row['anvil']:.1f}", other, ratio, share])
        clock = "processor" if r["cpu_time"] else "elapsed"
        note = f"{where}: {r['date']}, torch {r['torch']}, transformers {r['version']}, {r['tokens']} tokens, {r['rounds']} rounds, {clock} time, "
        notes += "\n" + f"{note}memory read at {r['read_gb_per_s']:.1f} GB/s at best. {r['note']}".rstrip() + "\n"
    return table(["processor", "threads", "sequences", "tokens/s", "transformers", "ratio", "of the roofline"], range(1, 7), rows) + notes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=12, help="fewer: for a look at whether it works")
    parser.add_argument("--train-gpt", default=str(ROOT / "train_gpt"))
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--note", default="", help="a sentence about the measurement, for under the table")
    parser.add_argument("--json", type=pathlib.Path, default=RESULTS, metavar="OUT")
    parser.add_argument("--page", type=pathlib.Path, default=PAGE)
    parser.add_argument("--page-only", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.cpu_time and args.threads != 1:
        parser.error("--cpu-time is for --threads 1: threads that wait for each other compute, too")
    try:
        results = json.loads(args.json.read_text(encoding="utf-8")) if args.json.is_file() else []
        if not (args.page_only or args.check):
            new = measure(args)
            own = [all(r[key] == new[key] for key in ("machine", "instructions", "threads")) for r in results]
            results = [r for r, is_own in zip(results, own) if not is_own] + [new]
            args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            print(page_text(results), end="")
        renew_page(args, page_text(results), "dev/bench/decode_against_transformers.py", MARKERS)
    except (UserError, OSError) as error:
        sys.exit(f"error: {error}")


def measure(args):
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    prompt = "Once upon a time"
    big = torch.zeros(1 << 27)
    clock = time.process_time if args.cpu_time else time.perf_counter

    def bandwidth():
        began = clock()
        big.sum()
        return big.numel() * 4 / (clock() - began)

    with tempfile.TemporaryDirectory() as folder:
        config = transformers.GPT2Config(n_layer=args.layers)
        model = transformers.GPT2LMHeadModel(config).to(torch.bfloat16).eval()
        model.save_pretrained(folder)
        weights = sum(p.numel() * 2 for p in model.parameters()) - model.transformer.wpe.weight.numel() * 2
        spelled = [chr(b) if 33 <= b < 127 or 161 <= b != 173 else None for b in range(256)]
        hidden = iter(range(256, 512))
        vocab = {c or chr(next(hidden)): i for i, c in enumerate(spelled)}
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        tokenizer = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": byte_level, "decoder": byte_level,
                     "model": {"type": "BPE", "vocab": vocab, "merges": []}}  # fmt: skip
        (pathlib.Path(folder) / "tokenizer.json").write_text(json.dumps(tokenizer))
        ids = torch.tensor([list(prompt.encode())])

        def theirs(batch):
            began = clock()
            with torch.no_grad():
                model.generate(ids.repeat(batch, 1), max_new_tokens=args.tokens, min_new_tokens=args.tokens, do_sample=False, pad_token_id=0)
            return batch * args.tokens / (clock() - began)

        def generate(batch, tokens):
            """Seconds of the processor, and tokens per second as it says."""
            command = [args.train_gpt, "generate", "--init-from", folder, "--prompt", prompt, "--num-samples", str(batch), "--dtype", "bf16",
                       "--device", "cpu", "--temperature", "0", "--sample-tokens", str(tokens), "--threads", str(args.threads)]  # fmt: skip
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run(command, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            found = re.search(rb"(\d+) tokens after .* ([\d.]+) tokens/s", done.stderr)
            if done.returncode or not found or int(found[1]) != batch * tokens:
                sys.exit(f"error: {' '.join(command)}:\n{done.stderr.decode()}")
            return after.ru_utime - before.ru_utime, float(found[2])

        def ours(batch):
            if not args.cpu_time:
                return generate(batch, args.tokens)[1]
            few = args.tokens // 8  # both times include loading the model, and the prompt
            return batch * (args.tokens - few) / (generate(batch, args.tokens)[0] - generate(batch, few)[0])

        rows, rates = [], []
        for batch in (1, 8):
            theirs(batch)  # warm-up
            measured = [(ours(batch), theirs(batch), bandwidth()) for _ in range(args.rounds)]
            for mine, other, rate in measured:
                print(f"batch {batch}: {mine:.1f} tokens/s, transformers {other:.1f}; memory {rate / 1e9:.1f} GB/s", flush=True)
            mine, other = (statistics.median(one[i] for one in measured) for i in (0, 1))
            rates += [rate for _, _, rate in measured]
            ratio = statistics.median(one[0] / one[1] for one in measured)
            rows.append({"sequences": batch, "anvil": mine, "transformers": other, "ratio": ratio})
    return {"machine": processor(), "instructions": instructions(), "threads": args.threads, "date": datetime.date.today().isoformat(),
            "torch": torch.__version__, "version": transformers.__version__, "tokens": args.tokens, "rounds": args.rounds, "cpu_time": args.cpu_time,
            "load": round(os.getloadavg()[0]), "read_gb_per_s": max(rates) / 1e9, "weight_bytes": weights, "rows": rows, "note": args.note}  # fmt: skip


if __name__ == "__main__":
    main()
