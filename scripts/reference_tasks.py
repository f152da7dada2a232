"""Tasks for the model of the fixture `model`, and PyTorch's scores of it: part of scripts/make_fixtures.py."""

import pathlib
import tempfile

import numpy as np
import torch
import torch.nn.functional as F

import reference_gpt as gpt
from eval_files import Task, example_of, write_choices, write_tasks
from fixture_file import Fixture, words


def score(config, params, row, start):
    """The mean nll of a row's tokens from `start` on, and whether each is the likeliest, which must hold by a margin."""
    with torch.no_grad():
        logits = gpt.forward(config, params, torch.tensor([row]))[0, start - 1 : -1]
    best = logits.topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > 1e-3, "two tokens are as likely as each other: take other ones"
    targets = torch.tensor(row[start:])
    return F.cross_entropy(logits, targets), bool((logits.argmax(1) == targets).all())


def fixture(config, weights):
    """A model's scores of the tasks in tiny.tasks and of the questions in tiny_questions.bin."""
    f = Fixture("tasks")
    params = {name: torch.tensor(weights[name], dtype=torch.float64) for name in gpt.shapes(config)}
    drawn = iter(words(f.seed("ids"), 10000) % np.uint64(config.V))

    def draw(n):
        return [int(next(drawn)) for _ in range(n)]

    # The shortest and the longest possible rows, choices of one token, and a choice that is a prefix of another.
    choices = []
    for context, lengths in [
        (1, [1, 2]),
        (28, [4, 1, 3, 2]),
        (5, [6, 6, 6, 6]),
        (12, [3, 9, 1, 20]),
        (2, [1, 1, 1]),
        (9, [4, 4]),
    ]:
        start = draw(context)
        choices.append([start + draw(n) for n in lengths])
    choices[-1][1] = choices[-1][0] + draw(2)
    schemas = []
    for lengths, n in [([4, 9], 3), ([1, 1], 1), ([7, 20, 2], 12), ([5, 5], 6)]:
        end = draw(n)
        schemas.append([draw(length) + end for length in lengths])
    # Continuations that the model itself would generate; in every second one, the first or the last token is changed.
    known = []
    for context, n, wrong in [(1, 1, -1), (3, 1, 0), (10, 4, -1), (4, 3, 0), (20, 12, -1), (20, 12, 11)]:
        row = draw(context)
        for i in range(n):
            with torch.no_grad():
                best = gpt.forward(config, params, torch.tensor([row]))[0, -1].argmax()
            row.append((int(best) + (i == wrong)) % config.V)
        known.append((row, context))

    ends = [example_of("language_modeling", [row], known=n) for row, n in known]
    all_tasks = [
        Task("choices", "multiple_choice", 0.25, [example_of("multiple_choice", rows) for rows in choices]),
        Task("schemas", "schema", 0.5, [example_of("schema", rows) for rows in schemas]),
        Task("ends", "language_modeling", 0.0, ends),
    ]
    questions = []
    for n, lengths in [(1, [1, 2, 3, 4]), (24, [8, 1, 7, 8]), (6, [2, 2, 2, 2])]:
        questions.append((draw(n), [draw(length) for length in lengths]))

    nlls, matches, rights = [], [], []
    for task in all_tasks:
        rights.append(0)
        for number, example in enumerate(task.examples):
            scores = [score(config, params, row, start) for row, start in zip(example.rows, example.starts)]
            nll = torch.stack([one for one, _ in scores])
            nlls.append(nll)
            matches += [float(match) for _, match in scores]
            best = int(nll.argmin())
            if task.type != "language_modeling":
                assert nll.topk(2, largest=False).values.diff() > 1e-4, "two rows are as good as each other"
                example.gold = best if number % 3 else len(nll) - 1 - best  # not always the model's answer
            rights[-1] += best == example.gold if task.type != "language_modeling" else scores[0][1]
    f.want("want.nll", torch.cat(nlls))
    f.want("want.matches", torch.tensor(matches, dtype=torch.float64))
    f.want("want.right", torch.tensor(rights, dtype=torch.float64))
    nlls = [torch.stack([score(config, params, a + b, len(a))[0] for b in ends]) for a, ends in questions]
    f.want("want.questions.nll", torch.cat(nlls))
    best = [int(nll.argmin()) for nll in nlls]
    golds = [best[0], (best[1] + 1) % 4, best[2]]

    # The fixture also contains the files, two bytes per number.
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "file")
        write_tasks(path, all_tasks)
        f.arrays["tiny.tasks"] = np.frombuffer(path.read_bytes(), "<u2").astype(np.int32)
        write_choices(path, [(a, b, gold) for (a, b), gold in zip(questions, golds)])
        f.arrays["tiny_questions.bin"] = np.frombuffer(path.read_bytes(), "<u2").astype(np.int32)
    return f
