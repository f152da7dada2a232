#!/usr/bin/env python3
"""Decoding on the CPU beside `transformers`: tokens per second of GPT-2 124M in bf16, one sequence and eight.

    python3 -m venv /tmp/v && /tmp/v/bin/pip install torch==2.13.0 transformers
    /tmp/v/bin/python dev/bench/decode_against_transformers.py [--rounds 3] [--tokens 128] [--threads 2] [--train-gpt ./train_gpt]

Random weights, greedy, a KV cache in both, by turns in one process's time, so that neighbors on the machine disturb both:
look at the ratio. The roofline is the bytes of the weights, which each step reads once, over the rate at which the same
number of threads sums 512 MB. Prints one line per measurement and a table.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=12, help="fewer: for a look at whether it works")
    parser.add_argument("--train-gpt", default=str(ROOT / "train_gpt"))
    args = parser.parse_args()
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    prompt = "Once upon a time"
    big = torch.zeros(1 << 27)

    def bandwidth():
        began = time.perf_counter()
        big.sum()
        return big.numel() * 4 / (time.perf_counter() - began)

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
            began = time.perf_counter()
            with torch.no_grad():
                model.generate(ids.repeat(batch, 1), max_new_tokens=args.tokens, min_new_tokens=args.tokens, do_sample=False, pad_token_id=0)
            return batch * args.tokens / (time.perf_counter() - began)

        def ours(batch):
            command = [args.train_gpt, "generate", "--init-from", folder, "--prompt", prompt, "--num-samples", str(batch), "--dtype", "bf16",
                       "--device", "cpu", "--temperature", "0", "--sample-tokens", str(args.tokens), "--threads", str(args.threads)]  # fmt: skip
            done = subprocess.run(command, capture_output=True)
            found = re.search(rb"(\d+) tokens after .* ([\d.]+) tokens/s", done.stderr)
            if done.returncode or not found or int(found[1]) != batch * args.tokens:
                sys.exit(f"error: {' '.join(command)}:\n{done.stderr.decode()}")
            return float(found[2])

        rows = []
        for batch in (1, 8):
            theirs(batch)  # threads and memory, once
            measured = [(ours(batch), theirs(batch), bandwidth()) for _ in range(args.rounds)]
            for mine, other, rate in measured:
                print(f"batch {batch}: {mine:.1f} tokens/s, transformers {other:.1f}; memory {rate / 1e9:.1f} GB/s", flush=True)
            mine, other = (statistics.median(one[i] for one in measured) for i in (0, 1))
            roofline = max(rate for _, _, rate in measured) / weights * batch
            ratio = statistics.median(one[0] / one[1] for one in measured)
            rows.append(f"| {batch} | {mine:.1f} | {other:.1f} | {ratio:.2f} | {100 * mine / roofline:.0f} % of {roofline:.0f} |")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {args.threads} threads, load {os.getloadavg()[0]:.0f}")
    print("| sequences | tokens/s | transformers | ratio | of the roofline |\n|--:|--:|--:|--:|--:|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
