"""Hooks of mkdocs.yml, which make links for the site from pages that are also read in the repository.

`doc/performance.md` in a sentence becomes a link to that page. Code blocks stay unchanged.
"""
import posixpath
import re


def linked(text, page):
    """The text of the page at `page` (formats.md, tutorials/on_a_gpu.md), with links to the pages that it names."""
    folder = posixpath.dirname(page)

    def link(match):
        target = match[1]
        return f"[{target}]({posixpath.relpath(target, folder or '.')})" if target != page else match[0]

    lines, fenced = [], False
    for line in text.split("\n"):
        fenced ^= line.startswith("```")
        if not fenced and not line.startswith("    "):
            parts = re.split(r"(`[^`]*`|\[[^\]]*\]\([^)]*\))", line)
            parts[::2] = [re.sub(r"(?<![\w/.-])doc/((?:\w+/)?\w+\.md)", link, part) for part in parts[::2]]
            line = "".join(parts)
        lines.append(line)
    return "\n".join(lines)


def on_page_markdown(markdown, page, **_):
    return linked(markdown, page.file.src_uri)
