#!/usr/bin/env python3
"""A tiny world for training: conversations about people of a village, and questions that no conversation contains.

    scripts/tiny_world.py make FOLDER [--people 24] [--conversations 20000] [--seed 1]
    scripts/tiny_world.py ask RUN FOLDER/held_out.jsonl [--train-gpt ./train_gpt]

`make` writes FOLDER/conversations.jsonl, for data/tokenize --format chat, and FOLDER/held_out.jsonl. Each person has a
home, a job, an animal, a dish and a color, and there are twelve ways to ask for each. One question in six is held out: the
model learns the fact from the other ways to ask for it, and never sees this question.

`ask` lets the model of RUN, a run's folder, answer the held-out questions at temperature 0, and prints the wrong answers
and the share of right ones. Exit code 0: at least 95 % are right; 1: fewer; 2: the model cannot answer.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys

PEOPLE = """Ada Ben Cleo Dan Eva Finn Gina Hugo Ida Jack Kira Leo Mia Noah Olga Paul Rosa Sam Tess Uma Vera Will Yara
Zoe""".split()

# The facts about a person: values, ways to ask, the answer.
FACTS = [
    (
        "an old mill, a boat, a red house, the castle, a tent, the lighthouse, a cave, a tower".split(", "),
        ["Where does {} live?", "What is the home of {}?", "Tell me where {} lives.", "{} lives where?", "In what does {} live?", "Do you know where {} lives?"],
        "{} lives in {}.",
    ),
    (
        "a baker, a doctor, a sailor, a painter, a teacher, a farmer, a pilot, a smith".split(", "),
        ["What does {} do?", "What is the job of {}?", "Tell me the job of {}.", "{} works as what?", "What is {}?", "Do you know the job of {}?"],
        "{} is {}.",
    ),
    (
        "a dog, a cat, a horse, a goose, a goat, an owl, a rabbit, a pony".split(", "),
        ["What animal does {} have?", "Which pet does {} keep?", "Tell me the animal of {}.", "{} has which animal?", "What is the pet of {}?", "Do you know the pet of {}?"],
        "{} has {}.",
    ),
    (
        "soup, rice, fish, pie, bread, beans, eggs, cake".split(", "),
        ["What does {} eat?", "What is the dish of {}?", "Tell me what {} eats.", "{} eats what?", "Which food does {} like?", "Do you know what {} eats?"],
        "{} eats {}.",
    ),
    (
        "blue, green, black, white, yellow, orange, purple, silver".split(", "),
        ["What color does {} wear?", "Which color is on {}?", "Tell me the color of {}.", "{} wears which color?", "What is the color of {}?", "Do you know the color of {}?"],
        "{} wears {}.",
    ),
]  # fmt: skip
GREETINGS = ["", "Hello! "]
SYSTEM = "You know the village."
ENOUGH = 0.95


def make(folder, people, conversations, seed):
    rng = random.Random(seed)
    questions = []
    for person in PEOPLE[:people]:
        for values, ways, answer in FACTS:
            fact = answer.format(person, rng.choice(values))
            questions += [(hello + way.format(person), fact) for hello in GREETINGS for way in ways]
    rng.shuffle(questions)
    held_out, taught = questions[::6], [q for i, q in enumerate(questions) if i % 6]

    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "held_out.jsonl", "w") as file:
        for question, answer in held_out:
            file.write(json.dumps({"question": question, "answer": answer}) + "\n")
    with open(folder / "conversations.jsonl", "w") as file:
        for _ in range(conversations):
            messages = [{"role": "system", "content": SYSTEM}] if rng.random() < 0.25 else []
            for question, answer in rng.choices(taught, k=rng.choice([1, 1, 2])):
                messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"messages": messages}) + "\n")
    print(f"{folder}: {conversations} conversations of {len(taught)} questions, {len(held_out)} questions held out")


def ask(run, held_out, train_gpt):
    lines = [json.loads(line) for line in held_out.read_text().splitlines()]
    if not lines:
        sys.exit(f"error: {held_out}: expected questions, found none: `scripts/tiny_world.py make` writes them")
    # Each question starts a new conversation.
    typed = "".join(f"/clear\n{line['question']}\n" for line in lines)
    command = [str(train_gpt.resolve()), "chat", "--resume", str(run), "--temperature", "0"]
    done = subprocess.run(command, input=typed, capture_output=True, text=True)
    answers = done.stdout.splitlines()
    if done.returncode != 0 or len(answers) != len(lines):
        print(done.stderr, end="", file=sys.stderr)
        print(f"error: {' '.join(command)}: {len(answers)} answers to {len(lines)} questions", file=sys.stderr)
        sys.exit(2)
    wrong = [(line, got) for line, got in zip(lines, answers) if got != line["answer"]]
    for line, got in wrong:
        shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in got)  # whatever a model writes, for a terminal
        print(f"{line['question']}  {shown}  (expected: {line['answer']})")
    right = len(lines) - len(wrong)
    print(f"{right} of {len(lines)} held-out questions right, {100 * right / len(lines):.1f} %")
    return 0 if right >= ENOUGH * len(lines) else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("make", help="writes conversations and questions")
    one.add_argument("folder", type=pathlib.Path)
    one.add_argument("--people", type=int, default=len(PEOPLE), help=f"1 to {len(PEOPLE)}")
    one.add_argument("--conversations", type=int, default=20000)
    one.add_argument("--seed", type=int, default=1)
    two = commands.add_parser("ask", help="has a model answer the questions")
    two.add_argument("run", type=pathlib.Path)
    two.add_argument("held_out", type=pathlib.Path)
    two.add_argument("--train-gpt", type=pathlib.Path, default="./train_gpt")
    given = parser.parse_args()
    try:
        if given.command == "ask":
            return ask(given.run, given.held_out, given.train_gpt)
        if not 1 <= given.people <= len(PEOPLE) or given.conversations < 1:
            print(f"error: expected 1 to {len(PEOPLE)} people and at least one conversation", file=sys.stderr)
            return 2
        make(given.folder, given.people, given.conversations, given.seed)
    except OSError as error:
        print(f"error: cannot open {error.filename}: {error.strerror}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
