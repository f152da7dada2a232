#!/usr/bin/env python3
"""Makes a file of HellaSwag for train_gpt --eval-tasks: the tokens of every context and its four endings.

    scripts/make_hellaswag.py data/hellaswag/hellaswag_val.jsonl data/hellaswag/hellaswag_val.bin
    scripts/make_hellaswag.py --tokenizer data/x/tokenizer.json hellaswag_val.jsonl data/x/hellaswag.bin

The file equals llm.c's, number for number (doc/formats.md). As there, the context and each ending, after a space, are
tokenized separately. HellaSwag: Zellers et al., 2019, arXiv:1905.07830.
"""

import argparse
import json
import sys

from eval_files import tokenizer_of, write_choices


def examples_of(lines, encode):
    for line in lines:
        item = json.loads(line)
        yield encode(item["ctx"]), [encode(" " + ending) for ending in item["endings"]], int(item["label"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jsonl", help="the questions, one a line, as their authors publish them")
    parser.add_argument("out", help="the file to write")
    parser.add_argument("--tokenizer", default="gpt2", help="gpt2, a tokenizer.json, or bytes [gpt2]")
    parser.add_argument("--max-examples", type=int, default=0, help="the first ones only (0: all) [0]")
    arguments = parser.parse_args()
    encode, _ = tokenizer_of(arguments.tokenizer)
    with open(arguments.jsonl, encoding="utf-8") as file:
        lines = [line for line in file if line.strip()]
    examples = list(examples_of(lines[: arguments.max_examples or None], encode))
    if not examples:
        sys.exit(f"error: {arguments.jsonl} has no questions")
    most = max(max(row, default=0) for context, endings, _ in examples for row in (context, *endings))
    if most >= 65535:
        sys.exit(f"error: token {most} does not fit into 16 bits, of which the format's are")
    write_choices(arguments.out, examples)
    print(f"{arguments.out}: {len(examples)} questions")


if __name__ == "__main__":
    main()
