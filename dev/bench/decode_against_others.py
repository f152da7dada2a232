#!/usr/bin/env python3
"""Compares decoding on the CPU with `transformers` and llama.cpp: tokens per second of GPT-2 124M, for one sequence and eight.

    python3 -m venv /tmp/v && /tmp/v/bin/pip install torch==2.13.0 transformers xllamacpp
    /tmp/v/bin/python dev/bench/decode_against_others.py [--rounds 3] [--tokens 128] [--threads 2] [--train-gpt ./train_gpt]
    python3 dev/bench/decode_against_others.py --page-only     rewrites the table from the stored results
    python3 dev/bench/decode_against_others.py --check         exit code 1 if the page does not match them

All use the same random weights, in bf16 and in fp32, greedy decoding and a KV cache. They alternate, so that other load on
the machine affects all: the ratios are what counts. llama.cpp reads Anvil's export to GGUF, as the wheel xllamacpp has it.
The roofline is the size of the weights, which each step reads once, over the rate at which the same number of threads reads
512 MB in huge pages (a dot product with itself), just before or after. With --cpu-time, for one thread on a busy machine, seconds are CPU time: they do not
include waiting for a core, but include contention in caches and memory; without llama.cpp. Prints one line per measurement,
and writes doc/results/decode-against-others.json, with an entry per processor, instruction set and number of threads, and
the section between the markers of doc/performance.md.
"""

import argparse
import concurrent.futures
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

# PyTorch's memory is in huge pages, as Anvil's is.
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", THP_MEM_ALLOC_ENABLE="1")
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "dev/results"))
from against_pytorch import table  # noqa: E402
from bench_scaling import PAGE, processor  # noqa: E402
from pages import UserError, renew_page  # noqa: E402

RESULTS = ROOT / "doc/results/decode-against-others.json"
MARKERS = "<!-- decoding: dev/bench/decode_against_others.py -->\n", "<!-- end of decoding -->\n"

PROMPT = "Once upon a time"


def instructions():
    """What decoding in bf16 is made of here."""
    flags = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return "AMX" if "amx_bf16" in flags else "AVX-512 with bf16" if "avx512_bf16" in flags else "AVX-512" if "avx512bw" in flags else "AVX2"


def page_text(results):
    rows, notes = [], ""
    for r in results:
        where = f"{r['machine']}, {r['instructions']}"
        for dtype in dict.fromkeys(row["type"] for row in r["rows"]):
            of_type = sorted((row for row in r["rows"] if row["type"] == dtype), key=lambda row: row["sequences"])

            def cell(key, of_type=of_type):
                values = ["-" if row[key] is None else f"{row[key]:.1f}" for row in of_type]  # None: not measured
                return ", ".join(values) if set(values) != {"-"} else "-"

            cells = [cell(key) for key in ("anvil", "ratio", "llama_ratio")]
            rows.append([where, str(r["threads"]), dtype, *cells, ", ".join(f"{row['share']:.0%}" for row in of_type)])
        clock = "processor time, " if r["cpu_time"] else ""
        note = f"{where}: {r['date']}, transformers {r['version']}, "
        note += f"xllamacpp {r['llama_cpp']}, " if r["llama_cpp"] else ""
        note += f"{r['tokens']} tokens, {r['rounds']} rounds, {clock}best reading {r['read_gb_per_s']:.1f} GB/s. {r['note']}"
        notes += "\n" + note.rstrip() + "\n"
    heads = ["processor", "threads", "type", "tokens/s, 1 and 8 sequences", "times transformers", "times llama.cpp", "of the roofline"]
    return table(heads, [1, *range(3, 7)], rows) + notes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--types", default="bf16,fp32", help="one or both")
    parser.add_argument("--layers", type=int, default=12, help="fewer: for a look at whether it works")
    parser.add_argument("--train-gpt", default=str(ROOT / "train_gpt"))
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--note", default="", help="a sentence about the measurement, for under the table")
    parser.add_argument("--json", type=pathlib.Path, default=RESULTS, metavar="OUT")
    parser.add_argument("--page", type=pathlib.Path, default=PAGE)
    parser.add_argument("--page-only", action="store_true")
    parser.add_argument("--check", action="store_true")
    if sys.argv[1:2] == ["--llama-cpp"]:  # of LlamaCpp
        return run_llama_cpp(sys.argv[2], *map(int, sys.argv[3:]))
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
        renew_page(args.page, page_text(results), MARKERS, "dev/bench/decode_against_others.py --page-only", args.check)
    except (UserError, OSError) as error:
        sys.exit(f"error: {error}")


def save_tokenizer(folder):
    """Of bytes: every program gets the same ids."""
    spelled = [chr(b) if 33 <= b < 127 or 161 <= b != 173 else None for b in range(256)]
    hidden = iter(range(256, 512))
    vocab = {c or chr(next(hidden)): i for i, c in enumerate(spelled)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": byte_level, "decoder": byte_level,
                 "model": {"type": "BPE", "vocab": vocab, "merges": []}}  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def run_llama_cpp(model, batch, threads, tokens):
    """For each line of stdin, lets llama.cpp's server continue the prompt as often as there are sequences: tokens per second."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_parallel, params.n_ctx, params.verbosity = model, batch, batch * 1024, -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    request = {"prompt": list(PROMPT.encode()), "n_predict": tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    for _ in sys.stdin:
        began = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(batch) as pool:
            answers = list(pool.map(server.handle_completions, [request] * batch))
        seconds = time.perf_counter() - began
        made = sum(answer["usage"]["completion_tokens"] for answer in answers)
        print(f"made {made} {made / seconds}", flush=True)
    os._exit(0)  # the server's destructor waits for a thread, once in a while forever


class LlamaCpp:
    """llama.cpp in a process of its own: beside PyTorch it loses a third of its speed."""

    def __init__(self, args, model, batch):
        self.made = batch * args.tokens
        words = [str(word) for word in (model, batch, args.threads, args.tokens)]
        self.process = subprocess.Popen([sys.executable, __file__, "--llama-cpp", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)  # fmt: skip

    def tokens_per_s(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith(f"made {self.made} "):
                return float(line.split()[2])
        sys.exit(f"error: llama.cpp did not make {self.made} tokens")

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def measure(args):
    import importlib.metadata

    import torch
    import transformers

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    big = torch.zeros(1 << 27)
    clock = time.process_time if args.cpu_time else time.perf_counter
    ids = torch.tensor([list(PROMPT.encode())])

    def bandwidth():
        """The best of three."""
        seconds = []
        for _ in range(3):
            began = clock()
            torch.dot(big, big)  # of two halves it takes a third longer on a Zen 4: a thread reads two streams
            seconds.append(clock() - began)
        return big.numel() * 4 / min(seconds)

    def theirs(model, batch):
        began = clock()
        with torch.no_grad():
            model.generate(ids.repeat(batch, 1), max_new_tokens=args.tokens, min_new_tokens=args.tokens, do_sample=False, pad_token_id=0)
        return batch * args.tokens / (clock() - began)

    def generate(folder, dtype, batch, tokens):
        """Seconds of the processor, and tokens per second as it says."""
        command = [args.train_gpt, "generate", "--init-from", folder, "--prompt", PROMPT, "--num-samples", str(batch), "--dtype", dtype,
                   "--device", "cpu", "--temperature", "0", "--sample-tokens", str(tokens), "--threads", str(args.threads)]  # fmt: skip
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found = re.search(rb"(\d+) tokens after .* ([\d.]+) tokens/s", done.stderr)
        if done.returncode or not found or int(found[1]) != batch * tokens:
            sys.exit(f"error: {' '.join(map(str, command))}:\n{done.stderr.decode()}")
        return after.ru_utime - before.ru_utime, float(found[2])

    def ours(folder, dtype, batch):
        if not args.cpu_time:
            return generate(folder, dtype, batch, args.tokens)[1]
        few = args.tokens // 8  # both times include loading the model, and the prompt
        return batch * (args.tokens - few) / (generate(folder, dtype, batch, args.tokens)[0] - generate(folder, dtype, batch, few)[0])

    rows, rates = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=args.layers)).to(torch.bfloat16).eval()
        model.save_pretrained(folder)
        save_tokenizer(folder)
        numbers = sum(p.numel() for p in model.parameters()) - model.transformer.wpe.weight.numel()
        for dtype in args.types.split(","):
            model = model.to(torch.float32 if dtype == "fp32" else torch.bfloat16)
            weight_bytes = numbers * (4 if dtype == "fp32" else 2)
            gguf = folder / dtype
            export = [args.train_gpt, "export", "--format", "gguf", "--init-from", folder, "--out-dir", gguf, "--dtype", dtype]
            subprocess.run(export, check=True, stdout=subprocess.DEVNULL)
            for batch in (1, 8):
                llama = None if args.cpu_time else LlamaCpp(args, gguf / "model.gguf", batch)
                theirs(model, batch)  # warm-up
                if llama:
                    llama.tokens_per_s()
                measured = []
                for _ in range(args.rounds):
                    before, mine, after = bandwidth(), ours(folder, dtype, batch), bandwidth()
                    other, third = theirs(model, batch), llama.tokens_per_s() if llama else None
                    rates.append(max(before, after))
                    measured.append((mine, other, third, mine / batch * weight_bytes / rates[-1]))
                    text = f"{dtype}, batch {batch}: {mine:.1f} tokens/s, transformers {other:.1f}, llama.cpp {third or 0:.1f}"
                    print(f"{text}; memory {rates[-1] / 1e9:.1f} GB/s", flush=True)

                def middle(values):
                    return statistics.median(values) if llama else None

                rows.append({"type": dtype, "sequences": batch, "anvil": statistics.median(one[0] for one in measured),
                             "transformers": statistics.median(one[1] for one in measured),
                             "ratio": statistics.median(one[0] / one[1] for one in measured),
                             "llama_cpp": middle(one[2] for one in measured), "llama_ratio": middle(one[0] / one[2] for one in measured),
                             "share": statistics.median(one[3] for one in measured), "weight_bytes": weight_bytes})  # fmt: skip
                if llama:
                    llama.end()
    return {"machine": processor(), "instructions": instructions(), "threads": args.threads, "date": datetime.date.today().isoformat(),
            "torch": torch.__version__, "version": transformers.__version__,
            "llama_cpp": None if args.cpu_time else importlib.metadata.version("xllamacpp"),
            "tokens": args.tokens, "rounds": args.rounds, "cpu_time": args.cpu_time,
            "load": round(os.getloadavg()[0]), "read_gb_per_s": max(rates) / 1e9, "rows": rows, "note": args.note}  # fmt: skip


if __name__ == "__main__":
    main()
