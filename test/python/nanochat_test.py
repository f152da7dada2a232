"""python/anvil/nanochat.py: models and tokenizers made to nanochat's format, in and out again.

    PYTHONPATH=python python3 test/python/nanochat_test.py       needs ./train_gpt and ./data/tokenize (or ANVIL_PROGRAMS)

The format is written down here a second time, from nanochat's own code. Once, on 2026-11-24, that code itself was compared (dev/LOG.md).
Fine-tuning is compared with what nanochat's chat_sft did with the same model and conversations: dev/fixtures/make_nanochat_fixture.py.
"""

import base64
import json
import os
import pathlib
import pickle
import random
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import anvil
import anvil.nanochat
from anvil_test import ROOT, TINY, TOKENIZE, TRAIN, Case, needs

# Of vocabulary 400 padded to 448, in the shapes of nanochat's GPT: values are embedded in layers 0 and 2 of three.
SIZES = {"sequence_len": 512, "vocab_size": 400, "n_layer": 3, "n_head": 4, "n_kv_head": 2, "n_embd": 32, "window_pattern": "SSL"}
FIXTURES = ROOT / "test/fixtures/tokenizers"


def random_model():
    import torch

    torch.manual_seed(3)
    C, KV, rows = 32, 16, 448
    shapes = {"transformer.wte.weight": (rows, C), "lm_head.weight": (rows, C), "resid_lambdas": (3,), "x0_lambdas": (3,)}
    shapes.update({"smear_gate.weight": (1, 24), "smear_lambda": (1,), "backout_lambda": (1,)})
    for i in range(3):
        h = f"transformer.h.{i}."
        shapes.update({h + "attn.c_q.weight": (C, C), h + "attn.c_k.weight": (KV, C), h + "attn.c_v.weight": (KV, C)})
        shapes.update({h + "attn.c_proj.weight": (C, C), h + "mlp.c_fc.weight": (128, C), h + "mlp.c_proj.weight": (C, 128)})
        if i != 1:
            shapes.update({f"value_embeds.{i}.weight": (rows, KV), h + "attn.ve_gate.weight": (2, 12)})
    state = {name: 0.3 * torch.randn(shape) + (1.0 if name == "resid_lambdas" else 0.0) for name, shape in shapes.items()}
    for name in state:
        if "wte" in name or "value_embeds" in name:
            state[name] = state[name].bfloat16()
    return state


def save(folder, state, sizes=None, step=12):
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    torch.save(state, folder / f"model_{step:06d}.pt")
    (folder / f"meta_{step:06d}.json").write_text(json.dumps({"step": step, "model_config": sizes or SIZES, "loop_state": {}}))


def encoding():
    """A tokenizer that nanochat's own libraries made: rustbpe's ranks."""
    import tiktoken

    about = json.loads((FIXTURES / "nanochat.tiktoken.json").read_text())
    lines = [line.split() for line in (FIXTURES / "nanochat.tiktoken").read_text().splitlines()]
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    split = json.loads((FIXTURES / "nanochat.json").read_text())["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    return tiktoken.Encoding("rustbpe", pat_str=split, mergeable_ranks=ranks, special_tokens=about["special_tokens"])


# Fine-tuning, of a model and conversations that are made here. Windows are 128 tokens of 192; rates are a tenth of
# nanochat's, or rounding errors would grow too fast to tell them from others.
SFT_T, SFT_B, SFT_STEPS = 192, 2, 20
SFT_SIZES = {**SIZES, "vocab_size": 409, "sequence_len": SFT_T}
SFT_OF_NANOCHAT = {
    "model-tag": "d3", "max-seq-len": SFT_T, "device-batch-size": SFT_B, "total-batch-size": SFT_B * SFT_T, "load-optimizer": 0,
    "embedding-lr": 0.03, "unembedding-lr": 0.0008, "matrix-lr": 0.002, "init-lr-frac": 1,
    "mmlu-epochs": 0, "gsm8k-epochs": 0, "eval-tokens": SFT_B * SFT_T, "eval-every": -1, "chatcore-every": -1,
    # Its loop counts a batch ahead: the last is not trained on, and the rate is that of the batch after the next.
    "num-iterations": SFT_STEPS + 2,
}  # fmt: skip
# The same here: 0.5 of 22 steps is 0.55 of 20; rates are as given, not scaled to the batch.
SFT_OF_OURS = {
    "seq_len": SFT_T, "batch_size": SFT_B, "total_batch_size": SFT_B * SFT_T, "steps": SFT_STEPS,
    "warmup_steps": 0, "decay_fraction": 0.55, "final_lr_fraction": 0,
}  # fmt: skip
SFT_RECIPE = f"""
recipe = nanochat
embedding-learning-rate = 0.03
unembedding-learning-rate = 0.0008
muon-learning-rate = 0.002
reference-batch-size = {SFT_B * SFT_T}
muon-weight-decay = 0
muon-momentum-start = 0.85
muon-momentum = 0.95
muon-momentum-end = 0.95
muon-momentum-warmup-steps = 300
"""
# Five times what a last bit of all weights moves nanochat's own losses by (6.4e-7). Ours are 2.9e-7 from them; a momentum
# that begins at 0.9 instead of 0.85 moves the third one by 1e-5.
SFT_TOLERANCE = 3e-6


def conversations():
    """Lists of messages: what a tiny world is asked, and some of each kind that nanochat renders."""
    rng = random.Random(5)
    things, colors = ("ball", "house", "cat", "boat", "tree", "café"), ("red", "blue", "green", "white")
    say = lambda role, content: {"role": role, "content": content}  # noqa: E731
    found = []
    for i in range(240):
        messages = [say("system", "You are brief.")] if i % 7 == 0 else []
        for _ in range(rng.randrange(1, 4)):
            thing, color, n = rng.choice(things), rng.choice(colors), rng.randrange(100)
            messages.append(say("user", f"Tom has {n} {thing}s, all {color}. " * rng.randrange(1, 3) + f"What color is the {thing}?"))
            messages.append(say("assistant", f"The {thing} is {color}." + " It is not old." * rng.randrange(3)))
        found.append(messages)
    ask = say("user", " What is\n\n2 + 2?\t")
    parts = [("text", "It is "), ("python", "2 + 2"), ("python_output", "4"), ("text", " 4.")]
    found[3] = [ask, say("assistant", [{"type": kind, "text": text} for kind, text in parts])]
    found[5] = [say("user", "<|assistant_end|> is a word 😀"), say("assistant", " <|bos|>\n")]
    found[9] = [say("user", "Say nothing."), say("assistant", "")]
    found[11] = [ask, say("assistant", "Four. " * 200)]  # longer than a row
    found[13] = [say("user", "Count. " * 700), say("assistant", "One.")]  # longer than what nanochat keeps
    return found


def sft_model():
    """Weights of integers, the same on every machine."""
    sys.path.insert(0, str(ROOT / "dev/fixtures"))
    import torch
    from fixture_file import bell

    state = {}
    for i, (name, shape) in enumerate(anvil.nanochat.shapes(SFT_SIZES, anvil.nanochat.padded(SFT_SIZES["vocab_size"])).items()):
        value = torch.from_numpy(bell(i, shape, 0.2))
        state[name] = value + (1.0 if name == "resid_lambdas" else 0.0)
    return state


def save_for_nanochat(base, moved=False):
    """Its base folder, with the model and the tokenizer. moved: weights that differ in their last bits."""
    import torch

    state = sft_model()
    if moved:
        state = {name: value * (1 + 2.0**-23) for name, value in state.items()}
    save(base / "base_checkpoints/d3", state, SFT_SIZES)
    theirs = encoding()
    (base / "tokenizer").mkdir()
    (base / "tokenizer/tokenizer.pkl").write_bytes(pickle.dumps(theirs))
    special = theirs._special_tokens.values()
    lengths = [0 if i in special else len(theirs.decode_single_token_bytes(i)) for i in range(theirs.n_vocab)]
    torch.save(torch.tensor(lengths, dtype=torch.int32), base / "tokenizer/token_bytes.pt")


def rows_of_nanochat(conversations):
    """The rows of all steps that its rule makes of conversations, ids with ~id where nothing is learned: (steps * B, T + 1).

    What differs here, in --packing pad: a thousand conversations wait instead of 100; one that is longer than a row is
    cropped instead of waiting for ever; and an epoch ends before the next one begins."""
    order, capacity, bos = list(range(len(conversations))), SFT_T + 1, conversations[0][0]
    random.Random(42).shuffle(order)
    waiting, coming, rows = [], iter(order), []
    while len(rows) < SFT_STEPS * SFT_B:
        row = []
        while len(row) < capacity:
            waiting += [conversations[next(coming)] for _ in range(100 - len(waiting))]
            fitting = [one for one in waiting if len(one) <= capacity - len(row)]
            if not fitting:
                row += [bos] * (capacity - len(row))
                break
            best = max(fitting, key=len)
            waiting.pop(next(i for i, one in enumerate(waiting) if one is best))
            row += best
        rows.append(row)
    return rows


class Parts(Case):
    def test_they_are_those_of_the_architecture(self):
        run = anvil.start(self.scratch / "a", TRAIN, **{**TINY, **self.data(), "architecture": "nanochat", "steps": 0}).wait()
        config = anvil.Checkpoint(run.out_dir).config
        self.assertEqual({name: config[name] for name in anvil.nanochat.PARTS}, anvil.nanochat.PARTS)


@needs("torch", "safetensors")
class Models(Case):
    def imported(self, state, **how):
        save(self.scratch / "d3", state)
        anvil.nanochat.import_checkpoint(self.scratch / "d3", self.scratch / "in", **how)
        return self.scratch / "in"

    def test_loss_of_the_formulas(self):
        import numpy as np
        import torch

        sys.path.insert(0, str(ROOT / "dev/fixtures"))
        import reference_gpt as reference

        state = random_model()
        folder = self.imported({"_orig_mod." + name: value for name, value in state.items()})
        # Rows of 256 tokens, where a short window, 128, is one; the last layer sees all whatever its letter.
        tokens = np.random.default_rng(9).integers(0, 400, 4 * 256 + 1)
        for kind in ("train", "val"):
            anvil.write_shard(self.scratch / f"{kind}.bin", tokens)
        (self.scratch / "recipe.conf").write_text(SFT_RECIPE)
        run = anvil.start(
            self.scratch / "run", TRAIN, init_from=folder, recipe=self.scratch / "recipe.conf", train_data=self.scratch / "train.bin", val_data=self.scratch / "val.bin",
            val_tokens=0, steps=0, seq_len=512, batch_size=1, sample_tokens=0, threads=1, dtype="fp32", device="cpu",
        ).wait()  # fmt: skip
        config = reference.Config(
            L=3, NH=4, NKV=2, HS=8, C=32, F=128, V=400, norm="rmsnorm_plain", eps=2.0**-23, biases=False, positions="rotary",
            base=1e5, clockwise=True, qk_norm=True, qk_scale=1.2, windows=(128, 128, -1), mlp="relu_squared", tied=False,
            embedding_norm=True, value_embeds=True, lambdas=True, smear=True, backout=True, softcap="tanh", cap=15.0,
        )  # fmt: skip
        params = {}
        for name, value in state.items():
            value, name = value.double(), name.removeprefix("transformer.")
            params[name] = value[:400] if value.shape[0] == 448 else value
        for i in range(3):
            h = f"h.{i}.attn."
            params[h + "c_attn.weight"] = torch.cat([params.pop(h + part + ".weight") for part in ("c_q", "c_k", "c_v")])
        x = torch.from_numpy(tokens[:1024].astype(np.int64)).view(2, 512)
        y = torch.from_numpy(tokens[1:1025].astype(np.int64)).view(2, 512)
        want = torch.nn.functional.cross_entropy(reference.forward(config, params, x).flatten(0, 1), y.flatten()).item()
        # Rounding errors of single losses, some 2^-22 of each, mostly cancel in a mean of a thousand.
        self.assertLessEqual(abs(run.log("val")[-1]["loss"] - want), 4 * 2**-23 * want)

    def test_out_again_all_is_as_it_was(self):
        import torch

        state = random_model()
        for name in state:
            if state[name].shape[0] == 448:
                state[name][400:] = 0
        folder = self.imported(state)
        base = self.scratch / "base"
        anvil.nanochat.export_checkpoint(folder, base, "mine")
        back = torch.load(base / "base_checkpoints/mine/model_000000.pt", weights_only=True)
        self.assertEqual(set(back), set(state))
        for name in state:
            self.assertTrue(torch.equal(back[name], state[name].float()), name)
        meta = json.loads((base / "base_checkpoints/mine/meta_000000.json").read_text())
        self.assertEqual(meta["model_config"], SIZES)
        self.assertLessEqual({"step", "val_bpb", "device_batch_size", "max_seq_len", "total_batch_size", "loop_state"}, set(meta))
        self.refused("is not empty", anvil.nanochat.export_checkpoint, folder, base, "mine")
        self.refused("is not empty", anvil.nanochat.import_checkpoint, self.scratch / "d3", folder)

    def test_a_run_of_ours(self):
        import torch

        self.train("a", architecture="nanochat", dtype="bf16", num_layers=2)
        checkpoint = anvil.Checkpoint(self.scratch / "a")
        checkpoint.tokenizer.unlink()  # of bytes, which nanochat has not
        (checkpoint.path / "manifest.json").unlink()
        anvil.nanochat.export_checkpoint(checkpoint.path, self.scratch / "base")
        state = torch.load(self.scratch / "base/base_checkpoints/d2/model_000000.pt", weights_only=True)
        weights = anvil.load(checkpoint.path)
        self.assertEqual(state["transformer.wte.weight"].dtype, torch.bfloat16)
        self.assertEqual(state["lm_head.weight"].dtype, torch.float32)
        self.assertTrue(torch.equal(state["transformer.h.1.attn.c_k.weight"], weights["transformer.h.1.attn.c_attn.weight"][32:64].float()))

    def test_what_is_refused(self):
        state, folder = random_model(), self.scratch / "d3"
        load = lambda **how: anvil.nanochat.import_checkpoint(folder, self.scratch / "in", **how)  # noqa: E731
        self.refused("no model_STEP.pt in it", load)
        save(folder, {name: value for name, value in state.items() if name != "smear_lambda"})
        self.refused("smear_lambda is missing: not the format of nanochat's commit", load)
        save(folder, {**state, "skip": state["smear_lambda"]})
        self.refused("skip is not expected", load)
        save(folder, state, {**SIZES, "n_embd": 64})
        self.refused("resid|is .*, expected .*, as meta_000012.json has it", load)
        save(folder, state, {"n_layer": 3})
        self.refused("expected a model_config with sizes", load)
        save(folder, state)
        self.refused("no step 5; it has 12", load, step=5)
        import torch

        class Evil:
            def __reduce__(self):
                return os.mkdir, (str(self.scratch / "run"),)

        Evil.scratch = self.scratch
        for what in (b"PK nothing", b"", pickle.dumps(Evil()), [state], {1: state["smear_lambda"]}, {"smear_lambda": 1.5}, Evil()):
            if isinstance(what, bytes):
                (folder / "model_000012.pt").write_bytes(what)
            else:
                torch.save(what, folder / "model_000012.pt")
            with self.assertRaises(anvil.AnvilError) as refused:
                load()
            self.assertRegex(str(refused.exception), "torch cannot read it|expected a dictionary of names and tensors")
            self.assertNotRegex(str(refused.exception), "weights_only|\n")
        self.assertFalse((self.scratch / "run").exists())
        for wrong in ({"n_layer": "3"}, {"n_head": 0}, {"n_embd": 1.5}, {"vocab_size": True}):
            save(folder, state, {**SIZES, **wrong})
            self.refused("expected a model_config with sizes", load)
        self.assertFalse((self.scratch / "in").exists())
        (self.scratch / "flat.conf").write_text("architecture = nanochat\nqk-scale = 1\n")
        self.train("a", model=self.scratch / "flat.conf")
        self.refused("qk-scale is 1.0, and nanochat's is 1.2", anvil.nanochat.export_checkpoint, self.scratch / "a", self.scratch / "b")
        self.train("c")
        self.refused("a gpt2: nanochat has no such model", anvil.nanochat.export_checkpoint, self.scratch / "c", self.scratch / "b")


@needs("tiktoken", "torch")
class Tokenizers(Case):
    def test_in_and_out(self):
        import torch

        theirs, folder = encoding(), self.scratch / "tokenizer"
        folder.mkdir()
        (folder / "tokenizer.pkl").write_bytes(pickle.dumps(theirs))
        ours = anvil.nanochat.read_tokenizer(folder)
        (self.scratch / "tokenizer.json").write_text(json.dumps(ours))
        # As the engine reads and writes the same ranks, and the ids that theirs gives a text.
        text = (FIXTURES / "mixed.txt").read_text(encoding="utf-8", errors="surrogateescape").encode("utf-8", "surrogateescape")
        (self.scratch / "text.txt").write_bytes(text.decode("utf-8", "ignore").encode())
        for name, tokenizer in (("a", self.scratch / "tokenizer.json"), ("b", FIXTURES / "nanochat.tiktoken")):
            subprocess.run(
                [TOKENIZE, self.scratch / "text.txt", "--tokenizer", tokenizer, "--val-fraction", "0.001", "--out", self.scratch / name],
                check=True, stdout=subprocess.DEVNULL,
            )  # fmt: skip
        a, b = (json.loads((self.scratch / name / "tokenizer.json").read_text()) for name in "ab")
        for part in ("added_tokens", "pre_tokenizer", "normalizer"):
            self.assertEqual(a[part], b[part])
        self.assertEqual((a["model"]["vocab"], a["model"]["merges"]), (b["model"]["vocab"], b["model"]["merges"]))
        got = anvil.read_shard(self.scratch / "a/train_000000.bin").tokens.tolist()
        want = theirs.encode_ordinary((self.scratch / "text.txt").read_text())
        got = [token for token in got if token != theirs.encode_single_token("<|bos|>")]
        self.assertEqual(got, want[: len(got)])
        self.assertGreater(len(got), 1000)

        anvil.nanochat.write_tokenizer(ours, self.scratch / "out", "there")
        back = pickle.loads((self.scratch / "out/tokenizer.pkl").read_bytes())
        self.assertEqual(back.__getstate__(), theirs.__getstate__())
        lengths = torch.load(self.scratch / "out/token_bytes.pt")
        wanted = [0 if i in theirs._special_tokens.values() else len(theirs.decode_single_token_bytes(i)) for i in range(theirs.n_vocab)]
        self.assertEqual((lengths.dtype, lengths.tolist()), (torch.int32, wanted))

    def test_a_pickle_that_would_run_something_is_refused(self):
        class Evil:
            def __reduce__(self):
                return os.mkdir, (str(witness),)

        witness = self.scratch / "run"
        (self.scratch / "tokenizer.pkl").write_bytes(pickle.dumps(Evil()))
        self.refused("not the pickle of a tiktoken Encoding.*it names posix.mkdir", anvil.nanochat.read_tokenizer, self.scratch)
        self.assertFalse(witness.exists())
        (self.scratch / "tokenizer.pkl").write_bytes(b"hello")
        self.refused("not the pickle of a tiktoken Encoding", anvil.nanochat.read_tokenizer, self.scratch)
        self.refused("cannot read .*none", anvil.nanochat.read_tokenizer, self.scratch / "none")
        self.refused("expected all 256 bytes", self.of_ranks, {b"a": 0})
        self.refused("has <.bos.>, and this has not", anvil.nanochat.write_tokenizer, self.bytes_alone(), self.scratch / "out", "x")

    def of_ranks(self, ranks):
        import tiktoken

        (self.scratch / "tokenizer.pkl").write_bytes(pickle.dumps(tiktoken.Encoding("x", pat_str="a", mergeable_ranks=ranks, special_tokens={})))
        return anvil.nanochat.read_tokenizer(self.scratch)

    def bytes_alone(self):
        return self.of_ranks({bytes([byte]): byte for byte in range(256)})


@needs("torch", "safetensors", "tiktoken")
class FineTuning(Case):
    def test_ids_masks_and_losses_are_those_of_chat_sft(self):
        import numpy as np

        recorded = json.loads((ROOT / "test/fixtures/interop/nanochat_sft.json").read_text())
        save_for_nanochat(self.scratch)
        lines = "".join(json.dumps({"messages": messages}) + "\n" for messages in conversations())
        (self.scratch / "chats.jsonl").write_text(lines)
        folder = self.scratch / "d3"
        anvil.nanochat.import_checkpoint(self.scratch / "base_checkpoints/d3", folder, tokenizer=self.scratch / "tokenizer")
        # The last conversation is the validation's.
        self.tokenize(
            self.scratch / "chats.jsonl", "--format", "chat", "--tokenizer", folder / "tokenizer.json",
            "--val-fraction", "0.0001", "--out", self.scratch / "chats",
        )  # fmt: skip
        bos, ours = recorded["ids"][0][0], []
        for kind in ("train", "val"):
            shard = anvil.read_shard(self.scratch / f"chats/{kind}_000000.bin")
            for token, learned in zip(shard.tokens.astype(int).tolist(), shard.learned):
                if ~token == bos:
                    ours.append([])
                ours[-1].append(token if learned else ~token)
        self.assertEqual(len(ours), len(recorded["ids"]))
        for one, want in zip(ours, recorded["ids"]):
            self.assertEqual(one[:2048], want)  # nanochat keeps no more of a conversation
        self.assertGreater(max(map(len, ours)), 2048)

        # The same rows: a shard of T + 1 tokens is one, read in the order of the names.
        for i, row in enumerate(rows_of_nanochat(recorded["ids"])):
            row = np.array(row)
            anvil.write_shard(self.scratch / f"rows_{i:06d}.bin", np.where(row < 0, ~row, row), row >= 0)
        (self.scratch / "recipe.conf").write_text(SFT_RECIPE)
        run = anvil.start(
            self.scratch / "run", TRAIN, init_from=folder, recipe=self.scratch / "recipe.conf", train_data=self.scratch / "rows_*.bin", val_data="", shuffle=False,
            sample_tokens=0, threads=1, dtype="fp32", device="cpu", **SFT_OF_OURS,
        ).wait()  # fmt: skip
        got = [record["loss"] for record in run.log("step")]
        self.assertEqual(len(got), SFT_STEPS)
        for step, (loss, want) in enumerate(zip(got, recorded["losses"])):
            self.assertLessEqual(abs(loss - want), SFT_TOLERANCE * want, step)


if __name__ == "__main__":
    unittest.main()
