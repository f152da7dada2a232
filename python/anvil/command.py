"""The command `anvil`, which `pip install` puts into PATH: train_gpt, and beside it the tokenizer and the report.

    anvil train --depth 4                 ./train_gpt train ...
    anvil tokenize notes.txt --out data   data/tokenize ...
    anvil report run/d4                   scripts/report.py ...
"""

import os
import pathlib
import sys

from .errors import AnvilError
from .run import find_program


def beside(name):
    """The program that was installed with this command, else None."""
    command = pathlib.Path(sys.argv[0])
    path = command.with_name(name)
    return str(path) if command.name == "anvil" and os.access(path, os.X_OK) else None


def command_of(arguments):
    if arguments[:1] == ["tokenize"]:
        return [beside("anvil-tokenize") or find_program(name="data/tokenize"), *arguments[1:]]
    program = find_program(beside("train_gpt"))
    if arguments[:1] != ["report"]:
        return [program, *arguments]
    folder = pathlib.Path(program).resolve().parent  # of an installed program, or of the checkout
    for script in (folder.parent / "share/anvil/scripts/report.py", folder / "scripts/report.py"):
        if script.is_file():
            return [sys.executable, str(script), *arguments[1:]]
    raise AnvilError(f"there is no scripts/report.py beside {program}: take the program of an installation or a checkout")


def main():
    try:
        command = command_of(sys.argv[1:])
    except AnvilError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    os.execv(command[0], command)
