"""The exception of this package. Its message is one line: what was expected, what was found, and what to do."""


class AnvilError(Exception):
    """An error that the user can fix: a wrong path, a damaged file, a refused flag, a run that failed.

    exit_code and output are those of a program that failed (doc/flags.md), else None."""

    def __init__(self, message, exit_code=None, output=None):
        super().__init__(message)
        self.exit_code, self.output = exit_code, output
