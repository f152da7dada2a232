"""Anvil in Python: its checkpoints, token shards, logs and runs.

    import anvil
    weights = anvil.load("run/d4")                            {name: torch.Tensor}; NumPy arrays where there is no torch;
                                                              of an adapter: its base's, merged
    shard = anvil.read_shard("data/x/train_000000.bin")       shard.tokens is memory-mapped, shard.learned None or booleans
    anvil.write_shard("mine.bin", tokens, learned=mask)
    records = anvil.read_log("run/d4")                        anvil.log_frame("run/d4"): a pandas.DataFrame
    run = anvil.start(out_dir="run/d4", depth=4)              ./train_gpt as a process of its own
    for record in run.records("val"): print(record["step"], record["loss"])
    run.stop()

This is not a second engine: ./train_gpt trains models, and modeling_anvil.py, which `./train_gpt export` writes with the
weights, computes them in PyTorch. See doc/python.md.
"""

from .checkpoint import Checkpoint, checkpoints, load
from .errors import AnvilError
from .log import follow_log, log_frame, read_log
from .run import Run, find_program, run_command, start
from .shards import Shard, read_shard, write_shard

__all__ = [
    "AnvilError", "Checkpoint", "Run", "Shard", "checkpoints", "find_program", "follow_log", "load", "log_frame",
    "read_log", "read_shard", "run_command", "start", "write_shard",
]  # fmt: skip
