#!/usr/bin/env python3
"""Compares the GEMMs of a training step on the CPU with those of the libraries that PyTorch calls: oneDNN in bf16, and in
fp32 the BLAS that it was built with.

    V/bin/python dev/bench/products_against_pytorch.py     V: a venv with PyTorch; three minutes, on an idle machine
    python3 dev/bench/products_against_pytorch.py --page-only     rewrites the table from the stored results
    python3 dev/bench/products_against_pytorch.py --check         exit code 1 if the page does not match them

Times the forward GEMM and both backward GEMMs of every layer of a model, with dev/bench/matmul.cu and with torch.mm into
an existing tensor, with the same operand layouts. PyTorch's weight gradients are in the type of the operands, Anvil's in
fp32. The two alternate. A turn counts with its median, and all turns with theirs. A model's row is the sum over its
layers, each as often as a step has it.

Writes doc/results/products-against-pytorch.json and the section between the markers of doc/performance.md.
"""
import argparse
import json
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "dev/results"))
from against_pytorch import facts, start, table  # noqa: E402
from bench_scaling import NOT_MEASURED, PAGE  # noqa: E402
from pages import UserError, renew_page  # noqa: E402

RESULTS = ROOT / "doc/results/products-against-pytorch.json"
MARKERS = "<!-- products: dev/bench/products_against_pytorch.py -->\n", "<!-- end of products -->\n"
# Of dev/bench/bench_cpu.h: L, tokens, C, padded vocabulary
MODELS = {"small": (4, 768, 128, 128), "124M": (12, 256, 768, 50304)}


def layers(model):
    """Name, N, C, OC and number per step of each kind of layer."""
    L, N, C, Vp = MODELS[model]
    return [("attn.c_attn", N, C, 3 * C, L), ("attn.c_proj", N, C, C, L), ("mlp.c_fc", N, C, 4 * C, L),
            ("mlp.c_proj", N, 4 * C, C, L), ("head", N, C, Vp, 1)]  # fmt: skip


def worker(threads):
    """Prints a line of JSON for each line of JSON on stdin: milliseconds of each pass of each layer."""
    import torch

    torch.set_num_threads(threads)

    def median_ms(passes, seconds=0.3):
        ms, end = [], time.monotonic() + seconds
        while len(ms) < 10 or time.monotonic() < end:
            begin = time.monotonic()
            passes()
            ms.append((time.monotonic() - begin) * 1e3)
        return statistics.median(ms)

    for line in sys.stdin:
        asked, found = json.loads(line), {}
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[asked["dtype"]]
        for name, N, C, OC, _ in layers(asked["model"]):
            inp, weight, dout = (torch.randn(*shape).to(dtype) for shape in ((N, C), (OC, C), (N, OC)))
            out, dinp, dweight = torch.empty_like(dout), torch.empty_like(inp), torch.empty_like(weight)

            def backward(inp=inp, weight=weight, dout=dout, dinp=dinp, dweight=dweight):
                torch.mm(dout, weight, out=dinp)
                torch.mm(dout.t(), inp, out=dweight)

            found[f"matmul_forward {name}"] = median_ms(lambda: torch.mm(inp, weight.t(), out=out))  # noqa: B023
            found[f"matmul_backward {name}"] = median_ms(backward)
        library = re.search(r"(?:oneDNN|MKL-DNN) v\S+", torch.__config__.show())
        blas = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
        print(json.dumps({"ms": found, "torch": torch.__version__, "onednn": library and library.group(),
                          "blas": blas and blas.group(1)}), flush=True)  # fmt: skip


def anvil(args, model, dtype):
    with tempfile.TemporaryDirectory(prefix="products-") as folder:
        command = shlex.split(args.program) + ["--shape", model, f"--{dtype}", "--json", f"{folder}/rows"]
        process = start(command, args.threads, stdout=subprocess.DEVNULL)
        if process.wait() != 0:
            raise UserError(f"exit code {process.returncode}: {shlex.join(command)}")
        rows = [json.loads(line) for line in pathlib.Path(f"{folder}/rows").read_text(encoding="utf-8").splitlines()]
    return {row["what"]: row["rival_ms"] for row in rows}  # the GEMM without fused ops


def measure(args, pytorch, model, dtype):
    turns = {"anvil": [], "pytorch": []}
    for _ in range(args.rounds):
        turns["anvil"].append(anvil(args, model, dtype))
        print(json.dumps({"model": model, "dtype": dtype}), file=pytorch.stdin, flush=True)
        answer = pytorch.stdout.readline()
        if not answer:
            raise UserError(f"PyTorch's process ended with exit code {pytorch.wait()}")
        answer = json.loads(answer)
        turns["pytorch"].append(answer.pop("ms"))
    result = {"model": model, "dtype": dtype, "layers": []}
    for name, N, C, OC, times in layers(model):
        for kind, products in (("forward", 1), ("backward", 2)):
            what = f"matmul_{kind} {name}"
            ms = {who: statistics.median(turn[what] for turn in turns[who]) for who in turns}
            result["layers"].append({"what": what, "times": times, "flops": 2.0 * N * C * OC * products} | ms)
    return facts(args) | answer | result


def page_text(results):
    if not results:
        return NOT_MEASURED
    first, rows = results[0], []
    for r in results:
        flops, ours, theirs = (sum(layer["times"] * layer[key] for layer in r["layers"]) for key in ("flops", "anvil", "pytorch"))
        each = [layer["pytorch"] / layer["anvil"] for layer in r["layers"]]
        speeds = [f"{flops / ours * 1e-6:.0f}", f"{flops / theirs * 1e-6:.0f}", f"{theirs / ours:.2f}"]
        rows.append([r["model"], r["dtype"], *speeds, f"{min(each):.2f} to {max(each):.2f}"])
    text = f"{first['machine']}, {first['threads']} threads, {first['date']}; PyTorch {first['torch']} with {first['onednn']} and "
    text += f"{first['blas']}:\n\n"
    text += table(["model", "type", "own, GFLOP/s", "library's", "times", "each GEMM"], range(2, 6), rows)
    return text + (f"\n{first['note']}.\n" if first["note"] else "")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/cpu/bench/matmul", help="a command")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--note", default="", help="a sentence about the measurement, for under the table")
    parser.add_argument("--json", type=pathlib.Path, default=RESULTS, metavar="OUT")
    parser.add_argument("--page", type=pathlib.Path, default=PAGE)
    parser.add_argument("--page-only", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    args = parse_args()
    try:
        if args.worker:
            return worker(args.threads)
        results = json.loads(args.json.read_text(encoding="utf-8")) if args.json.is_file() else []
        if not (args.page_only or args.check):
            command = [sys.executable, __file__, "--worker", "--threads", str(args.threads)]
            pytorch = start(command, args.threads, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            try:
                results = [measure(args, pytorch, model, dtype) for model in MODELS for dtype in ("fp32", "bf16")]
            finally:
                pytorch.kill()
                pytorch.wait()
            args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            print(page_text(results), end="")
        renew_page(args.page, page_text(results), MARKERS, "dev/bench/products_against_pytorch.py --page-only", args.check)
    except (UserError, OSError, subprocess.SubprocessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
