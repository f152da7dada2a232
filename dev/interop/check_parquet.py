#!/usr/bin/env python3
"""Checks that data/tokenize makes the same tokens from .parquet files as from the same documents in .jsonl.

    python3 dev/interop/check_parquet.py       needs pyarrow and ./data/tokenize; exit code 1 on a difference

Covers all compressions, one row group and many, both string types, dictionaries, bytes, and rows without a text.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import pyarrow
import pyarrow.parquet

# A row longer than a batch of 1 MB, several alphabets, and empty rows.
DOCUMENTS = [f"document {i}: " + "Ünïcödé 文字 \n\t\"'\\" * (i % 50) for i in range(3000)] + ["long " * 400_000, "", None]


def tokenize(path, out):
    command = ["data/tokenize", path, "--val-fraction", "0.2", "--out", out]
    # data/tokenize must start this python3.
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PATH": path})
    return [(pathlib.Path(out) / name).read_bytes() for name in ("train_000000.bin", "val_000000.bin")]


def main():
    os.chdir(pathlib.Path(__file__).resolve().parents[2])
    strings = pyarrow.array(DOCUMENTS)
    columns = {
        "strings": strings,
        "large strings": strings.cast(pyarrow.large_string()),
        "bytes": strings.cast(pyarrow.binary()),
        "dictionary": strings.dictionary_encode(),
    }
    files = [("strings", {"compression": name}) for name in ("none", "snappy", "gzip", "zstd")]
    files += [("strings", {"row_group_size": 100}), ("strings", {"version": "1.0", "data_page_version": "2.0"})]
    files += [(name, {}) for name in ("large strings", "bytes", "dictionary")]
    with tempfile.TemporaryDirectory() as folder:
        lines = "".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS)
        pathlib.Path(folder, "in.jsonl").write_text(lines, encoding="utf-8")
        expected = tokenize(f"{folder}/in.jsonl", f"{folder}/out")
        failed = 0
        for name, options in files:
            table = pyarrow.table({"url": ["x"] * len(DOCUMENTS), "text": columns[name]})
            pyarrow.parquet.write_table(table, f"{folder}/in.parquet", **options)
            same = tokenize(f"{folder}/in.parquet", f"{folder}/out") == expected
            failed += not same
            print(f"{'ok' if same else 'FAILED':8}{name} {options}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
