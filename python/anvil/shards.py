"""Token shards, the .bin files with training data: see doc/formats.md and llmc/data/shards.h."""

import os
import pathlib
import tempfile

from .errors import AnvilError

HEADER_BYTES, MAX_TOKENS = 1024, 2**31 - 1
# (magic, version): (type of tokens, whether a mask follows)
KINDS = {
    (20240520, 1): ("<u2", False), (20240520, 2): ("<u2", True),
    (20240801, 7): ("<u4", False), (20240801, 8): ("<u4", True),
}  # fmt: skip


class Shard:
    """tokens: a read-only memory-mapped array, uint16 or uint32. has_mask: whether some tokens are not learned."""

    def __init__(self, path, tokens, bits):
        self.path, self.tokens, self._bits = path, tokens, bits

    has_mask = property(lambda self: self._bits is not None)

    def __len__(self):
        return len(self.tokens)

    def __repr__(self):
        return f"Shard({str(self.path)!r}, {len(self)} tokens{', with a mask' if self.has_mask else ''})"

    @property
    def learned(self):
        """Booleans, one per token; None without a mask: all are learned."""
        return self.learned_between(0, len(self)) if self.has_mask else None

    def learned_between(self, begin, end):
        """The same for tokens[begin:end], reading only that part of the file; all true without a mask."""
        import numpy as np

        begin, end, _ = slice(begin, end).indices(len(self))
        if not self.has_mask:
            return np.ones(max(end - begin, 0), bool)
        bits = np.unpackbits(self._bits[begin // 8 : (end + 7) // 8], bitorder="little")
        return bits[begin % 8 : begin % 8 + max(end - begin, 0)].astype(bool)


def read_shard(path):
    import numpy as np

    path = pathlib.Path(path)
    try:
        size = path.stat().st_size
        header = np.fromfile(path, "<i4", 3)
    except OSError as error:
        raise AnvilError(f"cannot read {path}: {error.strerror}") from None
    kind = KINDS.get(tuple(header[:2].tolist()))
    if kind is None:
        found = " and ".join(map(str, header[:2].tolist())) or "an empty file"
        raise AnvilError(f"{path}: not a token shard: expected magic 20240520 and version 1 or 2, or 20240801 and 7 or 8, found {found}; "
                         "data/tokenize makes them from text")  # fmt: skip
    dtype, has_mask = kind
    n = int(header[2]) if len(header) > 2 else 0
    token_bytes = n * np.dtype(dtype).itemsize
    expected = HEADER_BYTES + token_bytes + ((n + 7) // 8 if has_mask else 0)
    if n < 1 or size != expected:
        raise AnvilError(f"{path}: its header says {n} tokens, {expected} bytes, and it has {size}; "
                         "it was cut short or is damaged, make it again")  # fmt: skip
    tokens = np.memmap(path, dtype, "r", HEADER_BYTES, n)
    bits = np.memmap(path, np.uint8, "r", HEADER_BYTES + token_bytes) if has_mask else None
    return Shard(path, tokens, bits)


def write_shard(path, tokens, learned=None, vocab_size=None):
    """Writes integers, uint16 if all fit (or vocab_size ids do), else uint32; learned: booleans, one for each token.

    The file is whole or not there."""
    import numpy as np

    path, tokens = pathlib.Path(path), np.asarray(tokens)
    if tokens.ndim != 1 or not 1 <= len(tokens) <= MAX_TOKENS or tokens.dtype.kind not in "iu":
        raise AnvilError(f"{path}: expected 1 to {MAX_TOKENS} integers in one dimension, found {tokens.dtype} of shape {tokens.shape}")
    least, most = int(tokens.min()), int(tokens.max())
    if least < 0 or most >= (vocab_size or 2**31):
        raise AnvilError(f"{path}: token {least if least < 0 else most}: expected 0 to {(vocab_size or 2**31) - 1}")
    if learned is not None:
        learned = np.asarray(learned)
        if learned.dtype != bool or learned.shape != tokens.shape:
            raise AnvilError(f"{path}: learned is {learned.dtype} of shape {learned.shape}, expected bool of shape {tokens.shape}")
    is_small = (vocab_size or most + 1) <= 2**16
    magic, version = (20240520, 1) if is_small else (20240801, 7)
    header = np.zeros(HEADER_BYTES // 4, "<i4")
    header[:3] = magic, version + (learned is not None), len(tokens)
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, suffix=".tmp", delete=False) as file:
            try:
                os.chmod(file.name, 0o666 & ~_umask())
                file.write(header.tobytes())
                for begin in range(0, len(tokens), 1 << 24):
                    file.write(tokens[begin : begin + (1 << 24)].astype("<u2" if is_small else "<u4").tobytes())
                if learned is not None:
                    file.write(np.packbits(learned, bitorder="little").tobytes())
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise AnvilError(f"cannot write {path}: {error.strerror}") from None


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
