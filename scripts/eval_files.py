"""Task files, on which train_gpt scores a model: makes their rows, and writes both formats.

Anvil's, *.tasks, little endian. In each row the tokens from `start` up to, not including, `end` are scored, counted from 0 in the whole row.

    bytes   what
    0..31   int32: magic 20260901, version 1, W bytes per token (2 or 4), K tasks, E examples, R rows; int64: N tokens; zeros up to 1024
    64 K    of each task: its name, zeros up to 48 bytes; int32: type (TYPES), examples; double: the accuracy of guessing
    16 E    of each example, int32: its task, the row that is the answer, how many rows, tokens of the context
    12 R    of each row, int32: tokens after the context, `start`, `end`
    W N     of each example: the context, then of each row what follows it; the file ends with the last one

llm.c's, hellaswag_val.bin: 1024 bytes of header, int32: magic 20240522, version 1, number of examples, bytes of the longest one; then numbers of 16
bits: of each example 65535, its bytes, its index, the right completion, completions, tokens of the context, the context, and of each completion its
tokens and these.

Used by scripts/make_core.py, scripts/make_hellaswag.py and dev/fixtures/make_fixtures.py.
"""

import os
import pathlib
import struct
import sys
from dataclasses import dataclass

TYPES = {"multiple_choice": 0, "schema": 1, "language_modeling": 2}


# ---- tokenizers -------------------------------------------------------------------------------------------------


HOW_TO_MAKE_ONE = "data/tokenize TEXT --tokenizer FILE --out DIR writes DIR/tokenizer.json"


def tokenizer_of(name):
    """(encode, id of the token before each text or None) for a tokenizer.json, `gpt2` or `bytes`."""
    if name == "bytes":
        return lambda text: list(text.encode()), 0
    try:
        if name == "gpt2":
            import tiktoken

            try:
                gpt2 = tiktoken.get_encoding("gpt2")
            except Exception as error:  # the type depends on the library that downloads its ranks
                sys.exit(
                    f"error: --tokenizer gpt2: tiktoken cannot download its ranks ({type(error).__name__}); give a "
                    f"tokenizer.json: {HOW_TO_MAKE_ONE}"
                )
            return gpt2.encode_ordinary, gpt2.eot_token
        from tokenizers import Tokenizer
    except ImportError as error:
        sys.exit(f"error: {error}; run: pip install {error.name}")
    if not pathlib.Path(name).is_file():
        sys.exit(f"error: --tokenizer {name}: expected a tokenizer.json, gpt2 or bytes")
    try:
        tokenizer = Tokenizer.from_file(name)
    except Exception as error:  # tokenizers raises no more specific type
        sys.exit(
            f"error: --tokenizer {name}: not a tokenizer.json ({error}); of GPT-2's vocab.bpe, tiktoken's ranks and "
            f"others data/tokenize makes one: {HOW_TO_MAKE_ONE}"
        )
    # The token before a document: nanochat's name for it, then GPT-2's.
    ids = [tokenizer.token_to_id(mark) for mark in ("<|bos|>", "<|endoftext|>")]
    found = [i for i in ids if i is not None]
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids, found[0] if found else None


# ---- rows -------------------------------------------------------------------------------------------------------


@dataclass
class Example:
    """Rows of token ids; in row i, the tokens from starts[i] to the end are scored."""

    rows: list
    starts: list
    gold: int = 0


@dataclass
class Task:
    name: str
    type: str
    baseline: float  # accuracy of guessing
    examples: list


def common_prefix(rows):
    length = min(map(len, rows))
    return next((i for i in range(length) if any(row[i] != rows[0][i] for row in rows)), length)


def example_of(kind, rows, gold=0, known=0, max_tokens=0):
    """The example of these rows; for language modeling, `known` tokens are given. Longer rows lose their beginning."""
    if kind == "multiple_choice":
        # Scores at least the last token, because a choice may be a prefix of another.
        starts = [min(common_prefix(rows), len(row) - 1) for row in rows]
    elif kind == "schema":
        same = common_prefix([row[::-1] for row in rows])
        starts = [len(row) - same for row in rows]
    else:
        starts = [min(known, len(row) - 1) for row in rows]
    if max_tokens > 0:
        lost = [max(0, len(row) - max_tokens) for row in rows]
        rows = [row[n:] for row, n in zip(rows, lost)]
        starts = [start - n for start, n in zip(starts, lost)]
    # The first token cannot be scored, because no token precedes it.
    return Example(rows, [max(1, start) for start in starts], gold)


# ---- files ------------------------------------------------------------------------------------------------------


def write(path, content):
    temporary = pathlib.Path(f"{path}.tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_tasks(path, tasks):
    """Writes tasks of any type, in Anvil's format."""
    ids, examples, rows = [], [], []
    for number, task in enumerate(tasks):
        for example in task.examples:
            shared = common_prefix(example.rows)
            examples.append((number, example.gold, len(example.rows), shared))
            ids += example.rows[0][:shared]
            for row, start in zip(example.rows, example.starts):
                ids += row[shared:]
                rows.append((len(row) - shared, start, len(row)))
    width = 2 if max(ids) < 2**16 else 4
    content = struct.pack("<6iq", 20260901, 1, width, len(tasks), len(examples), len(rows), len(ids)).ljust(1024, b"\0")
    for task in tasks:
        name = task.name.encode()
        assert len(name) < 48, f"{task.name}: a name has 47 letters at most"
        content += struct.pack("<48s2id", name, TYPES[task.type], len(task.examples), task.baseline)
    content += b"".join(struct.pack("<4i", *example) for example in examples)
    content += b"".join(struct.pack("<3i", *row) for row in rows)
    write(path, content + struct.pack(f"<{len(ids)}{'H' if width == 2 else 'i'}", *ids))


def write_choices(path, examples):
    """Writes examples (context, completions, gold) in llm.c's format."""
    parts = []
    for number, (context, completions, gold) in enumerate(examples):
        numbers = [65535, 0, number, gold, len(completions), len(context), *context]
        for completion in completions:
            numbers += [len(completion), *completion]
        numbers[1] = 2 * len(numbers)
        parts.append(struct.pack(f"<{len(numbers)}H", *numbers))
    header = struct.pack("<4i", 20240522, 1, len(parts), max(map(len, parts)))
    write(path, header.ljust(1024, b"\0") + b"".join(parts))
