#!/usr/bin/env python3
"""Adds vocabularies of real models, from packages of PyPI, to the cases of make_tokenizer_fixtures.py.

    pip download --no-deps -d WHEELS $(scripts/make_real_tokenizers.py --packages)
    scripts/make_real_tokenizers.py WHEELS DIR        needs the packages tiktoken, tokenizers and sentencepiece

Writes to DIR, as described in make_tokenizer_fixtures.py: SentencePiece models of Mistral as a tokenizer.json, in the three
spellings that transformers has used, and the ranks of Llama 3, Llama 4, Qwen and OpenAI's, with the ids of `tokenizers` and
tiktoken. sentencepiece's own ids must be those of the tokenizer.json.
"""

import argparse
import base64
import json
import pathlib
import sys
import sysconfig
import zipfile

import make_tokenizer_fixtures as fixtures

PACKAGES = {
    "mistral_common": "mistral-common==1.13.1",
    "llama_models": "llama-models==0.3.0",
    "dashscope": "dashscope==2.0.2",
    "litellm": "litellm==1.110.2",
    "sphinx": "sphinx==9.0.4",  # text in many languages
}

SENTENCEPIECE = {  # name: its file in mistral_common/data, and how transformers spells the space before a text
    "mistral_v1": ("tokenizer.model.v1", "prepend"),
    "mistral_v3": ("mistral_instruct_tokenizer_240323.model.v3", "metaspace"),
    "mistral_v7": ("mistral_instruct_tokenizer_241114.model.v7", "none"),
}
RANKS = {  # name: package, file, pattern and special tokens, or None if Anvil knows them by the number of ranks
    "llama3": ("llama_models", "llama3/tokenizer.model", "llama3", {"<|begin_of_text|>": 128000}),
    "llama4": ("llama_models", "llama4/tokenizer.model", "o200k", {"<|begin_of_text|>": 200000}),
    "qwen": ("dashscope", "resources/qwen.tiktoken", "qwen2", {"<|endoftext|>": 151643}),
    "cl100k": ("litellm", "litellm_core_utils/tokenizers/9b5ad71b2ce5302211f9c61530b329a4922fc6a4", "gpt4", None),
    "o200k": ("litellm", "litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790", "o200k", None),
    "p50k": ("litellm", "litellm_core_utils/tokenizers/ec7223a39ce59f226a68acc30dc1af2788490e15", "gpt2", None),
}


def open_wheel(folder, package):
    (path,) = folder.glob(f"{package}-*.whl")
    return zipfile.ZipFile(path)


def merges_of(scores):
    """The merges that SentencePiece's scores mean, in their order, as transformers derives them: both parts must be pieces."""
    number = {piece: i for i, piece in enumerate(scores)}
    found = []
    for piece, score in scores.items():
        splits = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        pairs = [(a, b) for a, b in splits if a in scores and b in scores]
        found += [(score, a, b) for a, b in sorted(pairs, key=lambda pair: (number[pair[0]], number[pair[1]]))]
    found.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [(a, b) for _, a, b in found]


def converted(model, spelling):
    """A tokenizer.json of a SentencePiece model."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

    ids = range(model.get_piece_size())
    vocab = {model.id_to_piece(i): i for i in ids}
    plain = [i for i in ids if not (model.is_control(i) or model.is_unknown(i) or model.is_byte(i) or model.is_unused(i))]
    merges = merges_of({model.id_to_piece(i): model.get_score(i) for i in plain})
    made = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps = [normalizers.Prepend("▁")] if spelling == "prepend" else []
    if spelling == "metaspace":
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        made.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    strip = [] if spelling == "none" else [decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    made.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>")])
    made.encode_special_tokens = True
    return made


def texts_of(folder):
    """Code with both kinds of line ends, and messages in many languages."""
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    code = "".join(path.read_text(encoding="utf-8", errors="replace") for path in sorted(library.glob("*.py")))[:400_000]
    wheel = open_wheel(folder, "sphinx")
    messages = []
    for name in sorted(name for name in wheel.namelist() if name.endswith(".po")):
        lines = wheel.read(name).decode().splitlines()
        messages += ["\n".join(line for line in lines if line.startswith("msgstr"))[:8_000]]
    return {"code": code, "code_crlf": code[:100_000].replace("\n", "\r\n"), "languages": "\n".join(messages)}


def write_sentencepiece(wheels, folder, texts):
    import sentencepiece

    wheel = open_wheel(wheels, "mistral_common")
    for name, (file, spelling) in SENTENCEPIECE.items():
        model = sentencepiece.SentencePieceProcessor(model_proto=wheel.read(f"mistral_common/data/{file}"))
        made = converted(model, spelling)
        (folder / f"{name}.json").write_text(made.to_str(), encoding="utf-8")
        for text_name, text in texts.items():
            ids = made.encode(text, add_special_tokens=False).ids
            fixtures.write_ids(folder, f"{name}.json", text_name, ids)
            # sentencepiece always puts a space before the text.
            theirs = model.encode(text)
            if spelling == "prepend" and theirs != ids:
                at = next(i for i, (a, b) in enumerate(zip(theirs, ids)) if a != b)
                sys.exit(f"{name}: sentencepiece and `tokenizers` differ in {text_name}, id {at}: {theirs[at:at+9]} {ids[at:at+9]}")


def write_ranks(wheels, folder, texts):
    import tiktoken

    for name, (package, file, pattern, specials) in RANKS.items():
        ranks_file = open_wheel(wheels, package).read(f"{package}/{file}")
        (folder / f"real_{name}.tiktoken").write_bytes(ranks_file)
        if specials:
            (folder / f"real_{name}.tiktoken.json").write_text(json.dumps({"pattern": pattern, "special_tokens": specials}))
        ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in ranks_file.splitlines() if line)}
        encoding = tiktoken.Encoding(name, pat_str=fixtures.PATTERNS[pattern], mergeable_ranks=ranks, special_tokens=specials or {})
        for text_name, text in texts.items():
            fixtures.write_ids(folder, f"real_{name}.tiktoken", text_name, encoding.encode_ordinary(text))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", action="store_true", help="print what pip should download, and end")
    parser.add_argument("wheels", type=pathlib.Path, nargs="?")
    parser.add_argument("folder", type=pathlib.Path, nargs="?")
    args = parser.parse_args()
    if args.packages:
        print(*PACKAGES.values())
        return
    texts = texts_of(args.wheels)
    for name, text in texts.items():
        (args.folder / f"{name}.txt").write_bytes(text.encode())
    write_sentencepiece(args.wheels, args.folder, texts)
    write_ranks(args.wheels, args.folder, texts)


if __name__ == "__main__":
    main()
