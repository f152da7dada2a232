"""Markup, and all other text, which is escaped where it is put into a page: logs and names are not ours.

    markup("<td>{}</td>", value)     escapes the value, unless it is Markup itself
    joined(parts)                    one after another, escaped likewise
"""

import html


class Markup(str):
    """HTML already. Made of literals only, never of an f-string."""


def escaped(value):
    return value if isinstance(value, (Markup, int, float)) else Markup(html.escape(str(value)))


def markup(template, *values, **named):
    """The template's {} filled in. Numbers may have a format there."""
    return Markup(template.format(*map(escaped, values), **{name: escaped(value) for name, value in named.items()}))


def joined(parts, between=""):
    return Markup(between.join(str(escaped(part)) for part in parts))
