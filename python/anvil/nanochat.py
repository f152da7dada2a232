"""Imports and exports nanochat's checkpoints and tokenizer (github.com/karpathy/nanochat, commit 92d63d4 of July 2026).

    python -m anvil.nanochat import base_checkpoints/d24 --tokenizer tokenizer --out d24      then ./train_gpt --init-from d24
    python -m anvil.nanochat export run/d24 --out ~/.cache/nanochat --tag d24

import reads model_STEP.pt and meta_STEP.json, and tokenizer.pkl if it is given, and writes config.json,
model.safetensors and tokenizer.json. Weights become fp32, which is exact for nanochat's bf16. export does the reverse: it
writes base_checkpoints/TAG/ and tokenizer/, with token_bytes.pt. The optimizer's state is not converted.

Needs torch and safetensors; exporting a tokenizer needs tiktoken. A pickle is read without executing code that it names.
"""

import argparse
import io
import json
import pathlib
import pickle
import re
import sys

from .checkpoint import Checkpoint, read_json
from .errors import AnvilError, one_line

COMMIT = "92d63d4"
VOCABULARY_MULTIPLE = 64  # nanochat pads its vocabulary to a multiple of this
WINDOW_MULTIPLE = 128
BOS = "<|bos|>"
EPS = 2.0**-23
# The fields of config.json for `--architecture nanochat`: test/python/nanochat_test.py compares them.
PARTS = {
    "norm": "plain-rmsnorm", "norm-eps": EPS, "biases": False, "mlp": "relu-squared", "tied-head": False, "positions": "rotary",
    "rotary-base": 100000.0, "half-rotary": False, "clockwise-rotary": True, "qk-norm": True, "qk-scale": 1.2000000476837158,
    "qk-eps": EPS, "score-scale": 0.0, "window-pattern": "SSSL", "short-window": 0, "embedding-norm": True, "value-embeddings": True,
    "residual-lambdas": True, "smear": True, "backout": True, "softcap-kind": "tanh", "softcap": 15.0,
}  # fmt: skip


def shapes(config, V):
    """{nanochat's name: shape} for a model with V rows in its tables."""
    L, C, NH, NKV = config["n_layer"], config["n_embd"], config["n_head"], config["n_kv_head"]
    KV = C // NH * NKV
    found = {"transformer.wte.weight": (V, C), "lm_head.weight": (V, C), "resid_lambdas": (L,), "x0_lambdas": (L,)}
    found |= {"smear_gate.weight": (1, 24), "smear_lambda": (1,), "backout_lambda": (1,)}
    for layer in range(L):
        h = f"transformer.h.{layer}."
        found |= {h + "attn.c_q.weight": (C, C), h + "attn.c_k.weight": (KV, C), h + "attn.c_v.weight": (KV, C)}
        found |= {h + "attn.c_proj.weight": (C, C), h + "mlp.c_fc.weight": (4 * C, C), h + "mlp.c_proj.weight": (C, 4 * C)}
        if layer % 2 == (L - 1) % 2:
            found |= {f"value_embeds.{layer}.weight": (V, KV), h + "attn.ve_gate.weight": (NKV, 12)}
    return found


def is_table(name):
    return name in ("transformer.wte.weight", "lm_head.weight") or name.startswith("value_embeds.")


def our_name(name):
    return name if name.startswith("transformer.") else "transformer." + name


def padded(V):
    return -(-V // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE


def need(*modules):
    found = []
    for module in modules:
        try:
            found.append(__import__(module, fromlist=["_"]))
        except ImportError:
            raise AnvilError(f"this needs {module.split('.')[0]}: pip install {module.split('.')[0]}") from None
    return found


def find_step(folder, step):
    steps = sorted(int(found[1]) for found in (re.fullmatch(r"model_(\d+)\.pt", p.name) for p in folder.glob("model_*.pt")) if found)
    if not steps:
        raise AnvilError(f"{folder}: no model_STEP.pt in it; expected one of nanochat's folders, base_checkpoints/d24 say")
    if step is not None and step not in steps:
        raise AnvilError(f"{folder}: no step {step}; it has {', '.join(map(str, steps))}")
    return steps[-1] if step is None else step


def load_state(torch, path):
    """{name: tensor}. torch's own message is not passed on: it advises to load the file with weights_only=False, which runs what it holds."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise AnvilError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception as error:  # a pickle can fail in any way
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        why = f"it names {named[1]}, which is not run" if named else type(error).__name__
        raise AnvilError(f"{path}: expected tensors alone, as torch.save writes them; torch cannot read it ({why}): get another copy of it") from None
    if not isinstance(state, dict) or not all(isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in state.items()):
        raise AnvilError(f"{path}: expected a dictionary of names and tensors, as nanochat saves it; is it another file of the training?")
    return {name.removeprefix("_orig_mod."): value for name, value in state.items()}


def import_checkpoint(folder, out, step=None, tokenizer=None):
    """Writes a folder for ./train_gpt --init-from. Returns its description in one line."""
    torch, safetensors = need("torch", "safetensors.torch")
    folder, out = pathlib.Path(folder), pathlib.Path(out)
    step = find_step(folder, step)
    path = folder / f"model_{step:06d}.pt"
    meta = read_json(folder / f"meta_{step:06d}.json")
    try:
        theirs = meta["model_config"]
        config = {name: theirs[name] for name in ("n_layer", "n_head", "n_kv_head", "n_embd", "sequence_len", "vocab_size")}
        pattern = theirs.get("window_pattern", "L").upper()
        if any(type(size) is not int or size < 1 for size in config.values()):
            raise TypeError
    except (KeyError, TypeError, AttributeError):
        raise AnvilError(f"{folder}/meta_{step:06d}.json: expected a model_config with sizes; use another copy of it") from None
    state = load_state(torch, path)
    expected = shapes(config, padded(config["vocab_size"]))
    missing, extra = sorted(set(expected) - set(state)), sorted(set(state) - set(expected))
    if missing or extra:
        what = f"{missing[0]} is missing" if missing else f"{extra[0]} is not expected"
        raise AnvilError(f"{path}: {what}: not the format of nanochat's commit {COMMIT}; older models have other parts and constants. "
                         "One of October 2025 goes through transformers' NanoChat, whose folders --init-from reads")  # fmt: skip
    for name, shape in expected.items():
        if tuple(state[name].shape) != shape:
            raise AnvilError(f"{path}: {name} is {tuple(state[name].shape)}, expected {shape}, as meta_{step:06d}.json has it")
    V, tensors = config["vocab_size"], {}
    for name, value in state.items():
        if re.search(r"attn\.c_[kv]\.", name):
            continue
        if "attn.c_q." in name:  # Q, K and V are one matrix in Anvil
            value = torch.cat([state[name.replace("c_q", part)].float() for part in ("c_q", "c_k", "c_v")])
            name = name.replace("c_q", "c_attn")
        tensors[our_name(name)] = value[: V if is_table(name) else None].float().contiguous()
    ours = {
        "model_type": "anvil", "n_layer": config["n_layer"], "n_head": config["n_head"], "n_embd": config["n_embd"],
        "n_positions": config["sequence_len"], "vocab_size": V, "n_kv_head": config["n_kv_head"], "n_inner": 0,
        **PARTS, "window-pattern": pattern, "torch_dtype": "float32",
    }  # fmt: skip
    texts = {"config.json": json.dumps(ours, indent=2) + "\n"}
    if tokenizer is not None:
        file = read_tokenizer(tokenizer)
        if len(file["model"]["vocab"]) != V:
            raise AnvilError(f"{tokenizer}: {len(file['model']['vocab'])} tokens, and the model has {V}; give the tokenizer that it was trained with")
        texts["tokenizer.json"] = json.dumps(file, ensure_ascii=False, indent=1) + "\n"
    new_folder(out)
    safetensors.save_file(tensors, out / "model.safetensors", {"format": "pt"})
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    return f"{out}: {path.name} of nanochat: {', '.join(['model.safetensors', *texts])}"


def export_checkpoint(model, out, tag=None):
    """Writes base_checkpoints/TAG/ and tokenizer/ in nanochat's base folder. Returns a description in one line."""
    (torch,) = need("torch")
    checkpoint, out = Checkpoint(model), pathlib.Path(out)
    config = checkpoint.config
    if config.get("model_type") != "anvil":
        raise AnvilError(f"{checkpoint.path}: a {config.get('model_type')}: nanochat has no such model; expected --architecture nanochat or --depth")
    for name, value in PARTS.items():
        if name not in ("window-pattern", "short-window") and config.get(name) != value:
            raise AnvilError(f"{checkpoint.path}: {name} is {config.get(name)}, and nanochat's is {value}: it has no such model")
    L, C, T, V = (config[name] for name in ("n_layer", "n_embd", "n_positions", "vocab_size"))
    quarter = -(-(-(-T // 4)) // WINDOW_MULTIPLE) * WINDOW_MULTIPLE
    if config["short-window"] not in (0, quarter) or config["n_inner"] not in (0, 4 * C):
        raise AnvilError(f"{checkpoint.path}: nanochat's short windows are {quarter} tokens here and its MLPs {4 * C} channels: it has no such model")
    sizes = {
        "sequence_len": T, "vocab_size": V, "n_layer": L, "n_head": config["n_head"], "n_kv_head": config["n_kv_head"] or config["n_head"],
        "n_embd": C, "window_pattern": config["window-pattern"],
    }  # fmt: skip
    tensors, state = checkpoint.tensors("torch"), {}
    KV = C // sizes["n_head"] * sizes["n_kv_head"]
    for name, shape in shapes(sizes, padded(V)).items():
        part = re.search(r"attn\.c_([qkv])\.", name)
        if part:
            rows = tensors[name.replace(f"c_{part[1]}.", "c_attn.")].split([C, KV, KV])["qkv".index(part[1])]
        else:
            rows = tensors[our_name(name)]
        state[name] = torch.zeros(shape)
        state[name][: len(rows)] = rows.float()
        if tensors["transformer.wte.weight"].dtype == torch.bfloat16 and is_table(name) and name != "lm_head.weight":
            state[name] = state[name].bfloat16()  # nanochat's type for them
    step = checkpoint.step or 0
    tag = tag or f"d{L}"
    folder = out / "base_checkpoints" / tag
    new_folder(folder)
    torch.save(state, folder / f"model_{step:06d}.pt")
    flags = {name.replace("-", "_"): value for name, value in checkpoint.flags.items()}
    batch = flags.get("batch_size") or 1
    meta = {
        "step": step, "val_bpb": None, "model_config": sizes, "user_config": {}, "device_batch_size": batch,
        "max_seq_len": T, "total_batch_size": flags.get("total_batch_size") or batch * T, "dataloader_state_dict": None, "loop_state": {},
    }  # fmt: skip
    (folder / f"meta_{step:06d}.json").write_text(json.dumps(meta, indent=2))
    written = [f"base_checkpoints/{tag}/model_{step:06d}.pt", f"meta_{step:06d}.json"]
    if checkpoint.tokenizer:
        written += ["tokenizer/" + name for name in write_tokenizer(read_json(checkpoint.tokenizer), out / "tokenizer", checkpoint.tokenizer)]
    return f"{out}: {', '.join(written)}"


def new_folder(path):
    try:
        path.mkdir(parents=True, exist_ok=True)
        empty = not any(path.iterdir())
    except OSError as error:
        raise AnvilError(f"cannot write {path}: {error.strerror}") from None
    if not empty:
        raise AnvilError(f"{path} is not empty: give a new folder")


class Fields:
    """Replaces tiktoken's Encoding while its pickle is read. Holds its state, a dictionary."""

    state = None

    def __setstate__(self, state):
        self.state = state


class EncodingOnly(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) == ("tiktoken.core", "Encoding"):
            return Fields
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def byte_letters():
    """The character that stands for each byte in a byte-level tokenizer.json."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def halves(token, ranks):
    """The two tokens from which a token is merged: the result of applying the merges of lower rank to it."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        found = [(ranks[a + b], i) for i, (a, b) in enumerate(zip(parts, parts[1:])) if ranks.get(a + b, ranks[token]) < ranks[token]]
        if not found:
            return None
        _, i = min(found)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def read_tokenizer(path):
    """tokenizer.pkl, or its folder -> tokenizer.json, as an object."""
    path = pathlib.Path(path)
    path = path / "tokenizer.pkl" if path.is_dir() else path
    try:
        fields = EncodingOnly(io.BytesIO(path.read_bytes())).load()
        state = fields.state
        pattern, ranks, special = state["pat_str"], dict(state["mergeable_ranks"]), dict(state["special_tokens"])
    except OSError as error:
        raise AnvilError(f"cannot read {path}: {error.strerror}") from None
    except Exception as error:  # a pickle can fail in any way
        raise AnvilError(f"{path}: not the pickle of a tiktoken Encoding, as nanochat writes it ({type(error).__name__}: {one_line(error)})") from None
    ids = sorted([*ranks.values(), *special.values()])
    if ids != list(range(len(ids))) or any(bytes([byte]) not in ranks for byte in range(256)):
        raise AnvilError(f"{path}: expected all 256 bytes, and tokens numbered from 0 without a gap")
    letters = byte_letters()
    spelled = lambda token: "".join(letters[byte] for byte in token)  # noqa: E731
    merges = []
    for token in sorted(ranks, key=ranks.get):
        if len(token) == 1:
            continue
        parts = halves(token, ranks)
        if parts is None:
            raise AnvilError(f"{path}: no merges lead to token {ranks[token]}, {token!r}")
        merges.append(" ".join(map(spelled, parts)))
    vocab = {spelled(token): rank for token, rank in ranks.items()}
    vocab.update(special)
    kind = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": text, **kind} for text, i in sorted(special.items(), key=lambda item: item[1])],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, {**byte_level, "use_regex": False}]},
        "post_processor": None, "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": dict(sorted(vocab.items(), key=lambda item: item[1])), "merges": merges,
        },
    }  # fmt: skip


def write_tokenizer(file, folder, where):
    """tokenizer.json, as an object -> tokenizer.pkl and token_bytes.pt. Returns the names of the files written."""
    tiktoken, torch = need("tiktoken", "torch")
    try:
        special = {token["content"]: token["id"] for token in file["added_tokens"]}
        bytes_of = {letter: byte for byte, letter in byte_letters().items()}
        vocab = file["model"]["vocab"].items()
        ranks = {bytes(bytes_of[letter] for letter in text): i for text, i in vocab if text not in special}
        pattern = file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    except (KeyError, TypeError, IndexError):
        raise AnvilError(f"{where}: nanochat's tokenizer is a byte-level BPE with a pattern of its own, and this is another; "
                         "leave it away, or train with data/tokenize --train-tokenizer") from None  # fmt: skip
    if BOS not in special:
        raise AnvilError(f"{where}: nanochat's tokenizer has {BOS}, and this has not; data/tokenize --train-tokenizer makes one")
    encoding = tiktoken.Encoding(name="rustbpe", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    lengths = torch.zeros(encoding.n_vocab, dtype=torch.int32)  # 0 for special tokens
    for token, i in ranks.items():
        lengths[i] = len(token)
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "tokenizer.pkl").exists():
        raise AnvilError(f"{folder} has a tokenizer already: remove it, or give another --out")
    with open(folder / "tokenizer.pkl", "wb") as out:
        pickle.dump(encoding, out)
    torch.save(lengths, folder / "token_bytes.pt")
    return ["tokenizer.pkl", "token_bytes.pt"]


def main():
    parser = argparse.ArgumentParser(prog="python -m anvil.nanochat", description="nanochat's checkpoints and tokenizer, in and out.")
    commands = parser.add_subparsers(dest="command", required=True)
    reader = commands.add_parser("import", help="nanochat's to a folder for ./train_gpt --init-from")
    reader.add_argument("folder", help="with model_STEP.pt and meta_STEP.json")
    reader.add_argument("--step", type=int, help="default: the last")
    reader.add_argument("--tokenizer", help="tokenizer.pkl or its folder")
    reader.add_argument("--out", required=True)
    writer = commands.add_parser("export", help="a run or a checkpoint to nanochat's")
    writer.add_argument("model", help="a run, one of its checkpoints, or an exported folder")
    writer.add_argument("--out", required=True, help="nanochat's base folder, ~/.cache/nanochat say")
    writer.add_argument("--tag", help="default: d and the number of layers")
    arguments = parser.parse_args()
    try:
        if arguments.command == "import":
            print(import_checkpoint(arguments.folder, arguments.out, arguments.step, arguments.tokenizer))
        else:
            print(export_checkpoint(arguments.model, arguments.out, arguments.tag))
    except AnvilError as error:
        sys.exit(f"error: {one_line(error)}")


if __name__ == "__main__":
    main()
