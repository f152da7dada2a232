"""The generated section of a page: what is between two lines, which name the program that writes it."""


class UserError(Exception):
    """For the user: what was expected, what was found and what to do."""


def with_section(page, text, markers):
    """The page with the text in its section; markers: the lines before and after it."""
    begin, end = markers
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise UserError(f"the page lacks the lines {begin.strip()} and {end.strip()}, once each, in this order")
    return page[: page.index(begin) + len(begin)] + "\n" + text + "\n" + page[page.index(end) :]


def renew_page(path, text, markers, program, check):
    """Writes the text to its section of a page, or with `check` only compares; program: what to run if they differ."""
    page = path.read_text(encoding="utf-8")
    wanted = with_section(page, text, markers)
    if check and page != wanted:
        raise UserError(f"{path} is not up to date: run {program}")
    if not check:
        path.write_text(wanted, encoding="utf-8")
