"""Records nanochat's own fine-tuning in test/fixtures/interop/nanochat_sft.json, with which CI compares Anvil's.

    git clone https://github.com/karpathy/nanochat && git -C nanochat checkout 92d63d4
    pip install torch==2.13.0 numpy safetensors tiktoken rustbpe pyarrow filelock
    python scripts/make_nanochat_fixture.py nanochat            writes it, if it is missing or differs
    python scripts/make_nanochat_fixture.py nanochat --check    compares; exit code 1 on a difference

nanochat's scripts/chat_sft.py runs unchanged, in fp32 on the CPU: its tokenizer, its render_conversation, its packing, its
model, its loss, its optimizer and schedules. Only parts that need a network or a compiler are replaced: the data sets are
the conversations of test/python/nanochat_test.py, which also makes the base model and the tokenizer, torch.compile does
nothing, and wandb is not called. Stores the ids and masks of all conversations and the loss of each step. A second run,
from weights with changed last bits, shows how much rounding changes the losses.
"""

import argparse
import importlib
import json
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[1:1] = [str(ROOT / "python"), str(ROOT / "test/python")]
PATH = ROOT / "test/fixtures/interop/nanochat_sft.json"


def inside(nanochat, base):
    """Runs chat_sft in this process, and prints a JSON object as its last line."""
    import torch

    import nanochat_test as ours

    os.environ.update(NANOCHAT_BASE_DIR=str(base), NANOCHAT_DTYPE="float32")
    sys.path[0] = str(nanochat)  # so that `scripts` is nanochat's, not this folder
    os.chdir(base)
    torch.set_num_threads(1)
    torch.compile = lambda model=None, **_: model if model is not None else lambda function: function
    sys.modules["wandb"] = types.ModuleType("wandb")
    gpt = importlib.import_module("nanochat.gpt")
    tasks = importlib.import_module("tasks.common")

    class Conversations(tasks.Task):
        def __init__(self, **_):
            super().__init__()

        def num_examples(self):
            return len(ours.conversations())

        def get_example(self, index):
            return {"messages": ours.conversations()[index]}

    for module, name in (("smoltalk", "SmolTalk"), ("mmlu", "MMLU"), ("gsm8k", "GSM8K")):
        setattr(importlib.import_module(f"tasks.{module}"), name, Conversations)
    batches, losses, forward = [], [], gpt.GPT.forward

    def recorded(self, idx, targets=None, **how):
        loss = forward(self, idx, targets, **how)
        if self.training and targets is not None:
            batches.append((idx.tolist(), targets.tolist()))
            losses.append(loss.item())
        return loss

    gpt.GPT.forward = recorded
    sys.argv = ["chat_sft", "--device-type=cpu", *(f"--{name}={value}" for name, value in ours.SFT_OF_NANOCHAT.items())]
    runpy.run_module("scripts.chat_sft", run_name="__main__")

    tokenizer = importlib.import_module("nanochat.tokenizer").get_tokenizer()
    rendered = [tokenizer.render_conversation({"messages": messages}) for messages in ours.conversations()]
    ids = [[i if learned else ~i for i, learned in zip(*pair)] for pair in rendered]
    # Checks that the test's own packing makes the rows that the model was given.
    expected = ours.rows_of_nanochat(ids)
    for (x, y), first in zip(batches, range(0, len(expected), ours.SFT_B)):
        for tokens, targets, row in zip(x, y, expected[first : first + ours.SFT_B]):
            if tokens != [i if i >= 0 else ~i for i in row[:-1]] or targets != [max(i, -1) for i in row[1:]]:
                sys.exit("error: rows_of_nanochat() in test/python/nanochat_test.py is not what chat_sft packs")
    print(json.dumps({"ids": ids, "losses": losses[: ours.SFT_STEPS]}))


def run(nanochat, moved=False):
    import nanochat_test as ours

    with tempfile.TemporaryDirectory() as base:
        ours.save_for_nanochat(pathlib.Path(base), moved)
        done = subprocess.run([sys.executable, __file__, str(nanochat), "--inside", base], stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit(f"error: nanochat's chat_sft ended with exit code {done.returncode}, see above")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nanochat", type=pathlib.Path, help="a checkout of nanochat")
    parser.add_argument("--check", action="store_true", help="compare with the committed file, write nothing there")
    parser.add_argument("--inside", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    nanochat = arguments.nanochat.resolve()
    if not (nanochat / "scripts/chat_sft.py").exists():
        sys.exit(f"error: {nanochat} has no scripts/chat_sft.py: expected a checkout of github.com/karpathy/nanochat")
    if arguments.inside:
        inside(nanochat, arguments.inside)
        return
    import anvil.nanochat
    import nanochat_test as ours

    found = subprocess.run(["git", "-C", nanochat, "rev-parse", "HEAD"], stdout=subprocess.PIPE, text=True, check=False).stdout.strip()
    if not found.startswith(anvil.nanochat.COMMIT):
        sys.exit(f"error: {nanochat} is at {found[:7] or 'no commit'}, expected {anvil.nanochat.COMMIT}, which we follow")
    made, moved = run(nanochat), run(nanochat, moved=True)
    furthest = lambda others: max(abs(a - b) / b for a, b in zip(others, made["losses"]))  # noqa: E731
    print(f"from weights that differ by 2^-23 of their size, nanochat's losses differ by at most {furthest(moved['losses']):.1e} (relative)")
    committed = json.loads(PATH.read_text()) if PATH.exists() else {"ids": [], "losses": []}
    same = made["ids"] == committed["ids"] and furthest(committed["losses"]) <= ours.SFT_TOLERANCE
    if same:
        print(f"{PATH.name}: the committed one agrees")
    elif arguments.check:
        sys.exit(f"error: {PATH.name} differs; if that is meant, run this script without --check and commit")
    else:
        PATH.write_text(json.dumps(made, separators=(",", ":")) + "\n")
        print(f"written: {PATH}")


if __name__ == "__main__":
    main()
