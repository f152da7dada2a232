#!/usr/bin/env python3
"""Stores the predictions of `./train_gpt plan` for some models in files, so that a change of them must be committed on purpose.

    dev/results/predict.py --check       exit code 1 if the files differ from the output of `plan`; prints the differences
    dev/results/predict.py --renew       writes the files, and prints the differences, for dev/LOG.md

doc/results/steps-predicted.json has launches, bytes per token and milliseconds of the models below on two GPUs.
doc/results/predicted-GPU.json has the predictions that dev/results/perf_table.py compares with measurements.
The tables in doc/predicted.md and doc/distributed/scaling.md are made from the same plans, those of published measurements by published.py
from doc/results/published.json, and dev/results/charts.py draws a chart from the first file. $ANVIL_PROGRAMS: the folder of train_gpt, . by default. Needs only Python 3.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import published
from pages import UserError, with_section

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAIN = str(pathlib.Path(os.environ.get("ANVIL_PROGRAMS", ROOT)).resolve() / "train_gpt")
STEPS = ROOT / "doc/results/steps-predicted.json"

# Steps of 2^19 tokens, as in published runs; nanochat's models use the batch size that follows from their depth.
HALF_MILLION = ["--total-batch-size", "524288", "--batch-size", "auto"]
NANOCHAT = ["--vocab-size", "32768", "--world-size", "8"]
MODELS = {
    "gpt2-124M": ["--model", "gpt2-124M", *HALF_MILLION],
    "gpt2-1558M, 8 GPUs": ["--model", "gpt2-1558M", "--world-size", "8", *HALF_MILLION],
    "gpt2-1558M in FP8, 8 GPUs": ["--model", "gpt2-1558M", "--world-size", "8", "--dtype", "fp8", *HALF_MILLION],
    "gpt2-1558M in FP8, delayed, 8 GPUs": [
        *["--model", "gpt2-1558M", "--world-size", "8", "--dtype", "fp8", "--fp8-scaling", "delayed"],
        *HALF_MILLION,
    ],
    "nanochat d12, 8 GPUs": ["--depth", "12", *NANOCHAT],
    "nanochat d24, 8 GPUs": ["--depth", "24", *NANOCHAT],
    "llama-135M": ["--model", "llama-135M", *HALF_MILLION],
    "llama-135M in FP8, delayed": [
        *["--model", "llama-135M", "--dtype", "fp8", "--fp8-scaling", "delayed"],
        *HALF_MILLION,
    ],
}
GPUS = ["H100", "H200", "4090"]
# Not on the page, only in the file: slower than delayed scaling.
NOT_SHOWN = ["gpt2-1558M in FP8, 8 GPUs"]
# The first measurements of a GPU run (scripts/gpu_check.sh): name, the row's `run` and `attention`, flags, environment.
MEASURED_FLAGS = ["--model", "gpt2-124M", "--batch-size", "32", "--total-batch-size", "524288"]
MEASURED = [
    ("GPT-2 124M, B 32, cuDNN", "124M", "cudnn", [*MEASURED_FLAGS, "--attention", "cudnn"], {}),
    (
        "GPT-2 124M, --batch-size auto, cuDNN",
        "124M, auto",
        "cudnn",
        ["--model", "gpt2-124M", *HALF_MILLION, "--attention", "cudnn"],
        {},
    ),
    ("GPT-2 124M, B 32, own attention", "124M", "own", [*MEASURED_FLAGS, "--attention", "own"], {}),
    ("GPT-2 124M, B 32, --attention mixed", "124M", "mixed", [*MEASURED_FLAGS, "--attention", "mixed"], {}),
    (
        "GPT-2 124M, --batch-size auto, --attention mixed",
        "124M, auto",
        "mixed",
        ["--model", "gpt2-124M", *HALF_MILLION, "--attention", "mixed"],
        {},
    ),
    ("GPT-2 124M, head in chunks of 320 rows", "124M, head 320", "auto", MEASURED_FLAGS, {"ANVIL_HEAD_ROWS": "320"}),
    ("GPT-2 124M, head in chunks of 8192 rows", "124M, head 8192", "auto", MEASURED_FLAGS, {"ANVIL_HEAD_ROWS": "8192"}),
    ("GPT-2 124M, --no-deterministic", "124M, fastest", "cudnn", [*MEASURED_FLAGS, "--no-deterministic", "--attention", "cudnn"], {}),
    (
        "GPT-2 1558M, B 16",
        "1558M",
        "auto",
        ["--model", "gpt2-1558M", "--batch-size", "16", "--total-batch-size", "524288"],
        {},
    ),
]
# Parts of a step of one micro-batch, by the ops that a profile lists.
PARTS = [
    ("linear layers, forward", r"^matmul\w*_forward (?!.*-> 50)"),
    ("linear layers, backward, with biases and GELU", r"^matmul\w*_backward (?!.*50\d{3})"),
    ("head: logits and both gradients", r"^matmul\w* .*50\d{3}"),
    ("attention forward, cuDNN", r"^attention_forward"),
    ("attention backward, ours", r"^attention_backward"),
    ("cross-entropy", r"^cross_entropy"),
    ("layernorm forward with residual, embedding forward", r"^(residual_)?layernorm_forward|^embedding_forward"),
    ("layernorm backward", r"^layernorm_backward"),
    ("embedding backward", r"^embedding_backward"),
    ("AdamW, norm, clearing", r"^(adamw_update|add_squares|decide_step|fill_zero)"),
]
MEASURED_GPUS = ["H100", "H200"]

GPT2_124M, GPT2_1558M = ["--model", "gpt2-124M"], ["--model", "gpt2-1558M"]
LLAMA_7B = ["--num-layers", "32", "--num-heads", "32", "--channels", "4096", "--vocab-size", "32000"]
LLAMA_7B += ["--seq-len", "4096", "--recompute", "block"]

# Strong scaling on H100s: model, flags, tokens per step and per sequence, most sequences per micro-batch, numbers of ranks.
STRONG = [
    ("124M", GPT2_124M, 2**19, 1024, 32, [64, 256]),
    ("1558M", GPT2_1558M, 2**20, 1024, 16, [256, 1024]),
    ("1558M, Muon", [*GPT2_1558M, "--optimizer", "muon"], 2**20, 1024, 16, [64, 256]),
    ("7B", LLAMA_7B, 2**22, 4096, 4, [64, 1024]),
]

# What fits: model, GPU and number of them, flags, and the lines of a model's file.
LLAMA_2 = ["--architecture", "llama", "--num-layers", "32", "--num-heads", "32", "--channels", "4096"]
LLAMA_2 += ["--vocab-size", "32000", "--seq-len", "2048"]
LLAMA_2_FILE = "mlp-channels = 11008\n"
FITS = [
    ("GPT-2 1558M", "4090", 1, [*GPT2_1558M, "--seq-len", "1024"], ""),
    ("GPT-2 1558M", "4090", 8, [*GPT2_1558M, "--seq-len", "1024"], ""),
    ("Llama-2-7B, LoRA of rank 16", "4090", 1, [*LLAMA_2, "--lora-rank", "16"], LLAMA_2_FILE),
    ("Llama-2-7B, LoRA of rank 16, bf16", "4090", 1, [*LLAMA_2, "--lora-rank", "16", "--dtype", "bf16"], LLAMA_2_FILE),
    ("Llama-2-7B", "4090", 1, LLAMA_2, LLAMA_2_FILE),
    ("Llama-2-7B", "5090", 1, LLAMA_2, LLAMA_2_FILE),
    ("Llama-2-7B", "H100", 1, LLAMA_2, LLAMA_2_FILE),
    ("Llama-2-7B", "4090", 8, LLAMA_2, LLAMA_2_FILE),
    ("Llama-2-7B", "H100", 8, LLAMA_2, LLAMA_2_FILE),
]


def plan(flags, environment=None):
    """(facts, events) of a plan, from --trace."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "step.json"
        command = [TRAIN, "plan", *flags, "--trace", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(environment or {})})
        if done.returncode != 0:
            sys.exit(f"error: {' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
        trace = json.loads(path.read_text(encoding="utf-8"))
    return trace["otherData"], trace["traceEvents"]


def digits(x, count=3):
    """x rounded to this many digits: more would be noise of the model."""
    return float(f"{x:.{count}g}")


def cases(facts, key):
    return [digits(facts["cases"][case][key]) for case in ("low", "mid", "high")]


def steps():
    rows = []
    for gpu in GPUS:
        for name, flags in MODELS.items():
            facts, _ = plan(["--gpu", gpu, *flags])
            ranks = facts["ranks"]
            rows.append(
                {
                    "model": name,
                    "gpu": gpu,
                    "batch_size": facts["batch_size"],
                    "micro_batches": facts["micro_batches"],
                    "launches_per_micro_batch": facts["launches_per_micro_batch"],
                    "launches_per_step": facts["launches_per_step"],
                    "bytes_per_token": digits(facts["bytes_per_token"], 4),
                    "step_ms": cases(facts, "step_ms"),
                    "tokens_per_s_of_a_gpu": [digits(x / ranks) for x in cases(facts, "tokens_per_s")],
                    "mfu": cases(facts, "mfu"),
                }
            )
    return rows


def beside_measurements(gpu):
    runs = []
    for what, run, attention, flags, environment in MEASURED:
        facts, _ = plan(["--gpu", gpu, *flags], environment)
        low, mid, high = cases(facts, "tokens_per_s")
        batch = "auto" if "auto" in flags else f"{facts['batch_size']} x {facts['micro_batches']}"
        runs.append({"what": what, "run": run, "attention": attention, "batch": batch, "low": low, "mid": mid, "high": high})
    _, events = plan(["--gpu", gpu, "--model", "gpt2-124M", "--batch-size", "32", "--total-batch-size", "32768"])
    launches = [event for event in events if event["ph"] == "X"]
    parts = []
    for what, pattern in PARTS:
        ms = sum(event["dur"] for event in launches if re.search(pattern, event["args"]["op"])) / 1e3
        parts.append({"what": what, "op": pattern, "ms": digits(ms)})
    return {
        "source": "train_gpt plan",
        "gpu": f"NVIDIA {gpu}",
        "assumed": "what llmc/plan/gpus.h and gpu_model.h say",
        "runs": runs,
        "micro_step": parts,
    }


def table(header, rows, left=1):
    rule = ["---"] * left + ["--:"] * (len(header) - left)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [header, rule, *rows])


def span(low, mid, high, scale=1, unit=""):
    return f"{mid * scale:g}{unit} ({min(low, high) * scale:g} to {max(low, high) * scale:g})"


def steps_table(rows):
    """H100 beside H200."""
    of = {(row["model"], row["gpu"]): row for row in rows}
    header = ["model", "B", "ms per step", "tok/s per GPU", "MFU", "H200: B", "tok/s"]
    return table(
        header,
        [
            [
                row["model"],
                str(row["batch_size"]),
                span(*row["step_ms"]),
                span(*row["tokens_per_s_of_a_gpu"], 1e-3, "k"),
                span(*[digits(100 * x, 2) for x in row["mfu"]], 1, " %"),
                str(of[row["model"], "H200"]["batch_size"]),
                f"{of[row['model'], 'H200']['tokens_per_s_of_a_gpu'][1] * 1e-3:g}k",
            ]
            for row in rows
            if row["gpu"] == "H100" and row["model"] not in NOT_SHOWN
        ],
    )


def strong_facts():
    """{(model, ranks): facts}"""
    all_facts = {}
    for name, flags, tokens, length, most, all_ranks in STRONG:
        for ranks in all_ranks:
            batch = ["--total-batch-size", str(tokens), "--batch-size", str(min(most, tokens // length // ranks))]
            all_facts[name, ranks], _ = plan(["--gpu", "H100", "--world-size", str(ranks), *flags, *batch])
    return all_facts


def strong_table(strong):
    rows = []
    for name, _, tokens, length, _, all_ranks in STRONG:
        for ranks in all_ranks:
            per_rank = tokens // length // ranks
            facts = strong[name, ranks]
            low, mid, high = (facts["cases"][case] for case in ("low", "mid", "high"))
            ends = sorted(100 * case["efficiency"] for case in (low, high))
            rows.append(
                [
                    name,
                    f"{tokens / 2**20:g} M",
                    str(ranks),
                    str(per_rank),
                    f"{digits(mid['exposed_ms']):g}",
                    f"{digits(mid['step_ms']):g}",
                    f"{100 * mid['efficiency']:.0f} % ({ends[0]:.0f} to {ends[1]:.0f})",
                    f"{digits(mid['tokens_per_s'] / 1e6):g} M",
                ]
            )
    header = [
        "model", "tokens per step", "ranks", "sequences of a rank", "ms of communication not hidden", "ms per step",
        "parallel efficiency", "tokens per second",
    ]  # fmt: skip
    return table(header, rows)


def fits(gpu, ranks, flags, model_file):
    """Rows of `plan --fit`, the fastest first: [tokens/s or "", GiB, what bounds it, its flags]."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.conf"
        path.write_text(model_file, encoding="utf-8")
        command = [TRAIN, "plan", "--fit", "--gpu", gpu, "--world-size", str(ranks), *flags]
        command += ["--model", str(path)] if model_file else []
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    row = re.compile(r" *(?:(\S+) to (\S+) +\d+ %|does not fit) +([\d.]+)  (.{34}) (--.*)")
    for low, high, gib, bound, with_flags in row.findall(text):
        yield [f"{float(low) / 1e3:.3g}k to {float(high) / 1e3:.3g}k" if low else "", gib, bound.strip(), with_flags]


def fits_table():
    rows = []
    for name, gpu, ranks, flags, model_file in FITS:
        found = list(fits(gpu, ranks, flags, model_file))
        plain = next(row for row in found if not re.search("lean|offload", row[3]))
        of = [f"`{found[0][3]}`", found[0][1], found[0][0] or f"does not fit: {found[0][2]}"]
        rows.append([name, f"{ranks} x {gpu}", *of, plain[0] or "does not fit"])
    return table(["model", "GPUs", "fastest", "GiB", "tok/s", "without lean and offload"], rows, left=3)


def differences(old, new):
    """Lines that describe the changes from one list of steps to another."""
    before = {(row["model"], row["gpu"]): row for row in old}
    for row in new:
        was = before.pop((row["model"], row["gpu"]), None)
        if was is None:
            yield f"{row['model']} on {row['gpu']}: new"
        elif was != row:
            ms, was_ms = row["step_ms"][1], was["step_ms"][1]
            yield (
                f"{row['model']} on {row['gpu']}: {was_ms:g} -> {ms:g} ms per step ({100 * ms / was_ms - 100:+.1f} %), "
                f"{was['launches_per_micro_batch']} -> {row['launches_per_micro_batch']} launches a micro-batch, "
                f"{was['bytes_per_token'] / 1e6:.4g} -> {row['bytes_per_token'] / 1e6:.4g} MB per token"
            )
    for model, gpu in before:
        yield f"{model} on {gpu}: gone"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--check", action="store_true")
    group.add_argument("--renew", action="store_true")
    options = parser.parse_args()
    if not pathlib.Path(TRAIN).is_file():
        sys.exit(f"error: {TRAIN} is missing: run make first")

    rows = steps()
    old = json.loads(STEPS.read_text(encoding="utf-8")) if STEPS.is_file() else []
    for line in differences(old, rows):
        print(line)
    wanted = {STEPS: "[\n " + ",\n ".join(json.dumps(row) for row in rows) + "\n]\n"}
    for gpu in MEASURED_GPUS:
        path = ROOT / f"doc/results/predicted-{gpu.lower()}.json"
        wanted[path] = json.dumps(beside_measurements(gpu), indent=1) + "\n"
    page = ROOT / "doc/predicted.md"
    markers = "<!-- predicted steps: dev/results/predict.py -->\n", "<!-- end of predicted steps -->\n"
    wanted[page] = with_section(page.read_text(encoding="utf-8"), steps_table(rows), markers)
    markers = "<!-- published: dev/results/published.py -->\n", "<!-- end of published -->\n"
    tables, problems = published.text(ROOT / "doc/results/published.json", plan, table)
    if tables:
        wanted[page] = with_section(wanted[page], tables[0], markers)
        wanted[ROOT / "doc/results/published.txt"] = tables[1]
    for problem in problems:
        print(f"doc/results/published.json: {problem}")
    markers = "<!-- fits: dev/results/predict.py -->\n", "<!-- end of fits -->\n"
    wanted[page] = with_section(wanted[page], fits_table(), markers)
    page = ROOT / "doc/distributed/scaling.md"
    markers = "<!-- strong scaling: dev/results/predict.py -->\n", "<!-- end of strong scaling -->\n"
    wanted[page] = with_section(page.read_text(encoding="utf-8"), strong_table(strong_facts()), markers)

    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if options.renew:
            path.write_text(wanted[path], encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {'written' if options.renew else 'not what `plan` says now'}")
    if stale and options.check:
        print("dev/results/predict.py --renew writes them; say in dev/LOG.md why they changed")
    return 1 if problems or (stale and options.check) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"error: {error}")
