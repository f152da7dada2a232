#!/usr/bin/env python3
"""Makes a file of CORE's 22 tasks for train_gpt --eval-tasks, with every prompt rendered and tokenized.

    scripts/make_core.py data/core/eval_bundle data/core/core.tasks --tokenizer data/x/tokenizer.json

CORE is a part of DCLM (Li et al., 2024, arXiv:2406.11794). The folder is the bundle that nanochat publishes (as
eval_bundle.zip): core.yaml with the tasks, eval_meta_data.csv with the accuracies of guessing, and eval_data/. The
prompts are nanochat's: few-shot examples in the order in which Random(1234 + i) draws them, separated by empty lines,
then the question. --max-per-task takes the first questions after a shuffle by Random(1337).

    multiple choice    query, delimiter, choice            scored from the first token in which the choices differ
    schema             context, delimiter, continuation    scored from after the last token in which the contexts differ
    language modeling  context, delimiter, continuation    scored from the begin of the continuation
"""

import argparse
import csv
import json
import pathlib
import random
import sys

from eval_files import Task, common_prefix, example_of, tokenizer_of, write_tasks


def solved(kind, item, delimiter):
    """A few-shot example with its answer."""
    if kind == "multiple_choice":
        return item["query"] + delimiter + item["choices"][item["gold"]]
    if kind == "schema":
        return item["context_options"][item["gold"]] + delimiter + item["continuation"]
    return item["context"].strip() + delimiter + item["continuation"]


def texts_of(kind, item, delimiter, shown):
    """The prompts of a question, after the few-shot examples; for language modeling without and with the continuation."""
    before = "".join(solved(kind, example, delimiter) + "\n\n" for example in shown)
    if kind == "multiple_choice":
        return [before + item["query"] + delimiter + choice for choice in item["choices"]]
    if kind == "schema":
        return [before + context + delimiter + item["continuation"] for context in item["context_options"]]
    # A space at the end of the first prompt would become part of a token in the second.
    start = before + item["context"].strip() + delimiter
    return [start.strip(), start + item["continuation"]]


def examples_of(kind, items, shots, delimiter, encode, bos, max_tokens):
    for i, item in enumerate(items):
        shown = []
        if shots > 0:
            others = [j for j in range(len(items)) if j != i]
            shown = [items[j] for j in random.Random(1234 + i).sample(others, shots)]
        rows = [[bos] * (bos is not None) + encode(text) for text in texts_of(kind, item, delimiter, shown)]
        if kind == "language_modeling":
            yield example_of(kind, rows[1:], known=common_prefix(rows), max_tokens=max_tokens)
        else:
            yield example_of(kind, rows, item["gold"], max_tokens=max_tokens)


def task_of(entry, folder, baselines, max_per_task, encode, bos, max_tokens):
    with open(folder / "eval_data" / entry["dataset_uri"], encoding="utf-8") as file:
        items = [json.loads(line) for line in file if line.strip()]
    random.Random(1337).shuffle(items)
    items = items[: max_per_task or None]
    kind, shots = entry["icl_task_type"], entry["num_fewshot"][0]
    if len(items) <= shots:
        sys.exit(f"error: {entry['label']} shows {shots} examples and has {len(items)}: raise --max-per-task")
    delimiter = entry.get("continuation_delimiter", " ")
    examples = list(examples_of(kind, items, shots, delimiter, encode, bos, max_tokens))
    return Task(entry["label"], kind, 0.01 * baselines[entry["label"]], examples)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=pathlib.Path, help="the unpacked folder")
    parser.add_argument("out", help="the file to write")
    parser.add_argument("--tokenizer", required=True, help="gpt2, a tokenizer.json, or bytes")
    parser.add_argument("--max-per-task", type=int, default=500, help="examples of each task (0: all) [500]")
    parser.add_argument("--max-tokens", type=int, default=0, help="longer prompts lose their beginning (0: none) [0]")
    arguments = parser.parse_args()
    try:
        import yaml
    except ImportError:
        sys.exit("error: no module named yaml; run: pip install pyyaml")
    encode, bos = tokenizer_of(arguments.tokenizer)
    with open(arguments.bundle / "core.yaml", encoding="utf-8") as file:
        entries = yaml.safe_load(file)["icl_tasks"]
    with open(arguments.bundle / "eval_meta_data.csv", encoding="utf-8") as file:
        baselines = {row["Eval Task"]: float(row["Random baseline"]) for row in csv.DictReader(file)}
    tasks = []
    for entry in entries:
        tasks.append(
            task_of(entry, arguments.bundle, baselines, arguments.max_per_task, encode, bos, arguments.max_tokens)
        )
        longest = max(len(row) for example in tasks[-1].examples for row in example.rows)
        print(f"{tasks[-1].name}: {len(tasks[-1].examples)} examples, up to {longest} tokens", flush=True)
    write_tasks(arguments.out, tasks)
    print(f"{arguments.out}: {len(tasks)} tasks")


if __name__ == "__main__":
    main()
