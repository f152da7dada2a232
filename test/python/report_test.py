"""scripts/report.py: logs, names and references are not ours. No markup of theirs gets into a page, and no wrong type ends in a traceback.

    python3 test/python/report_test.py
"""

import copy
import html.parser
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from run_report.layout import SCRIPT, STYLE  # noqa: E402
from run_report.pages import comparison, page  # noqa: E402
from run_report.records import UserError, read_records  # noqa: E402
from run_report.references import Reference  # noqa: E402

EVIL = "</title></script></style><img src=x onerror=alert(1)>\"'><x-evil>&lt;&"
TAGS = {"html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "div", "section", "p", "span", "table", "tr", "th", "td", "tbody",
        "figure", "svg", "line", "text", "polyline", "circle", "script", "details", "summary", "pre", "b"}  # fmt: skip
LOG = [
    {"type": "start", "time": 1, "config": {"prompt": "a", "steps": 4}, "sources": {"steps": "x"}, "build": {"id": "ff", "compiler": "g"},
     "machine": {"cpu": "c", "cores": 2, "memory_bytes": 25276510208, "os": "o", "device": "cpu", "ranks": 1, "peak_flops": 355097123300.19, "peak": "m"},
     "model": {"parameters": 7, "flops_per_token": 2e6}, "data": {"train": "00", "val": "11"}, "kernels": {"attention": "ours"}},
    *({"type": "step", "step": i, "loss": 4.0 - i, "norm": 1.0, "lr": 1e-3, "ms": 10.0, "tokens_per_s": 500.0, "mfu": 0.5, "comm_ms": 1.0,
       "comm_exposed_ms": 0.5, "comm_predicted_ms": 0.7} for i in (1, 2, 3)),
    {"type": "val", "step": 2, "loss": 3.5, "bpb": 1.25},
    {"type": "tasks", "step": 2, "file": "core.tasks", "score": 0.25,
     "tasks": {"first": {"accuracy": 0.25, "centered": 0.5, "right": 1, "examples": 4}}, "ms": 10},
    {"type": "ranks", "step": 2, "weight_hash": "00", "min_ms": 1.0, "median_ms": 2.0, "max_ms": 3.0, "slowest": 0},
    {"type": "sample", "step": 2, "prompt": "To ", "text": "be"},
    {"type": "sample", "step": 3, "prompt": "To ", "text": "be"},
    {"type": "checkpoint", "step": 3, "path": "x", "ms": 1.0},
    {"type": "end", "step": 3, "reason": "finished"},
]  # fmt: skip


def places(value, path=()):
    """Paths of all leaves, and of all keys with ("key",) at their end."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key, "key")
            yield from places(inner, (*path, key))
    yield path


def changed(record, path, new):
    """A copy of a record in which the leaf, or the key, at this path is another."""
    record = copy.deepcopy(record)
    is_key, path = path[-1] == "key", path[:-1] if path[-1] == "key" else path
    inside = record
    for key in path[:-1]:
        inside = inside[key]
    if is_key:
        inside[new] = inside.pop(path[-1])
    else:
        inside[path[-1]] = new
    return record


def variants(news):
    types = [record["type"] for record in LOG]
    for i, record in enumerate(LOG):
        if record["type"] in types[:i]:  # as the first of them
            continue
        for path in places(record):
            for new in news if path else ():
                if path[-1] != "key" or isinstance(new, str):
                    yield path, [*LOG[:i], changed(record, path, new), *LOG[i + 1 :]]


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.wrong = []
        self.feed(text.replace(STYLE, "").replace(SCRIPT, ""))
        self.close()

    def handle_starttag(self, tag, attributes):
        if tag not in TAGS or any(name.startswith("on") or name == "src" for name, _ in attributes):
            self.wrong.append((tag, attributes))


class Report(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "log.jsonl"
        self.other = self.records(LOG)
        stderr, sys.stderr = sys.stderr, open(pathlib.Path(folder.name) / "err", "w+", encoding="utf-8")  # warnings
        self.addCleanup(lambda: (sys.stderr.close(), setattr(sys, "stderr", stderr)))

    def records(self, log):
        self.path.write_text("".join(json.dumps(record) + "\n" for record in log), encoding="utf-8")
        return read_records(str(self.path))

    def pages(self, log, name="run", references=()):
        records = self.records(log)
        return page(name, records, references, 1.0), comparison([name, "other"], [records, self.other], references, 1.0)

    def check(self, what, texts):
        for text in texts:
            self.assertEqual(Page(text).wrong, [], what)

    def test_markup_in_every_string(self):
        self.check("as it is", self.pages(LOG))
        seen = 0
        for path, log in variants([EVIL]):
            texts = self.pages(log)
            self.check(path, texts)
            seen += any("onerror=alert(1)&gt;" in text for text in texts)
        self.assertGreater(seen, 15)  # so many of them are shown
        references = [Reference.parse("loss", EVIL + "=3"), Reference.parse("bpb", EVIL + "=1"), Reference.parse("score", f"core: {EVIL}=0.5")]
        self.check("references", self.pages(LOG, EVIL, references))

    def test_a_field_of_another_type_is_no_traceback(self):
        wrong = [None, True, -1, "nan", -1e308, 10**400, [1], {"a": {}}]
        for path, log in variants(wrong):
            try:
                self.pages(log)
            except UserError:
                pass
            except Exception as error:
                raise AssertionError(f"{path}: {error!r}") from error

    def test_markup_is_made_of_literals(self):
        for path in (ROOT / "scripts/run_report").glob("*.py"):
            self.assertNotRegex(path.read_text(encoding="utf-8"), "Markup\\(f[\"']|\\bf[\"'] *<", path.name)

    def test_facts_have_units(self):
        text = self.pages(LOG)[0]
        for part in ("25.28 GB", "355.1 GFLOP/s"):
            self.assertIn(part, text)

    def test_empty_words_are_shown_as_such(self):
        self.assertIn("<td>prompt</td><td>&quot;&quot;</td>", self.pages([changed(LOG[0], ("config", "prompt"), ""), *LOG[1:]])[0])


if __name__ == "__main__":
    unittest.main()
