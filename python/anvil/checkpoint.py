"""Reads checkpoints, and folders that `./train_gpt export`, transformers and PEFT write: weights, state, optimizer.

doc/formats.md describes the files. A run's folder stands for its newest complete checkpoint, and a folder with an adapter
(LoRA) for its base with the adapter merged into it.
"""

import json
import math
import pathlib
import re

from .errors import AnvilError

FORMAT_VERSION = 2  # of manifest.json: kCheckpointVersion in llmc/io/manifest.h
MAX_HEADER = 100_000_000
ADAPTER = "adapter_config.json"
# Fields of an adapter's config that change what it computes, and are not applied (llmc/interop/adapter.cpp).
REFUSED = (
    "use_dora", "use_qalora", "lora_bias", "use_bdlora", "alora_invocation_tokens", "rank_pattern", "alpha_pattern",
    "modules_to_save", "layer_replication", "target_parameters",
)  # fmt: skip
# The supported types of safetensors, as NumPy types; bf16, which NumPy lacks, as 16 bits.
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U16": "<u2", "U8": "u1"}


def torch_or_none():
    try:
        import torch
    except ImportError:
        return None
    return torch


def read_json(path):
    try:
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise AnvilError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise AnvilError(f"{path}: not JSON ({error}); use another copy of it") from None


class TensorFile:
    """A memory-mapped safetensors file: the arrays by name."""

    def __init__(self, path):
        import numpy as np

        self.path = pathlib.Path(path)
        try:
            size = self.path.stat().st_size
            with open(self.path, "rb") as file:
                first = file.read(8)
                length = int.from_bytes(first, "little")
                if len(first) < 8 or length > min(MAX_HEADER, size - 8):
                    raise AnvilError(f"{path}: not a safetensors file, or one that was cut short; use another copy of it")
                text = file.read(length)
        except OSError as error:
            raise AnvilError(f"cannot read {path}: {error.strerror}") from None
        try:
            header = json.loads(text)
            self.metadata = header.pop("__metadata__", {})
            self.entries = {name: (e["dtype"], tuple(e["shape"]), *e["data_offsets"]) for name, e in header.items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            raise AnvilError(f"{path}: its header is not that of a safetensors file; use another copy of it") from None
        self.data = np.memmap(self.path, np.uint8, "r", 8 + length) if size > 8 + length else np.zeros(0, np.uint8)
        for name, (dtype, shape, begin, end) in self.entries.items():
            if dtype not in TYPES:
                raise AnvilError(f"{path}: tensor {name} is {dtype}, expected one of {', '.join(TYPES)}")
            if not 0 <= begin <= end <= len(self.data) or end - begin != math.prod(shape) * np.dtype(TYPES[dtype]).itemsize:
                raise AnvilError(f"{path}: tensor {name} does not fit its place; the file is damaged, use another copy of it")

    def names(self):
        return list(self.entries)

    def tensor(self, name, as_torch):
        """A copy of a tensor. Without torch, bf16 becomes float32, which is exact."""
        import numpy as np

        dtype, shape, begin, end = self.entries[name]
        array = np.array(self.data[begin:end]).view(TYPES[dtype]).reshape(shape)
        if as_torch:
            import torch

            tensor = torch.from_numpy(array.view("<i2") if dtype in ("BF16", "U16") else array)
            return tensor.view(torch.bfloat16) if dtype == "BF16" else tensor.view(torch.uint16) if dtype == "U16" else tensor
        if dtype == "BF16":
            array = (array.astype("<u4") << 16).view("<f4")
        return array


def index_of(folder, name):
    """{file: its tensors} for NAME.safetensors, or for the files that NAME.safetensors.index.json lists."""
    index = folder / f"{name}.safetensors.index.json"
    if (folder / f"{name}.safetensors").exists() or not index.exists():
        return {f"{name}.safetensors": None}
    files = {}
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict):
        raise AnvilError(f"{index}: expected a weight_map; use another copy of it")
    for tensor, file in where.items():
        files.setdefault(str(file), []).append(tensor)
    return files


class Checkpoint:
    """A folder with weights: a run, one of its checkpoints, an export, a folder of transformers, or an adapter.

    path, step (None if the folder is no checkpoint), config (config.json), state, flags (train_config.json: the flags of
    the run), tokenizer (the path of tokenizer.json, or None), base (of an adapter, or None: the Checkpoint that it is
    merged into, which is where the adapter's config says, or `base`).
    """

    def __init__(self, path, base=None):
        path = pathlib.Path(path)
        if not path.is_dir():
            raise AnvilError(f"{path}: no such folder; expected a run's, a checkpoint's, or one with model.safetensors")
        if not (path / "config.json").exists() and not (path / ADAPTER).exists():
            found = [folder for folder in checkpoints(path) if why_incomplete(folder) is None]
            if not found:
                raise AnvilError(f"{path}: no config.json in it, and no complete checkpoint of a run")
            path = found[-1]
        self.path = path
        if (path / "manifest.json").exists():
            why = why_incomplete(path)
            if why:
                raise AnvilError(f"{path}: {why}; take another checkpoint")
            self.step = read_json(path / "manifest.json").get("step")
        else:
            self.step = None
        self.base = None
        if (path / ADAPTER).exists() and not (path / "model.safetensors").exists():
            where = base or read_json(path / ADAPTER).get("base_model_name_or_path")
            if not where or not pathlib.Path(where).is_dir():
                raise AnvilError(f"{path}: an adapter of {where}, which is no folder here; give base=, the folder of that model")
            self.base = Checkpoint(where)
        elif base is not None:
            raise AnvilError(f"{path}: base= is for an adapter, and this folder has none")
        self.config = read_json(path / "config.json") if (path / "config.json").exists() else self.base.config
        self.state = read_json(path / "state.json") if (path / "state.json").exists() else {}
        self.flags = read_json(path / "train_config.json") if (path / "train_config.json").exists() else {}
        self.tokenizer = path / "tokenizer.json" if (path / "tokenizer.json").exists() else None

    def __repr__(self):
        return f"Checkpoint({str(self.path)!r})"

    def _files(self, name):
        for file, tensors in index_of(self.path, name).items():
            opened = TensorFile(self.path / file)
            missing = [tensor for tensor in tensors or () if tensor not in opened.entries]
            if missing:
                raise AnvilError(f"{opened.path}: tensor {missing[0]} is missing; use another copy of the folder")
            yield opened, tensors or opened.names()

    def tensors(self, framework=None):
        """{name: tensor} with the names and layouts of the files (doc/formats.md), an adapter's of its base.

        framework: "torch", "numpy", or None: torch if it is installed."""
        as_torch = chosen(framework)
        if self.base:
            return self._merged_into(self.base.tensors("torch" if as_torch else "numpy"))
        return {name: file.tensor(name, as_torch) for file, names in self._files("model") for name in names}

    def _merged_into(self, weights):
        """Adds (alpha / rank) B A to each matrix that has an adapter; the type of the weights stays."""
        import numpy as np

        config, file = read_json(self.path / ADAPTER), TensorFile(self.path / "adapter_model.safetensors")
        for name in REFUSED:
            if config.get(name):
                raise AnvilError(f'{self.path / ADAPTER}: "{name}": {config[name]}, which is not applied: merge it with peft')
        if config.get("bias", "none") != "none" or config.get("peft_type") != "LORA":
            raise AnvilError(f"{self.path / ADAPTER}: expected an adapter with peft_type LORA and bias none")
        rank = config["r"]
        scale = config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank)
        pairs = {}
        for name in file.names():
            found = re.fullmatch(r"base_model\.model\.(.*)\.lora_([AB])\.weight", name)
            if not found or found[1] + ".weight" not in weights:
                raise AnvilError(f"{file.path}: tensor {name} belongs to no matrix of {self.base.path}")
            pairs.setdefault(found[1] + ".weight", {})[found[2]] = file.tensor(name, False).astype(np.float32)
        for name, pair in pairs.items():
            if len(pair) < 2:  # what is missing is zero
                continue
            a, b, weight = pair["A"], pair["B"], weights[name]
            added = np.float32(scale) * (b @ a if a.shape[0] == b.shape[-1] else np.zeros(0, np.float32))
            if config.get("fan_in_fan_out"):
                added = added.T
            if added.shape != tuple(weight.shape) or a.shape[0] != rank:
                raise AnvilError(
                    f"{file.path}: A {a.shape} and B {b.shape} of {name} {tuple(weight.shape)}: it is an adapter of another model"
                )
            if isinstance(weight, np.ndarray):
                weights[name] = weight + added
            else:
                weights[name] = (weight.float() + torch_or_none().from_numpy(np.ascontiguousarray(added))).to(weight.dtype)
        return weights

    def optimizer(self, framework=None):
        """{name: tensor}: m.NAME, v.NAME, master.NAME, joined from the files of all ranks; one-dimensional, as in the files."""
        import numpy as np

        as_torch, wholes = chosen(framework), {}
        for file, names in self._files("optimizer"):
            for name in names:
                found = re.fullmatch(r"(.*)\[(\d+):(\d+)\]", name)
                whole, begin = (found[1], int(found[2])) if found else (name, 0)
                wholes.setdefault(whole, []).append((begin, file.tensor(name, False).reshape(-1)))
        joined = {}
        for whole, parts in wholes.items():
            parts.sort(key=lambda part: part[0])
            end = 0
            for begin, values in parts:
                if begin != end:
                    raise AnvilError(f"{self.path}: {whole} has no elements {end} to {begin}; take another checkpoint")
                end += len(values)
            values = np.concatenate([values for _, values in parts])
            joined[whole] = torch_or_none().from_numpy(values) if as_torch else values
        return joined

    def verify(self):
        """Reads every file and compares its XXH3 with the manifest's (pip install xxhash)."""
        try:
            import xxhash
        except ImportError:
            raise AnvilError("verify() needs xxhash: pip install xxhash; or ./train_gpt eval --resume FOLDER") from None
        if self.step is None:
            raise AnvilError(f"{self.path}: no manifest.json in it, so nothing to compare with; expected a checkpoint")
        manifest = read_json(self.path / "manifest.json")
        said = manifest.pop("manifest_xxh3", None)
        text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        if xxhash.xxh3_64(text.encode()).hexdigest() != said:
            raise AnvilError(f"{self.path}: manifest.json is damaged; take another checkpoint")
        for name, record in manifest["files"].items():
            digest = xxhash.xxh3_64()
            with open(self.path / name, "rb") as file:
                while block := file.read(1 << 24):
                    digest.update(block)
            if digest.hexdigest() != record["xxh3"]:
                raise AnvilError(f"{self.path}: {name} is damaged; take another checkpoint")


def chosen(framework):
    if framework not in (None, "torch", "numpy"):
        raise AnvilError(f"framework={framework!r}: expected 'torch', 'numpy' or None")
    has_torch = framework != "numpy" and torch_or_none() is not None
    if framework == "torch" and not has_torch:
        raise AnvilError("framework='torch': torch is not installed: pip install torch, or take framework='numpy'")
    return has_torch


def why_incomplete(folder):
    """What is wrong with a checkpoint's folder, judged by the sizes of files; None if it is complete."""
    if not (folder / "manifest.json").exists():
        return "no manifest.json in it"
    try:
        manifest = read_json(folder / "manifest.json")
        version, sizes = manifest["format_version"], {name: record["bytes"] for name, record in manifest["files"].items()}
    except (AnvilError, KeyError, TypeError, AttributeError):
        return "manifest.json is damaged"
    if version != FORMAT_VERSION:
        return f"format_version {version} in manifest.json, and this package reads {FORMAT_VERSION}"
    for name, size in sizes.items():
        found = (folder / name).stat().st_size if (folder / name).exists() else 0
        if found != size:
            return f"{name} has {found} bytes, expected {size}"
    return None


def checkpoints(run):
    """The folders of a run's checkpoints, the newest last; an .old one is being replaced by a new one of its step."""
    found = [(re.fullmatch(r"step_(\d+)(\.old)?", path.name), path) for path in pathlib.Path(run).glob("step_*")]
    return [path for match, path in sorted((m for m in found if m[0]), key=lambda m: (int(m[0][1]), not m[0][2]))]


def load(path, framework=None, base=None):
    """The weights of a checkpoint, a run (its newest checkpoint), an exported folder, or an adapter's base with the adapter
    merged into it: {name: tensor}. base: the folder of that model, if it is not where the adapter's config says."""
    return Checkpoint(path, base).tensors(framework)
