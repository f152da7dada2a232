"""The package python/anvil against the programs: what they write it reads, what it writes they read.

    PYTHONPATH=python python3 test/python/anvil_test.py       needs ./train_gpt and ./data/tokenize (or ANVIL_PROGRAMS)

What needs NumPy, torch, pandas or xxhash is skipped where these are missing; with ANVIL_TEST_ALL=1 that is a failure.
"""

import importlib.util
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

import anvil

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAMS = os.environ.get("ANVIL_PROGRAMS") or f"{ROOT}/"
TRAIN, TOKENIZE = PROGRAMS + "train_gpt", PROGRAMS + "data/tokenize"
TINY = dict(
    num_layers=2, num_heads=2, channels=32, seq_len=16, batch_size=2, steps=4, warmup_steps=0, val_tokens=0,
    sample_tokens=0, threads=1, seed=7, dtype="fp32", device="cpu",
)  # fmt: skip


def needs(*modules):
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return unittest.skipIf(missing and not os.environ.get("ANVIL_TEST_ALL"), f"no {', '.join(missing)}")


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.scratch = pathlib.Path(folder.name)

    def refused(self, pattern, function, *arguments, **named):
        with self.assertRaises(anvil.AnvilError) as caught:
            function(*arguments, **named)
        self.assertRegex(str(caught.exception), pattern)
        self.assertNotIn("\n", str(caught.exception))
        return caught.exception

    def tokenize(self, *arguments):
        subprocess.run([TOKENIZE, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)

    def data(self):
        self.tokenize("--stories", 4000, "--tokenizer", "byte", "--out", self.scratch / "data")
        return {f"{kind}_data": self.scratch / f"data/{kind}_000000.bin" for kind in ("train", "val")}

    def train(self, name, **flags):
        run = anvil.start(self.scratch / name, TRAIN, **{**TINY, **self.data(), **flags})
        self.addCleanup(run.kill)
        return run.wait()


@needs("numpy")
class Shards(Case):
    def test_round_trips_and_bytes_of_the_format(self):
        import numpy as np

        rng, path = np.random.default_rng(5), self.scratch / "a.bin"
        for most in (2**16, 2**31):
            for n in (1, 7, 8, 9, 4001):
                for has_mask in (False, True):
                    tokens = rng.integers(0, most, n)
                    tokens[0] = most - 1
                    learned = rng.integers(0, 2, n).astype(bool) if has_mask else None
                    anvil.write_shard(path, tokens, learned)
                    width, raw = 2 if most == 2**16 else 4, path.read_bytes()
                    self.assertEqual(len(raw), 1024 + width * n + (-(-n // 8) if has_mask else 0))
                    for i in (0, n // 2, n - 1):
                        self.assertEqual(int.from_bytes(raw[1024 + width * i :][:width], "little"), tokens[i])
                        if has_mask:
                            self.assertEqual(raw[1024 + width * n + i // 8] >> i % 8 & 1, learned[i])
                    shard = anvil.read_shard(path)
                    self.assertIsInstance(shard.tokens, np.memmap)
                    self.assertTrue(np.array_equal(shard.tokens, tokens))
                    self.assertEqual(shard.has_mask, has_mask)
                    if has_mask:
                        self.assertTrue(np.array_equal(shard.learned, learned))
                        self.assertTrue(np.array_equal(shard.learned_between(3, 6), learned[3:6]))
                    else:
                        self.assertIsNone(shard.learned)
                        self.assertTrue(shard.learned_between(0, n).all())
        anvil.write_shard(path, [1, 2], vocab_size=70000)
        self.assertEqual(anvil.read_shard(path).tokens.dtype.itemsize, 4)
        self.assertEqual([p.name for p in self.scratch.iterdir()], ["a.bin"])

    def test_the_mask_is_that_of_tokenize(self):
        talk = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4."}]
        (self.scratch / "talk.jsonl").write_text((json.dumps({"messages": talk}) + "\n") * 40)
        train = ("--train-tokenizer", "--vocab-size", 270)
        self.tokenize(self.scratch / "talk.jsonl", "--format", "chat", *train, "--out", self.scratch / "chat")
        words = json.loads((self.scratch / "chat/tokenizer.json").read_text())
        texts = {i: text for text, i in words["model"]["vocab"].items()}
        texts.update({added["id"]: added["content"] for added in words["added_tokens"]})
        shard = anvil.read_shard(self.scratch / "chat/train_000000.bin")
        self.assertTrue(shard.has_mask)
        said = "".join(texts[token] for token in shard.tokens[shard.learned].tolist())
        self.assertEqual(said.replace("4.<|assistant_end|>", ""), "")
        self.assertGreater(len(said), 0)

    def test_train_gpt_reads_what_is_written_here(self):
        import numpy as np

        data, losses = self.data(), {}
        shard = anvil.read_shard(data["val_data"])
        odd = np.arange(len(shard)) % 2 == 1
        for name, learned in (("plain", None), ("all", np.ones(len(shard), bool)), ("odd", odd), ("even", ~odd)):
            path = self.scratch / f"{name}.bin"
            anvil.write_shard(path, np.array(shard.tokens), learned)
            run = anvil.start(self.scratch / name, TRAIN, **{**TINY, **data, "val_data": path, "steps": 0}).wait()
            losses[name] = run.log("val")[-1]["loss"]
        self.assertEqual((self.scratch / "plain.bin").read_bytes(), data["val_data"].read_bytes())
        self.assertEqual(losses["all"], losses["plain"])
        self.assertNotEqual(losses["odd"], losses["even"])
        # Of rows of 16 targets each, eight are odd and eight even, so the whole is the mean of the halves.
        self.assertAlmostEqual((losses["odd"] + losses["even"]) / 2, losses["plain"], places=6)

    def test_what_is_refused(self):
        import numpy as np

        path = self.scratch / "a.bin"
        self.refused("cannot read .*a.bin: No such file", anvil.read_shard, path)
        path.write_bytes(b"")
        self.refused("not a token shard: .* found an empty file", anvil.read_shard, path)
        path.write_bytes(b"hello, world" * 100)
        self.refused("not a token shard: expected magic 20240520", anvil.read_shard, path)
        for learned in (None, np.array([True, False, True])):
            anvil.write_shard(path, [1, 2, 3], learned)
            whole = path.read_bytes()
            for raw in (whole[:-1], whole + b"x", whole[:8]):
                path.write_bytes(raw)
                self.refused("its header says|not a token shard", anvil.read_shard, path)
        for tokens in ([], [[1]], [0.5], [-1], [2**31]):
            self.refused("expected", anvil.write_shard, path, tokens)
        self.refused("token 9: expected 0 to 8", anvil.write_shard, path, [9], vocab_size=9)
        self.refused("expected bool of shape", anvil.write_shard, path, [9], [1])
        self.refused("expected bool of shape", anvil.write_shard, path, [9, 8], [True])
        self.refused("cannot write .*: No such file", anvil.write_shard, self.scratch / "no/a.bin", [1])
        self.assertEqual(path.read_bytes(), whole[:8])  # as it was


class Logs(Case):
    def test_records_that_count(self):
        lines = [
            {"type": "start", "config": {}}, {"type": "step", "step": 1, "loss": 3}, {"type": "step", "step": 2, "loss": "nan"},
            {"type": "sample", "step": 2, "prompt": "nan", "text": "inf"}, {"type": "step", "step": 3, "loss": 9},
            {"type": "resume", "step": 2}, {"type": "step", "step": 3, "loss": "-inf"}, {"type": "end", "step": 3},
        ]  # fmt: skip
        texts = [json.dumps(line) for line in lines]
        texts.insert(5, '{"type": "step", "st')
        (self.scratch / "log.jsonl").write_text("\n".join([*texts, '{"type": "step", "step": 4']))
        records = anvil.read_log(self.scratch)
        self.assertEqual([r["type"] for r in records], ["start", "step", "step", "sample", "resume", "step", "end"])
        steps = anvil.read_log(self.scratch / "log.jsonl", "step")
        self.assertEqual([r["step"] for r in steps], [1, 2, 3])
        self.assertTrue(math.isnan(steps[1]["loss"]))
        self.assertEqual(steps[2]["loss"], -math.inf)
        self.assertEqual((records[3]["prompt"], records[3]["text"]), ("nan", "inf"))
        self.refused("cannot read .*log.jsonl: No such file", anvil.read_log, self.scratch / "no")

    @needs("pandas")
    def test_frame(self):
        (self.scratch / "log.jsonl").write_text('{"type": "val", "step": 5, "loss": 2.5}\n{"type": "val", "step": 9, "loss": "inf"}\n')
        frame = anvil.log_frame(self.scratch, "val")
        self.assertEqual(frame["loss"].to_dict(), {5: 2.5, 9: math.inf})
        self.assertEqual(len(anvil.log_frame(self.scratch)), 0)

    def test_follow_sees_lines_in_pieces_and_a_log_that_begins_anew(self):
        path, is_over, seen = self.scratch / "log.jsonl", threading.Event(), []
        pieces = ['{"type": "start"}\n{"type": "st', 'ep", "step": 1}\n', None, '{"type": "start", "n": 2}\n', '{"type": "end"}']
        stream = anvil.follow_log(self.scratch, is_over.is_set, poll=0.001)
        gives_up = threading.Timer(30, is_over.set)  # so that a reader that waits for ever fails
        gives_up.start()
        self.addCleanup(gives_up.cancel)
        # Each piece is written when the reader has seen the one before.
        for piece in pieces:
            if piece is None:
                path.unlink()
                path.write_text("")
                threading.Timer(0.05, path.write_text, ('{"type": "x"}\n',)).start()
                seen.append(next(stream))
                continue
            with open(path, "a") as file:
                file.write(piece)
            if piece.endswith("\n") or piece.startswith('{"type": "start"'):
                seen.append(next(stream))
        is_over.set()
        seen += list(stream)
        self.assertEqual([r["type"] for r in seen], ["start", "step", "x", "start"])  # the last line has no end


class Runs(Case):
    def test_watch_a_run_from_start_to_end(self):
        run = anvil.start(self.scratch / "a", TRAIN, **{**TINY, **self.data(), "steps": 6, "checkpoint_every": 3})
        self.addCleanup(run.kill)
        kinds = [record["type"] for record in run.records()]
        self.assertEqual((kinds[0], kinds[-1], kinds.count("step")), ("start", "end", 6))
        self.assertFalse(run.is_running())
        run.wait()
        self.assertIn("step 6/6", run.output)
        self.assertEqual(run.log(), anvil.read_log(self.scratch / "a"))
        self.assertEqual([p.name for p in anvil.checkpoints(self.scratch / "a")], ["step_00000003", "step_00000006"])
        # One that goes on where it ended: its records come after those that are there.
        more = anvil.start(self.scratch / "a", TRAIN, resume="auto", steps=8)
        self.addCleanup(more.kill)
        self.assertEqual([r["step"] for r in more.records("step")], list(range(1, 9)))
        self.assertEqual([r["step"] for r in anvil.Run(self.scratch / "a").records("step")], list(range(1, 9)))

    def test_stop_saves(self):
        run = anvil.start(self.scratch / "a", TRAIN, **{**TINY, **self.data(), "steps": 10**6})
        self.addCleanup(run.kill)
        for record in run.records("step"):
            if record["step"] == 3:
                break
        self.assertTrue(run.is_running())
        self.refused("still running after 0.01 s", run.wait, 0.01)
        run.stop()
        end = run.log("end")[-1]
        self.assertRegex(end["reason"], "SIGTERM")
        self.assertEqual(anvil.checkpoints(self.scratch / "a")[-1].name, f"step_{end['step']:08d}")
        run.stop()  # again: nothing happens

    def test_what_goes_wrong_is_one_line(self):
        error = self.refused("train_gpt train: exit code 2: error: .*--no-such-flag", anvil.start, self.scratch / "a", TRAIN, no_such_flag=1)
        self.assertEqual(error.exit_code, 2)
        self.refused("exit code 2: error: .*no file matches", anvil.start, self.scratch / "a", TRAIN, train_data="none")
        run = anvil.start(self.scratch / "a", TRAIN, **{**TINY, **self.data(), "steps": 10**6})
        run.kill()
        self.refused("ended by SIGKILL", run.wait)
        self.refused("not started here, there is nothing to stop", anvil.Run(self.scratch / "a").stop)
        self.refused("train_gpt plan: exit code 2: error: ", anvil.run_command, "plan", TRAIN, gpu="abacus")
        self.assertIn("parameters", anvil.run_command("plan", TRAIN, depth=4, vocab_size=1000))

    def test_flags(self):
        from anvil.run import arguments_of

        flags = dict(seq_len=64, shuffle=False, dry_run=True, tokenizer=None, eval_tasks=["a", "b"], learning_rate=1e-3)
        expected = ["--seq-len=64", "--no-shuffle", "--dry-run", "--eval-tasks=a,b", "--learning-rate=0.001"]
        self.assertEqual(arguments_of(flags), expected)

    def test_the_command_anvil(self):
        from anvil.command import command_of

        kept = os.environ.get("ANVIL_TRAIN_GPT")
        self.addCleanup(lambda: os.environ.pop("ANVIL_TRAIN_GPT") if kept is None else os.environ.update(ANVIL_TRAIN_GPT=kept))
        os.environ["ANVIL_TRAIN_GPT"] = TRAIN
        self.assertEqual(command_of(["train", "--depth", "4"]), [str(pathlib.Path(TRAIN).resolve()), "train", "--depth", "4"])
        done = subprocess.run([sys.executable, "-c", "import anvil.command as c; c.main()", "--version"], capture_output=True, text=True)
        self.assertRegex(done.stdout, r"^train_gpt \d+\.\d+")
        os.environ["ANVIL_TRAIN_GPT"] = str(self.scratch / "none")
        done = subprocess.run([sys.executable, "-c", "import anvil.command as c; c.main()"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr.split(":")[0]), (2, "error"))

    def test_where_the_program_is_found(self):
        kept = {name: os.environ.get(name) for name in ("ANVIL_TRAIN_GPT", "PATH")}
        self.addCleanup(lambda: [os.environ.pop(k, None) if v is None else os.environ.update({k: v}) for k, v in kept.items()])
        for name in ("argument", "variable", "path"):
            (self.scratch / name).mkdir()
            (self.scratch / name / "train_gpt").write_text("#!/bin/sh\n")
            (self.scratch / name / "train_gpt").chmod(0o755)
        expected = {name: str((self.scratch / name / "train_gpt").resolve()) for name in ("argument", "variable", "path")}
        os.environ.update(ANVIL_TRAIN_GPT=expected["variable"], PATH=f"{self.scratch / 'path'}")
        self.assertEqual(anvil.find_program(expected["argument"]), expected["argument"])
        self.assertEqual(anvil.find_program(), expected["variable"])
        os.environ["ANVIL_TRAIN_GPT"] = str(self.scratch / "none")
        self.refused("none: no such program", anvil.find_program)
        del os.environ["ANVIL_TRAIN_GPT"]
        self.assertEqual(anvil.find_program(), expected["path"])
        os.environ["PATH"] = str(self.scratch)
        self.refused("is not found: build it with `make`", anvil.find_program, name="no_such_gpt")


@needs("numpy")
class Checkpoints(Case):
    def test_weights_of_every_architecture_and_the_optimizer(self):
        import numpy as np

        for name in ("gpt2", "llama", "nanochat", "stage-a"):
            with self.subTest(name):
                self.train(name, architecture=name, dtype="bf16", virtual_ranks=2, optimizer="adamw", recipe="gpt2")
                checkpoint = anvil.Checkpoint(self.scratch / name)
                self.assertEqual((checkpoint.step, checkpoint.path.name), (4, "step_00000004"))
                self.assertEqual((checkpoint.state["step"], checkpoint.flags["seed"]), (4, 7))
                self.assertTrue(checkpoint.tokenizer.exists())
                weights, states = checkpoint.tensors("numpy"), checkpoint.optimizer("numpy")
                self.assertGreater(len(list(checkpoint.path.glob("optimizer_*"))), 1)
                stored = {key[len("master.") :]: value for key, value in states.items() if key.startswith("master.")}
                # Weights are their stored in bf16, to nearest even: in our layout a matrix of GPT-2 is transposed, of
                # Llama cut; compared as sorted values, without the padding's zeros.
                words = np.concatenate([value for value in stored.values()]).view(np.uint32).astype(np.uint64)
                rounded = ((words + 0x7FFF + (words >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
                got = np.concatenate([value.reshape(-1) for value in weights.values()])
                self.assertEqual(got.dtype, np.float32)
                self.assertGreater(np.count_nonzero(got), 5000)
                self.assertTrue(np.array_equal(np.sort(got[got != 0]), np.sort(rounded[rounded != 0])))
                self.assertEqual({key for key in states if key[:2] == "m."}, {"m." + key for key in stored})

    def test_a_run_is_its_newest_complete_checkpoint(self):
        self.train("a", steps=6, checkpoint_every=2, keep=3)
        run = self.scratch / "a"
        self.assertEqual(anvil.Checkpoint(run).step, 6)
        (run / "step_00000006/state.json").write_text("{}")
        self.assertEqual(anvil.Checkpoint(run).step, 4)
        self.refused("step_00000006: state.json has 2 bytes, expected", anvil.Checkpoint, run / "step_00000006")
        (run / "step_00000004/manifest.json").write_text("[")
        self.refused("manifest.json is damaged", anvil.Checkpoint, run / "step_00000004")
        self.assertEqual(anvil.Checkpoint(run).step, 2)
        (run / "step_00000002").rename(run / "step_00000002.old")
        self.assertEqual(anvil.Checkpoint(run).step, 2)
        self.refused("no such folder", anvil.load, run / "none")
        self.refused("no complete checkpoint", anvil.load, self.scratch)
        self.refused("expected 'torch', 'numpy' or None", anvil.load, run, "jax")

    def test_an_adapter_is_read_merged(self):
        import numpy as np

        for name, dtype in (("gpt2", "fp32"), ("llama", "bf16")):
            with self.subTest(name):
                base, run, peft, merged = (self.scratch / f"{name}_{what}" for what in ("base", "run", "peft", "merged"))
                self.train(base.name, architecture=name, dtype=dtype)
                flags = dict(init_from=base, lora_rank=4, lora_alpha=6, learning_rate=0.01, dtype=dtype)
                sizes = dict.fromkeys(("num_layers", "num_heads", "channels"))
                self.train(run.name, **flags, **sizes)
                anvil.run_command("export", TRAIN, resume=run, format="peft", out_dir=peft)
                anvil.run_command("export", TRAIN, resume=run, out_dir=merged)
                expected, plain = anvil.load(merged, "numpy"), anvil.load(base, "numpy")
                self.assertTrue(any(not np.array_equal(expected[key], plain[key]) for key in plain))
                for folder in (run, anvil.Checkpoint(run).path, peft):
                    got = anvil.load(folder, "numpy")
                    self.assertEqual(set(got), set(expected))
                    for key, value in got.items():
                        # In bf16 the export rounds once more; sums of four products, a rounding each and one of the sum.
                        apart = 2.0**-8 if dtype == "bf16" else 6 * 2.0**-24
                        self.assertLessEqual(abs(value - expected[key]).max(), apart * abs(expected[key]).max(), key)
                if importlib.util.find_spec("torch"):
                    self.assertEqual({str(t.dtype) for t in anvil.load(peft, "torch").values()}, {f"torch.{'bfloat16' if dtype == 'bf16' else 'float32'}"})
                self.assertEqual(anvil.Checkpoint(peft).config["model_type"], name)
        config = json.loads((peft / "adapter_config.json").read_text())

        def refused(pattern, base=None, **changes):
            (peft / "adapter_config.json").write_text(json.dumps({**config, **changes}))
            self.refused(pattern, anvil.load, peft, base=base)

        refused("an adapter of no/such, which is no folder here; give base=", base_model_name_or_path="no/such")
        refused("belongs to no matrix of", base=self.scratch / "gpt2_base")
        refused('"use_dora": True, which is not applied', use_dora=True)
        refused("peft_type LORA", peft_type="IA3")
        refused("adapter of another model", r=2)
        self.refused("base= is for an adapter", anvil.load, base, base=peft)

    @needs("xxhash")
    def test_verify(self):
        self.train("a")
        checkpoint = anvil.Checkpoint(self.scratch / "a")
        checkpoint.verify()
        path = checkpoint.path / "model.safetensors"
        raw = bytearray(path.read_bytes())
        raw[-3] ^= 1
        path.write_bytes(raw)
        self.refused("model.safetensors is damaged", checkpoint.verify)

    def test_files_that_lie(self):
        self.train("a")
        path = anvil.Checkpoint(self.scratch / "a").path
        (path / "manifest.json").unlink()
        raw = (path / "model.safetensors").read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header = raw[8 : 8 + length]
        changes = [b"", raw[:7], raw[:100], raw[:-1], (2**40).to_bytes(8, "little") + raw[8:], raw[:8] + b"[" + raw[9:]]
        changes += [raw.replace(b'"F32"', b'"F8 "', 1), raw.replace(b'[0,', b'[9,', 1)]
        for changed in changes:
            self.assertNotEqual(changed, raw)
            (path / "model.safetensors").write_bytes(changed)
            self.refused("another copy|expected one of", anvil.load, path)
        self.assertIn(b"data_offsets", header)

    @needs("torch", "safetensors")
    def test_torch_has_what_safetensors_has(self):
        import safetensors.torch
        import torch

        for dtype in ("fp32", "bf16"):
            self.train(dtype, architecture="nanochat", dtype=dtype)
            path = anvil.Checkpoint(self.scratch / dtype).path
            got, want = anvil.load(path), safetensors.torch.load_file(path / "model.safetensors")
            self.assertEqual(list(got), list(anvil.load(path, "numpy")))
            self.assertEqual(set(got), set(want))
            for name in want:
                self.assertEqual(got[name].dtype, torch.float32 if dtype == "fp32" else torch.bfloat16)
                self.assertTrue(torch.equal(got[name], want[name]))
                self.assertTrue(torch.equal(torch.from_numpy(anvil.load(path, "numpy")[name]), want[name].float()))


if __name__ == "__main__":
    unittest.main()
