#!/usr/bin/env python3
"""Checks that sources, tests, scripts and pages use the field's words and American spelling.

    python3 dev/lint/check_words.py            prints FILE:LINE: the word and what to write instead; exit code 1 if any
    python3 dev/lint/check_words.py --shrink   removes unused entries of STILL_ALLOWED, below
    python3 dev/lint/check_words.py --test     tests the checker on small samples

Also checks file names. Not checked (EXEMPT): doc/style.md, which quotes what not to write, and files that
programs write.
"""

import pathlib
import re
import subprocess
import sys

EXEMPT = re.compile(r"^(doc/style\.md|doc/results/|test/(fixtures|golden|fuzz/corpus)/|dev/lint/check_words\.py|LICENSE)")
SUFFIXES = {".h", ".cuh", ".cu", ".cpp", ".c", ".py", ".sh", ".md", ".mk"}
NAMES = {"Makefile", "run", ".clangd", ".clang-tidy"}

STEMS = (
    "capital|central|character|color|custom|emphas|equal|final|formal|general|harmon|initial|local|material|maxim|memor|minim|modern|"
    "normal|optim|organ|parallel|penal|pessim|prior|quant|random|real|recogn|regular|rasteriz|serial|special|standard|summar|"
    "synchron|token|util|vector|visual"
)
UNITS = (
    "bit|bits|byte|bytes|block|blocks|document|documents|elements|figure|float|floats|FLOPs|GB|GB/s|GiB|instructions|KB|KiB|lane|MB|MB/s|MiB|ms|nats|ns|"
    "rank|ranks|registers|rows|samples|seconds|sequence|sequences|steps|thread|threads|TFLOP/s|GFLOP/s|times|tok/s|token|tokens|us|value|values"
)
PER = (
    "array|batch|block|bucket|byte|call|card|chip|chunk|collective|core|document|element|file|GPU|group|head|host|hour|iteration|kernel|launch|"
    "layer|line|machine|matrix|message|micro-batch|micro-step|minute|op|parameter|pass|piece|process|product|rank|round|row|run|score|second|"
    "server|shard|step|task|tensor|thread|tile|token|update|value|warp|window|word"
)



def after(words, end, begin=""):
    """A pattern: one of `words`, then `end`, precede this place. (Patterns that begin with a fixed text are much faster.)"""
    return "|".join(f"(?<={begin}{word}{end})" for word in words.split("|"))


BEGIN = r"\b"
# name: (pattern of what not to write, what to write)
WORDS = {
    "behind": (r"(?<!left )(?<!leaves )(?<!leave )(?<!nothing )(?<!hide )(?<!hides )(?<!hidden )\bbehind\b(?! the school)", "after"),
    "in front of": (r"\bin front of\b", "before"),
    "-ise": (rf"(?i)is(?:{after(STEMS, 'is')})(?:e|ing|ation|able)", "-ize"),
    "-our": (r"(?i)(neighb|behavi|col|fav|hon|lab|flav|harb|rum)our", "-or: neighbor, behavior, color, favor, honor"),
    "-re": (r"(?i)\b(centre|metre|fibre|calibre)|_centre|centred", "-er: center, meter, fiber"),
    "-ll-": (r"(?i)(modell|labell|travell|signall|channell)(ed|ing|er)|cancell(ed|ing)", "one l: modeling, labeled, canceled"),
    "-lyse": (r"(?i)(ana|para|cata)lys(e[drs]?\b|ing)", "-lyze"),
    "British": (r"(?i)\b(licence|defence|offence|catalogue|programme|grey|whilst|amongst|judgement|artefact|sceptic|mould|towards)", "American spelling"),
    "errand": (r"(?i)errand", "request, job"),
    "dial": (r"\b[Dd]ial(s|led|ed)?\b|Dialed|dial_", "depth-based scaling; --depth"),
    "eight bits": (r"(?i)\beight[ -]bits?\b", "FP8; 8 significant bits"),
    "double": (r"nccl_?double|NcclDouble|\bdoubles? of (NCCL|cuBLASLt|cuDNN|wandb|it\b)|\bis a double there", "fake: fake_nccl"),
    "small talk": (r"\bsmall talk\b", "control plane"),
    "mend": (r"\bmend(s|ed|able|ing)?\b", "fix; recoverable"),
    "turned": (r"\bturned\b(?! (in)?to| on| off| out| into)|_turned|turned_", "transposed, _t"),
    "Ticket": (r"\bTicket\b", "Work"),
    "say_once": (r"\bsay_once\b", "print_once"),
    "exchange": (r"\b([Tt]he|an|no|every|each|this|last|whose|its|their|of) exchanges?\b(?! of records)|^Exchange\b", "communication, collective"),
    "door": (r"\b(the|a|one|only|matmul|layer's) doors?\b", "entry point"),
    "deal": (r"\bDeal\b|\bHand\b|\bdealt\b|\bdeals? (out )?matrices", "assignment, bin, LPT"),
    "masters": (r"\bmasters\b", "master weights"),
    "kept keys": (r"(?i)\bkept keys\b|\bkeys and values of the tokens before\b", "KV cache"),
    "looked_at": (r"\b(put_away|looked_at)\b", "a noun: partial sum, evaluation loss"),
    "utilize": (r"tiliz(?:(?<=Utiliz)|(?<=utiliz))(e[sd]?|ing)\b|\bin order to\b", "use; to"),
    "the house": (r"\bthe house\b", "the code, the engine"),
    "one's own": (r"\bone's own\b", "your own"),
    "X a Y": (rf" an? (?=(?:{PER})\b(?!-))(?:{after(UNITS, ' a ', BEGIN)}|{after(UNITS, ' an ', BEGIN)})", "per: tokens per second"),
}

# The same for pages only: comments may be terser.
PAGE_WORDS = {
    "goes on": (r"\b(goes|go|went) on\b", "continues, resumes"),
    "just": (r"(?i)\b(simply|easily|obviously|of course)\b|\bjust (?=\w+ (it|the|a)\b)", "nothing: leave it out"),
    "at hand": (r"\bat hand\b", "available; the current step"),
    "what there is": (r"\b(what|that) there is\b(?!\*\*)|\bthat is there\b", "existing; what was found"),
}
WORDS |= PAGE_WORDS

PATTERNS = {word: re.compile(pattern, re.M) for word, (pattern, _) in WORDS.items()}

# Words that a folder or file still contains. Entries are never added: replace a word's last use, then run --shrink.
STILL_ALLOWED = """
"""


def allowed():
    """{(place, word)}"""
    pairs = set()
    for line in STILL_ALLOWED.strip().splitlines():
        place, words = line.split(": ", 1)
        pairs |= {(place, word) for word in words.split(", ")}
    return pairs


def around(match):
    """A match, extended to whole words."""
    begin = re.search(r"\S*$", match.string[max(0, match.start() - 30) : match.start()])[0]
    return begin + match[0] + re.match(r"\S{0,30}", match.string[match.end() : match.end() + 30])[0]


def findings_in(name, text):
    """(line number, name in WORDS, match); line 0: the file's name."""
    for word, pattern in PATTERNS.items():
        if word in PAGE_WORDS and not name.endswith(".md"):
            continue
        match = pattern.search(name)
        if match:
            yield 0, word, match[0]
        last = 0
        for match in pattern.finditer(text):
            number = text.count("\n", 0, match.start()) + 1
            if number != last:
                yield number, word, around(match)
            last = number


def files(root):
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout.decode().split("\0")
    for name in sorted(filter(None, listed)):
        path = root / name
        if path.is_file() and not EXEMPT.match(name) and (path.suffix in SUFFIXES or path.name in NAMES):
            yield name, path.read_text(encoding="utf-8")


def shrink(used):
    """STILL_ALLOWED without unused entries."""
    path = pathlib.Path(__file__).resolve()
    places = {}
    for place, word in sorted(used):
        places.setdefault(place, []).append(word)
    table = "".join(f"{place}: {', '.join(words)}\n" for place, words in places.items())
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r'(\nSTILL_ALLOWED = """\n)[\s\S]*?(""")', lambda m: m[1] + table + m[2], text, count=1), encoding="utf-8")


def test():
    for text, word in [
        ("the norm behind it", "behind"), ("in front of it", "in front of"), ("void muon_normalise(", "-ise"), ("Quantised<T>", "-ise"),
        ("uninitialised", "-ise"), ("neighbours", "-our"), ("centred", "-re"), ("modelling", "-ll-"), ("cancelled", "-ll-"), ("analysed", "-lyse"),
        ("MIT licence", "British"), ("Errand", "errand"), ("one dial", "dial"), ("DialedRun", "dial"), ("in eight bits", "eight bits"),
        ("nccl_double.h", "double"), ("a double of it", "double"), ("their small talk", "small talk"), ("can mend", "mend"), ("mendable", "mend"),
        ("k_turned", "turned"), ("lies turned, so", "turned"), ("Ticket t;", "Ticket"), ("the exchange costs", "exchange"),
        ("the only door to", "door"), ("are dealt to", "deal"), ("the masters", "masters"), ("4 bytes a parameter", "X a Y"),
        ("tokens a second", "X a Y"), ("53 MB/s a core", "X a Y"), ("utilizes", "utilize"), ("in order to", "utilize"),
        ("map of the house", "the house"), ("a text of one's own", "one's own"), ("one value a row", "X a Y"), ("kept keys and values", "kept keys"), ("put_away(i)", "looked_at"),
    ]:  # fmt: skip
        assert word in {found for _, found, _ in findings_in("x", text)}, f"{text!r} passes, expected '{word}'"
    for text in [
        "left behind", "hidden behind the backward pass", "promise, precise, exercise, otherwise, likewise, noise, raise, wise", "optimistic",
        "parallelism", "cancellation", "turned into bytes", "turned off", "std::exchange(a, b)", "compare_exchange_weak", "amend, commend",
        "double offset", "a ticket lock", "out of a block", "reads a row", "values are", "per step", "analysis", "radial", "emphasis",
        "hand it over", "at the second one", "gives tokens a number",
    ]:  # fmt: skip
        found = list(findings_in("x", text))
        assert not found, f"{text!r}: {found}"
    for text, word in [("the run goes on", "goes on"), ("simply run", "just"), ("the GPU at hand", "at hand"), ("a model that is there", "what there is")]:
        assert word in {found for _, found, _ in findings_in("doc/x.md", text)}, f"{text!r} passes in a page, expected '{word}'"
        assert not list(findings_in("x.h", text)), f"{text!r}: found in a source"
    assert list(findings_in("llmc/cpu/quantise.h", ""))[0][:2] == (0, "-ise")


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    if sys.argv[1:] == ["--test"]:
        test()
        return 0
    pairs, used, found = allowed(), set(), []
    for name, text in files(root):
        places = [name, *(str(parent) for parent in pathlib.PurePosixPath(name).parents)]
        for number, word, what in findings_in(name, text):
            place = next((place for place in places if (place, word) in pairs), None)
            if place:
                used.add((place, word))
            else:
                found.append(f"{name}:{number}: '{what}' ({word}): write {WORDS[word][1]}")
    if sys.argv[1:] == ["--shrink"]:
        shrink(used)
    else:
        found += [f"dev/lint/check_words.py: {place} no longer has '{word}': run dev/lint/check_words.py --shrink"
                  for place, word in sorted(pairs - used)]  # fmt: skip
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
