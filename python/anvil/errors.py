"""The exception of this package. Its message is one line: what was expected, what was found, and what to do."""


class AnvilError(Exception):
    """An error that the user can fix: a wrong path, a damaged file, a refused flag, a run that failed.

    exit_code and output are those of a program that failed (doc/flags.md), else None."""

    def __init__(self, message, exit_code=None, output=None):
        super().__init__(message)
        self.exit_code, self.output = exit_code, output


def one_line(text):
    """For a terminal, which obeys control characters: names in a file may hold them."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(str(text).split()))
