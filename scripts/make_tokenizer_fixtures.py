#!/usr/bin/env python3
"""Records the ids and merges of tiktoken, Hugging Face's `tokenizers` and rustbpe, which Anvil's must equal.

    python3 -m venv /tmp/refs && /tmp/refs/bin/pip install tiktoken==0.14.0 tokenizers==0.23.3 rustbpe==0.1.0
    /tmp/refs/bin/python scripts/make_tokenizer_fixtures.py           writes test/fixtures/tokenizers/
    ... make_tokenizer_fixtures.py --check                            exit code 1 if they differ from the committed ones
    ... make_tokenizer_fixtures.py --stress DIR                       writes to DIR, with much more text, and GPT-2's own
                                                                      vocabulary if $ANVIL_MIRROR has it
    ... make_tokenizer_fixtures.py --verify DIR                       checks that the references read Anvil's DIR/ours

A folder has texts (X.txt), tokenizers (X.json, X.tiktoken, vocab.bpe), the ids of a reference for a tokenizer and a text
(TOKENIZER--TEXT.ids, int32), and the tokens that rustbpe learns (PATTERN--SIZE--TEXT.ranks).
test/data/tokenizer_reference_test.cpp reads it.
"""

import argparse
import array
import base64
import collections
import filecmp
import json
import os
import pathlib
import shutil
import sys
import tempfile

import rustbpe
import tiktoken
import tokenizers
import unicodedata2
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "test/fixtures/tokenizers"

# In the spelling of nanochat and tiktoken; gpt2's is that of tiktoken's r50k_base.
PATTERNS = {
    "gpt2": r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s""",
    "gpt4": (
        r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"""
        r"""|\s+(?!\S)|\s"""
    ),
    "llama3": (
        r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"""
        r"""|\s+(?!\S)|\s+"""
    ),
    "nanochat": (
        r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"""
        r"""|\s+(?!\S)|\s+"""
    ),
    "qwen2": (
        r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"""
        r"""|\s+(?!\S)|\s+"""
    ),
    "o200k": "|".join([
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""", r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""", r"""\s*[\r\n]+""", r"""\s+(?!\S)""", r"""\s+""",
    ]),
    "smollm": None,  # not a single pattern: splits digits, then uses GPT-2's
}  # fmt: skip
NANOCHAT_SPECIALS = [
    "<|bos|>", "<|user_start|>", "<|user_end|>", "<|assistant_start|>", "<|assistant_end|>", "<|python_start|>",
    "<|python_end|>", "<|output_start|>", "<|output_end|>",
]  # fmt: skip
SPECIALS = {
    "gpt2": ["<|endoftext|>"],
    "gpt4": ["<|endoftext|>"],
    "llama3": ["<|begin_of_text|>"],
    "qwen2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "o200k": ["<|endoftext|>"],
    "smollm": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "nanochat": NANOCHAT_SPECIALS,
}


class Rng:  # splitmix64: the same on every machine and version of Python
    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) & (2**64 - 1)
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        return (z ^ (z >> 31)) % n

    def pick(self, items):
        return items[self.below(len(items))]


SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", "\v", "\f", "\x1c", "\x85", "\xa0", "\u1680", "\u2003", "\u200a",
          "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b", "\ufeff", "\u180e"]  # fmt: skip
WORDS = """the The THE of and house houses housing merge merges emerged lower lowest newer I'm I'M we'll WE'LL they've they'Ve
you're it's IT'S don't 'tis 'til 'save o'clock 'ſ it'ſ 'LL 'l 'lL 'v 'r ' '' it''s naïve café cafe\u0301 Straße ǅ ʰ ª
Привет мир ещё Ελληνικά Ἀχιλλεύς שלום שָׁלוֹם العربية مَرْحَبًا हिन्दी क्ष தமிழ் ไทย ภาษา 日本語 ひらがな カタカナ 漢字 𠮷野家 한국어 ᄒ
ᏣᎳᎩ 𐐷𐐲 𝒜𝓁 ﷽ ﬁ 🙂 👩‍👩‍👧 🇩🇪 👍🏽 ☃️ €5 $10 £ 50% #tag @me <b> </b> {x:1} [0] f(x)=x² x³ ½ Ⅷ ④ ٣٤٥ १२३ 1 12 123 1234 12345
3.14159 1,000,000 1e-9 0x1F -- ... !!! ?! ;) ^^ \\ / | ~ ` " “quoted” «так» — – … · • ​ a\u0300\u0301\u0302 e\u0308 _ __init__ snake_case CamelCase
<|endofprompt|> <| |> \x00 \x01 \x7f \ufffd \ue000 \U0010ffff \u0378 \U0001e6d0""".split()


def mixed_text(size, seed):
    rng = Rng(seed)
    parts, length = [" ".join(WORDS)], 0
    while length < size:
        kind = rng.below(12)
        if kind < 8:
            part = rng.pick(WORDS)
        elif kind == 8:
            c = rng.below(0x110000)
            part = chr(c) if not 0xD800 <= c < 0xE000 else "?"
        elif kind == 9:
            part = rng.pick("abtsdmx'\" 0.\n") * rng.below(9)
        else:
            part = ""
        for _ in range(rng.below(4) and 1 + rng.below(2) * rng.below(3)):
            part += rng.pick(SPACES) if rng.below(3) == 0 else " "
        parts.append(part)
        length += len(part)
    return "".join(parts)


def overlapping_text(size, seed):
    """A text of few symbols, so that pairs overlap and many are equally frequent."""
    rng = Rng(seed)
    return "".join(rng.pick("aaab ") for _ in range(size)) + " aaaa aaa aaaaaaaaa" + "bab" * 9 + "\n"


def write_ids(folder, tokenizer, text, ids):
    numbers = array.array("i", ids)
    if sys.byteorder == "big":
        numbers.byteswap()
    (folder / f"{tokenizer}--{text}.ids").write_bytes(numbers.tobytes())


def write_ranks(path, tokens):
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)))


def tiktoken_of(pattern, ranks, specials):
    return tiktoken.Encoding("x", pat_str=PATTERNS[pattern], mergeable_ranks=ranks, special_tokens=specials)


def trained_by_rustbpe(pattern, size, text):
    learner = rustbpe.Tokenizer()
    learner.train_from_iterator(iter([text]), size, pattern=PATTERNS[pattern])
    return [token for token, _ in sorted(learner.get_mergeable_ranks(), key=lambda item: item[1])]


def trained_by_hf(pattern, size, text):
    """Trains with `tokenizers`, which numbers bytes in another order, so that merges of equally frequent pairs differ."""
    made = tokenizers.Tokenizer(models.BPE())
    if pattern == "gpt2":
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif pattern == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        made.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    else:
        split = pre_tokenizers.Split(tokenizers.Regex(PATTERNS[pattern]), "isolated")
        made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if pattern == "qwen2":
        made.normalizer = normalizers.NFC()
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIALS[pattern], initial_alphabet=alphabet, show_progress=False))  # fmt: skip
    return made


def trained_of_characters(kind, size, text):
    """Like Llama 2's tokenizer (SentencePiece's BPE, as transformers converts it): `legacy` uses normalizers, else Metaspace."""
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="first", split=True), pre_tokenizers.Split(tokenizers.Regex(r"[\n\r]"), "isolated")]
    )
    # Selects the most frequent characters here, because the library's choice among equally frequent ones is arbitrary.
    counts = collections.Counter("▁" + text.replace(" ", "▁"))
    alphabet = sorted(counts, key=lambda character: (-counts[character], character))[:50]
    trainer = trainers.BpeTrainer(vocab_size=size - 260, initial_alphabet=alphabet, limit_alphabet=50, show_progress=False)
    learner.train_from_iterator([text], trainer)
    learned = json.loads(learner.to_str())["model"]
    blanks = [("▁", "▁"), ("▁▁", "▁▁"), ("▁", "▁▁")]
    specials = ["<unk>", "<s>", "</s>"]
    words = sorted(learned["vocab"], key=learned["vocab"].get)
    # As in Llama 2, bytes come before characters, and the newline is only a byte.
    names = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *(word for word in words if word not in "\n\r"), "▁▁", "▁▁▁▁", "▁▁▁"]
    merges = [*blanks, *(tuple(merge) for merge in learned["merges"])]
    vocab = {name: i for i, name in enumerate(dict.fromkeys(names))}
    made = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if kind == "legacy":
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens(specials)
    return made


# Added tokens that are not special, and the spelling of a special one around such a token. NORMALIZED are searched after the
# normalizer, and e + accent is one character there.
ADDED = [("<think>", {}), ("  ", {}), ("     ", {}), ("<l>", {"lstrip": True}), ("<r>", {"rstrip": True}),
         ("<lr>", {"lstrip": True, "rstrip": True}), ("\n\n\n", {}), ("<thin", {}), ("日本", {}), ("▁<u", {})]  # fmt: skip
NORMALIZED = [("<n>", {}), ("e\u0301!", {}), ("   ", {}), ("<th", {}), ("<nl>", {"lstrip": True}), ("<nr>", {"rstrip": True})]
SPECIAL = ["[<think>]", "<s> <r>"]


def with_added(made, strips=True):
    token = tokenizers.AddedToken
    made.add_tokens([token(text, normalized=False, **flags) for text, flags in ADDED])
    made.add_tokens([token(text, normalized=True, **flags) for text, flags in NORMALIZED if strips or not flags])
    made.add_special_tokens([token(SPECIAL[0], normalized=False), token(SPECIAL[1], normalized=True)])
    made.encode_special_tokens = True  # text never becomes special tokens
    return made


def added_text(size, seed):
    rng = Rng(seed)
    words = [text for text, _ in ADDED + NORMALIZED] + SPECIAL + ["the", "a", "e\u0301", "日", "!", "<", "u>", "▁", "n>", "k>", "\t", "\u3000"]
    # A zero byte: not a text whose blanks are checked.
    return "".join(rng.pick(words) + " \n"[rng.below(2)] * (rng.below(3) * rng.below(3)) for _ in range(size)) + "\0"


def write_added(folder, texts, learned_from, size):
    texts = {**texts, "added": added_text(600, 5)}
    (folder / "added.txt").write_bytes(texts["added"].encode())
    tokens = {"added_gpt2": trained_by_hf("gpt2", size, texts[learned_from]), "added_nfc": trained_by_hf("qwen2", size, texts[learned_from])}
    for kind, spaces in (("legacy", None), ("metaspace", "first"), ("metaspace", "always")):
        made = trained_of_characters("legacy" if not spaces else "metaspace", size, texts[learned_from])
        if spaces:
            made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=spaces, split=False)
        tokens[f"added_{spaces or kind}"] = made
    for name, made in tokens.items():
        with_added(made, strips=name != "added_legacy")
        (folder / f"{name}.json").write_text(made.to_str(pretty=True) + "\n", encoding="utf-8")
        for text_name in (learned_from, "added"):
            write_ids(folder, f"{name}.json", text_name, made.encode(texts[text_name]).ids)


def write_cases(folder, texts, learned_from, size):
    """Writes the cases. `learned_from` and `size` are those of the vocabularies."""
    for name, text in texts.items():
        (folder / f"{name}.txt").write_bytes(text.encode())
    for pattern in (pattern for pattern, regex in PATTERNS.items() if regex):
        write_ranks(folder / f"{pattern}--{size}--{learned_from}.ranks", trained_by_rustbpe(pattern, size, texts[learned_from]))
    for pattern in ("gpt2", "llama3", "nanochat", "qwen2", "smollm", "o200k"):
        made = trained_by_hf(pattern, size, texts[learned_from])
        (folder / f"{pattern}.json").write_text(made.to_str(pretty=True) + "\n", encoding="utf-8")
        for name, text in texts.items():
            write_ids(folder, f"{pattern}.json", name, made.encode(text).ids)
    for kind in ("legacy", "metaspace"):
        made = trained_of_characters(kind, size, texts[learned_from])
        (folder / f"{kind}.json").write_text(made.to_str(pretty=True) + "\n", encoding="utf-8")
        for name, text in texts.items():
            write_ids(folder, f"{kind}.json", name, made.encode(text).ids)
    write_added(folder, texts, learned_from, size)
    for pattern in ("gpt4", "nanochat", "o200k"):
        tokens = trained_by_rustbpe(pattern, size, texts[learned_from])
        specials = {text: len(tokens) + i for i, text in enumerate(SPECIALS[pattern])}
        write_ranks(folder / f"{pattern}.tiktoken", tokens)
        sidecar = {"pattern": pattern, "special_tokens": specials}
        (folder / f"{pattern}.tiktoken.json").write_text(json.dumps(sidecar) + "\n", encoding="utf-8")
        encoding = tiktoken_of(pattern, {token: rank for rank, token in enumerate(tokens)}, specials)
        for name, text in texts.items():
            write_ids(folder, f"{pattern}.tiktoken", name, encoding.encode_ordinary(text))
    for pattern in ("gpt2", "gpt4", "llama3", "nanochat"):
        write_ranks(folder / f"{pattern}--400--overlapping.ranks", trained_by_rustbpe(pattern, 400, texts["overlapping"]))


def gpt2_encoding(mirror):
    """GPT-2's encoding, from its two files in the mirror, without downloading them."""
    merges = (mirror / "vocab.bpe").read_text(encoding="utf-8").splitlines()[1:]
    numbers = json.loads((mirror / "encoder.json").read_text(encoding="utf-8"))
    byte_of = dict(zip(gpt2_spellings(), range(256)))
    ranks = {bytes(byte_of[c] for c in token): rank for token, rank in numbers.items() if token != "<|endoftext|>"}
    assert len(ranks) == 256 + len([line for line in merges if line])
    return tiktoken.Encoding("gpt2", pat_str=PATTERNS["gpt2"], mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})


def gpt2_spellings():
    """The character that stands for each byte in GPT-2's files."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(0x100 + hidden.index(byte)) for byte in range(256)]


def stress(folder):
    # Three quarters of the code points are unassigned or for private use: takes only some of these.
    kept = [c for c in range(0x110000) if unicodedata2.category(chr(c)) not in ("Cn", "Co", "Cs") or c % 16 == 5]
    kept = [c for c in kept if not 0xD800 <= c < 0xE000]
    every = "".join(chr(c) + "'s"[c % 2] + " "[: c % 3] for c in kept)
    letters = Rng(3)
    texts = {
        "mixed": mixed_text(400_000, 2),
        "every_code_point": every,
        "no_space": "".join(letters.pick("etaoinsh") for _ in range(1_000_000)),
        "one_letter": "a" * 1_000_000,
        "spaces": " " * 300_000 + "x" + "\n" * 300_000 + "  \r\n  ",
        "overlapping": overlapping_text(4000, 4),
    }
    mirror = pathlib.Path(os.environ.get("ANVIL_MIRROR", "/nowhere"))
    if (mirror / "tinyshakespeare.txt").is_file():
        texts["shakespeare"] = (mirror / "tinyshakespeare.txt").read_text(encoding="utf-8")
    write_cases(folder, texts, "shakespeare" if "shakespeare" in texts else "mixed", 4096)
    if (mirror / "vocab.bpe").is_file():
        shutil.copy(mirror / "vocab.bpe", folder / "vocab.bpe")
        encoding = gpt2_encoding(mirror)
        for name, text in texts.items():
            write_ids(folder, "vocab.bpe", name, encoding.encode_ordinary(text))


def verify(folder):
    """Checks the ids of files that Anvil wrote, with the references for which they are."""
    failed = 0
    for expected in sorted(folder.glob("*.ids")):
        name, text_name = expected.stem.split("--")
        text = (folder / f"{text_name}.txt").read_bytes().decode()
        ids = array.array("i", expected.read_bytes()).tolist()
        made = tokenizers.Tokenizer.from_file(str(folder / "ours" / f"{name}.json"))
        made.encode_special_tokens = True
        found = {"tokenizers": made.encode(text).ids}
        rank_file = folder / "ours" / f"{name}.tiktoken"
        if rank_file.is_file():
            rest = json.loads(rank_file.with_name(rank_file.name + ".json").read_text(encoding="utf-8"))
            lines = (line.split() for line in rank_file.read_bytes().splitlines())
            ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
            found["tiktoken"] = tiktoken_of(rest["pattern"], ranks, rest["special_tokens"]).encode_ordinary(text)
        for reference, theirs in found.items():
            same = theirs == ids
            failed += not same
            print(f"{'ok    ' if same else 'DIFFER'} {reference} reads our file of {name}: {len(ids)} ids of {text_name}")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--stress", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--verify", type=pathlib.Path, metavar="DIR")
    args = parser.parse_args()
    if args.verify:
        return 1 if verify(args.verify) else 0
    if args.stress:
        args.stress.mkdir(parents=True, exist_ok=True)
        stress(args.stress)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        made = pathlib.Path(scratch)
        write_cases(made, {"mixed": mixed_text(1500, 1), "overlapping": overlapping_text(1000, 4)}, "mixed", 400)
        names = sorted(path.name for path in made.iterdir())
        if args.check:
            there = sorted(path.name for path in FIXTURES.iterdir())
            _, different, errors = filecmp.cmpfiles(made, FIXTURES, names, shallow=False)
            print("\n".join(f"{FIXTURES.name}/{name} differs" for name in [*different, *errors]))
            return 1 if there != names or different or errors else 0
        shutil.rmtree(FIXTURES, ignore_errors=True)
        shutil.copytree(made, FIXTURES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
