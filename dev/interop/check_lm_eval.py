#!/usr/bin/env python3
"""Checks that lm-eval scores a model in the engine (anvil.lm_eval) as its own class for transformers scores the model's export.

    V/bin/python dev/interop/check_lm_eval.py        run by dev/interop/check_interop.sh, which makes V; exit code 1 on a difference

Two models that train_gpt has trained on stories, GPT-2 and nanochat's. On tasks of stories that are made here: multiple choice (with
and without a context), perplexity of texts longer than the context, and generation up to a stop. Every answer must be the same, and
every log-probability but for rounding.
"""

import json
import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT / "python"))
os.environ.update(HF_DATASETS_OFFLINE="1", TQDM_DISABLE="1")

import differences  # noqa: E402
import lm_eval  # noqa: E402
import numpy as np  # noqa: E402
import transformers  # noqa: E402
from differences import check, run  # noqa: E402
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from anvil.lm_eval import AnvilLM  # noqa: E402

T = 64
TRAINING = ["--num-layers", 2, "--num-heads", 2, "--channels", 48, "--seq-len", T, "--batch-size", 8, "--total-batch-size", 8 * T]
TRAINING += ["--steps", 80, "--warmup-steps", 5, "--sample-tokens", 0, "--checkpoint-every", 0, "--device", "cpu", "--dtype", "fp32"]
MODELS = {"gpt2": ["--learning-rate", 3e-3], "nanochat": ["--architecture", "nanochat"]}
TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {kind}
{lines}
"""
CHOICES = """doc_to_text: "{{context}}"
doc_to_choice: "{{choices}}"
doc_to_target: gold
target_delimiter: ""
metric_list: [{metric: acc}, {metric: acc_norm}]"""
ROLLING = """doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]"""
GENERATION = """doc_to_text: "{{context}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: [".", "?"], max_gen_toks: 16}
metric_list: [{metric: exact_match}]"""
MOST = 16


def make_tasks(folder, text):
    words = text.split()
    piece = lambda i, n: " ".join(words[i : i + n])  # noqa: E731
    choices, rolling, generation = [], [], []
    for i in range(12):
        at = 101 * i
        ends = [" " + piece(at + 500 * k + 9, 2 + (i + k) % 4) for k in range(4)]
        # Every sixth has no context, and every fifth one that must be cut.
        context = "" if i % 6 == 5 else piece(at, 90 if i % 5 == 4 else 9)
        choices.append({"context": context, "choices": ends, "gold": i % 4})
        generation.append({"context": piece(at, 3 + 5 * (i % 7)), "answer": piece(at + 9, 3)})
    for i, length in enumerate((1, 30, 200, 400)):
        rolling.append({"text": piece(700 * i, length)})
    for name, kind, lines, rows in (
        ("choices", "multiple_choice", CHOICES, choices),
        ("rolling", "loglikelihood_rolling", ROLLING, rolling),
        ("generation", "generate_until", GENERATION, generation),
    ):
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, kind=kind, data=data, lines=lines))


def evaluated(model, tasks):
    how = dict(tasks=["choices", "rolling", "generation"], task_manager=tasks, bootstrap_iters=0, verbosity="ERROR")
    return lm_eval.simple_evaluate(model=model, **how)


def answers(result, task):
    """Of every request of a task, in order."""
    samples = sorted(result["samples"][task], key=lambda sample: sample["doc_id"])
    return [answer[0] if isinstance(answer, list) else answer for sample in samples for answer in sample["resps"]]


def close(ours, theirs):
    """The worst relative difference, and whether it is of rounding.

    Either loss of a token is off by about 2^-22 of itself, as in check_models.py, and lm-eval adds up to T = 64 of them in fp32, in
    pairs: six roundings of 2^-24."""
    worst = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
    return worst <= 2 * 2**-22 + 6 * 2**-24, f"{worst:.1e} of {len(ours)}"


def check_model(name, folder, tasks, program):
    ours = AnvilLM(folder, program=program, batch_size=5, device="cpu", dtype="fp32")
    theirs = HFLM(str(folder), dtype="float32", device="cpu", batch_size=8, trust_remote_code=True)
    got, want = evaluated(ours, tasks), evaluated(theirs, tasks)
    scores = [answers(result, "choices") for result in (got, want)]
    check(f"{name}: log-probabilities of choices", *close(*([logprob for logprob, _ in each] for each in scores)))
    check(f"{name}: which are greedy", len({str([is_greedy for _, is_greedy in each]) for each in scores}) == 1)
    check(f"{name}: log-probabilities of long texts", *close(answers(got, "rolling"), answers(want, "rolling")))
    texts = answers(got, "generation")
    check(f"{name}: generated texts", texts == answers(want, "generation"), repr(texts[:2]))
    lengths = [len(ours.tok_encode(text)) for text in texts]
    check(f"{name}: a stop ended some, their length others", min(lengths) < MOST <= max(lengths), str(lengths))
    for metric in ("acc,none", "acc_norm,none"):
        both = [result["results"]["choices"][metric] for result in (got, want)]
        check(f"{name}: {metric}", both[0] == both[1], str(both))
    # What a model has generated is what it finds most probable, as one text.
    pairs = [(sample["arguments"][0][0], text) for sample, text in zip(got["samples"]["generation"], texts) if text]
    asked = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    scores = [model.loglikelihood(asked, disable_tqdm=True) for model in (ours, theirs)]
    check(f"{name}: log-probabilities of generated texts", *close(*([logprob for logprob, _ in each] for each in scores)))
    greedy = [[is_greedy for _, is_greedy in each] for each in scores]
    check(f"{name}: and that they are greedy", greedy[0] == greedy[1] and any(greedy[0]), str(greedy[0]))
    return got["results"]["choices"]["acc,none"]


def main():
    transformers.utils.logging.disable_progress_bar()
    program = ROOT / "train_gpt"
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        how = ["--train-tokenizer", "--vocab-size", 512, "--pattern", "gpt2"]
        run(ROOT / "data/tokenize", "--stories", 300000, *how, "--out", scratch / "data")
        data = ["--train-data", scratch / "data/train_*.bin", "--val-data", scratch / "data/val_*.bin"]
        shard = np.fromfile(scratch / "data/val_000000.bin", "<u2", offset=1024)
        (scratch / "tasks").mkdir()
        for name, flags in MODELS.items():
            trained, exported = scratch / f"{name}_run", scratch / name
            run(program, *data, *TRAINING, *flags, "--out-dir", trained)
            run(program, "export", "--init-from", trained, "--out-dir", exported)
            if name == "gpt2":
                tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
                make_tasks(scratch / "tasks", tokenizer.decode(shard[shard != tokenizer.eos_token_id]))
            tasks = TaskManager(include_path=str(scratch / "tasks"), include_defaults=False)
            accuracy = check_model(name, exported, tasks, program)
        # As the command does: by the name and a text of arguments, on a run in place of its export.
        how = dict(model_args=f"path={trained},dtype=fp32,program={program}", device="cpu", batch_size=3, tasks=["choices"])
        result = lm_eval.simple_evaluate(model="anvil", task_manager=tasks, bootstrap_iters=0, verbosity="ERROR", **how)
        check("as the command does", result["results"]["choices"]["acc,none"] == accuracy)
    print(f"lm-eval: {differences.count} differences")
    return differences.count > 0


if __name__ == "__main__":
    sys.exit(main())
