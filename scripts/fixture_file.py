"""Reference tensors: makes inputs from integers, writes safetensors files, and compares them.

Used by scripts/make_fixtures.py, which describes the fixtures.
"""

import json
import math
import struct
import zlib

import numpy as np
import torch

TORCH = "2.13.0"
EPS_F32 = 2.0**-23


# ---- inputs -----------------------------------------------------------------------------------------------------


def words(seed, n):
    """n words of splitmix64 from the state `seed` (Steele, Lea, Flood, OOPSLA 2014)."""
    z = np.uint64(seed) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def bell(seed, shape, scale=1.0):
    """Bell-shaped float32 in scale * (-4, 4), standard deviation 1.15: sums of a word's four 16-bit fields."""
    fields = words(seed, math.prod(shape)).astype("<u8").view("<u2").reshape(-1, 4)
    centered = fields.sum(axis=1, dtype=np.int64) - 131070
    return (centered.astype(np.float32) * (np.float32(scale) * np.float32(2.0**-15))).reshape(shape)


def dropout_key(seed, step, site):
    """dropout_key() of llmc/ops/dropout.h."""
    odd, most = 0x9E3779B97F4A7C15, 2**64 - 1

    def mix64(z):
        return int(words((z - odd) & most, 1)[0])

    state = mix64((mix64(seed) + step + 6 * odd) & most)  # random stream 6
    return mix64((mix64((state + odd) & most) + site * odd) & most)


def kept_by_dropout(key, first, shape, p):
    """1.0 for elements that dropout keeps, else 0.0, for the elements first, first + 1, ... under this key."""
    n = math.prod(shape)
    bits = words(key, (first + n) // 2 + 1).astype("<u8").view("<u4")[first : first + n]
    return (bits >= round(p * 2**32)).astype(np.float64).reshape(shape)


class Fixture:
    """A file that is being made. The seed of an input is a hash of the file's name and its own, so a new tensor changes no
    other. `seed`: the hash of the file's original name, if it was renamed."""

    def __init__(self, name, seed=None):
        self.name, self.arrays = name, {}
        self.first_seed = zlib.crc32(name.encode()) if seed is None else seed

    def seed(self, name):
        return zlib.crc32(f"/{name}".encode(), self.first_seed)

    def floats(self, name, *shape, scale=1.0, shift=0.0):
        return self.given(name, bell(self.seed(name), shape, scale) + np.float32(shift))

    def ints(self, name, *shape, below):
        values = (words(self.seed(name), math.prod(shape)) % np.uint64(below)).astype(np.int32).reshape(shape)
        self.arrays[name] = values
        return torch.from_numpy(values).long()

    def given(self, name, array):
        """Stores a float32 input, and returns it as a float64 leaf tensor."""
        assert array.dtype == np.float32 and name not in self.arrays
        self.arrays[name] = array
        return torch.from_numpy(array).double().requires_grad_()

    def want(self, name, tensor):
        """Stores a reference tensor."""
        assert tensor.dtype == torch.float64 and name not in self.arrays
        self.arrays[name] = np.ascontiguousarray(tensor.detach().numpy().astype(np.float32))


# ---- files ------------------------------------------------------------------------------------------------------


def save(path, arrays):
    """Writes safetensors: u64 length of the header, a JSON header, the tensors; 64-byte aligned and sorted by name."""
    header, offset = {"__metadata__": {"made_by": "scripts/make_fixtures.py", "torch": TORCH}}, 0
    for name, array in sorted(arrays.items()):
        dtype = {"float32": "F32", "int32": "I32"}[array.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in sorted(arrays.items()):
            file.write(array.astype(array.dtype.newbyteorder("<")).tobytes())


def load(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        dtype = {"F32": "<f4", "I32": "<i4"}[entry["dtype"]]
        arrays[name] = np.frombuffer(data[begin:end], dtype).reshape(entry["shape"])
    return arrays


def difference(name, committed, remade):
    """Describes the difference between two versions of a tensor; empty if it is within rounding."""
    if committed.dtype != remade.dtype or committed.shape != remade.shape:
        return f"{committed.dtype}{committed.shape} is committed, {remade.dtype}{remade.shape} was made"
    if np.array_equal(committed, remade, equal_nan=committed.dtype.kind == "f"):
        return ""
    if not name.startswith(("grad.", "want.")):
        return "an input differs, and inputs must be identical"
    old, new = committed.astype(np.float64), remade.astype(np.float64)
    allowed = EPS_F32 * (np.abs(old) + np.sqrt(np.mean(old**2)))
    worst = np.max(np.abs(old - new) / np.maximum(allowed, np.finfo(np.float32).tiny))
    return "" if worst <= 1 else f"off by {worst:.3g} times the float32 epsilon of |value| + rms"


def agrees(path, arrays):
    """Whether the file has these tensors, up to last bits, which may depend on the machine."""
    try:
        committed = load(path)
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return False
    return committed.keys() == arrays.keys() and not any(difference(n, committed[n], arrays[n]) for n in arrays)


def check(made, folder):
    """Prints every difference between the new fixtures and the committed ones; returns their number."""
    count = 0

    def report(text):
        nonlocal count
        count += 1
        print(text)

    for path in sorted(folder.glob("*.safetensors")):
        if path.stem not in made:
            report(f"{path.name}: committed, but this script does not make it")
    for stem, arrays in made.items():
        path = folder / f"{stem}.safetensors"
        try:
            committed = load(path)
        except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
            report(f"{path.name}: cannot be read: {error}")
            continue
        for name in sorted(committed.keys() | arrays.keys()):
            if name not in committed or name not in arrays:
                report(f"{path.name}: {name}: missing in the {'remade' if name in committed else 'committed'} file")
            elif text := difference(name, committed[name], arrays[name]):
                report(f"{path.name}: {name}: {text}")
    return count
