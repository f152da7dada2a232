#!/usr/bin/env python3
"""Makes small data in the formats of the speedrun's downloads, from the built-in stories.

    data/tokenize --stories 400000 --tokenizer byte --out STORIES
    scripts/smoke_data.py STORIES OUT

Writes OUT/climbmix/shard_*.parquet (data/climbmix.sh), OUT/eval_bundle/ with a task of each of CORE's three types
(data/core.sh), and OUT/hellaswag_val.jsonl (data/hellaswag.sh). Questions are stories without their last words. Needs
pyarrow.
"""

import array
import csv
import json
import pathlib
import random
import sys

HEADER_BYTES, SEPARATOR = 1024, "\n\n"
QUESTIONS, SHOWN_WORDS = 60, 8


def stories_of(folder):
    """The stories, from shards whose tokens are bytes."""
    for path in sorted(pathlib.Path(folder).glob("*.bin")):
        tokens = array.array("H", path.read_bytes()[HEADER_BYTES:])
        yield from (text for text in bytes(tokens.tolist()).decode().split(SEPARATOR) if text)


def write_parquet(path, texts):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path, row_group_size=1024)


def write_lines(path, items):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")


def questions_of(texts, rng):
    """(context, ending, other endings) for some stories, of which only the first words are used."""
    cut = [(" ".join(words[:SHOWN_WORDS]), " ".join(words[SHOWN_WORDS : SHOWN_WORDS + 2])) for words in map(str.split, texts)
           if len(words) >= SHOWN_WORDS + 2]  # fmt: skip
    endings = sorted({ending for _, ending in cut})
    for context, ending in cut[:QUESTIONS]:
        yield context, ending, rng.sample([other for other in endings if other != ending], 3)


def main():
    if len(sys.argv) != 3:
        sys.exit("error: expected STORIES and OUT")
    out, rng = pathlib.Path(sys.argv[2]), random.Random(1)
    texts = list(stories_of(sys.argv[1]))
    parts = [texts[: len(texts) // 2], texts[len(texts) // 2 : -200], texts[-200:]]
    (out / "climbmix").mkdir(parents=True, exist_ok=True)
    for number, part in zip((0, 1, 6542), parts):
        write_parquet(out / f"climbmix/shard_{number:05d}.parquet", part)

    bundle, tasks = out / "eval_bundle", []
    questions = list(questions_of(parts[2], rng))
    choices = []
    for context, ending, others in questions:
        gold = rng.randrange(4)
        choices.append({"query": context, "choices": others[:gold] + [ending] + others[gold:], "gold": gold})
    kinds = {
        "multiple_choice": choices,
        "schema": [{"context_options": [context, context[::-1]], "continuation": ending, "gold": 0} for context, ending, _ in questions],
        "language_modeling": [{"context": context, "continuation": ending} for context, ending, _ in questions],
    }
    for kind, items in kinds.items():
        write_lines(bundle / f"eval_data/{kind}.jsonl", items)
        shots = 1 if kind == "language_modeling" else 0
        tasks.append(f"- label: {kind}\n  dataset_uri: {kind}.jsonl\n  num_fewshot: [{shots}]\n  icl_task_type: {kind}\n")
    (bundle / "core.yaml").write_text("icl_tasks:\n" + "".join(tasks), encoding="utf-8")
    with open(bundle / "eval_meta_data.csv", "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["Eval Task", "Random baseline"])
        rows.writerows([("multiple_choice", 25), ("schema", 50), ("language_modeling", 0)])
    write_lines(out / "hellaswag_val.jsonl", [{"ctx": c["query"], "endings": c["choices"], "label": c["gold"]} for c in choices])


if __name__ == "__main__":
    main()
