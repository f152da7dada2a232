#!/usr/bin/env python3
"""Checks that adapters (LoRA) learn in train_gpt as in PEFT, and that each reads the other's.

    V/bin/python dev/interop/check_adapters.py        run by dev/interop/check_interop.sh, which makes V; exit code 1 on a difference

With random tiny models, GPT-2, Llama, Qwen2 and Qwen3, saved by transformers: PEFT loads the adapters with which train_gpt begins and
trains them for twenty steps on the same rows, with AdamW and clipping. Losses, norms and adapters must be train_gpt's but for
rounding. PEFT and transformers load train_gpt's exports, with the same logits; train_gpt evaluates and merges the adapter that PEFT
saves.
"""

import json
import pathlib
import sys
import tempfile

import differences
import numpy as np
import peft
import safetensors.torch
import torch
import transformers
from differences import check, run

T, B, STEPS, RATE = 32, 4, 20, 3e-3
TARGETS = {"all": "qkv,projection,up,down", "attention": "qkv,projection"}

def records(out, kind):
    lines = (json.loads(line) for line in (out / "log.jsonl").read_text().splitlines())
    return [record for record in lines if record["type"] == kind]


def make_models():
    torch.manual_seed(7)
    sizes = dict(vocab_size=256, bos_token_id=None, eos_token_id=None, initializer_range=0.2)
    grouped = dict(
        max_position_embeddings=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, pad_token_id=None, **sizes,
    )  # fmt: skip
    none = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    gpt2 = transformers.GPT2Config(n_positions=64, n_embd=48, n_layer=2, n_head=4, **none, **sizes)
    yield "gpt2", transformers.GPT2LMHeadModel(gpt2), "all"
    yield "llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(**grouped)), "all"
    yield "qwen2", transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**grouped)), "all"
    yield "qwen3", transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**grouped, head_dim=16, tie_word_embeddings=True)), "attention"


def trained_by_peft(source, begin, rows):
    """PEFT's model after the steps, and the loss and norm of each."""
    model = peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(source), begin, is_trainable=True)
    model.train()
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    steps = []
    for step in range(STEPS):
        batch = rows[step * B : (step + 1) * B]
        logits = model(input_ids=batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        steps.append((loss.item(), norm.item()))
    return model.eval(), steps


def logits_of(model, rows):
    with torch.no_grad():
        return model.eval()(input_ids=rows[:B, :-1]).logits.double()


def distance(a, b):
    return ((a - b).norm() / b.norm()).item()


def check_model(name, model, targets, program, data, rows, scratch):
    source, begin, trained = scratch / name, scratch / f"{name}_begin", scratch / f"{name}_run"
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p) * 0.1)
    model.save_pretrained(source)
    flags = ["--init-from", source, *data, "--lora-rank", 4, "--lora-alpha", 6, "--lora-targets", TARGETS[targets]]
    flags += ["--learning-rate", RATE, "--lr-schedule", "constant", "--warmup-steps", 0, "--no-shuffle"]
    run(program, *flags, "--steps", 0, "--out-dir", begin)
    run(program, *flags, "--steps", STEPS, "--out-dir", trained)
    theirs, want = trained_by_peft(source, begin / "step_00000000", rows)
    got = [(record["loss"], record["norm"]) for record in records(trained, "step")]
    # Sums of other orders, by a unit or two in a step, which later steps may add up.
    for what, i in (("losses", 0), ("norms", 1)):
        worst = max(abs(a[i] - b[i]) / b[i] for a, b in zip(got, want, strict=True))
        check(f"{name}: {what} of {STEPS} steps are PEFT's", worst <= STEPS * 2.0**-23, f"{worst:.1e}")
    check(f"{name}: it learns", want[-1][0] < want[0][0], f"{want[0][0]:.4f} to {want[-1][0]:.4f}")

    checkpoint, exported, merged = trained / f"step_{STEPS:08}", scratch / f"{name}_peft", scratch / f"{name}_merged"
    run(program, "export", "--resume", trained, "--format", "peft", "--out-dir", exported)
    run(program, "export", "--resume", trained, "--out-dir", merged)
    ours = safetensors.torch.load_file(exported / "adapter_model.safetensors")
    state = peft.get_peft_model_state_dict(theirs)
    check(f"{name}: the adapter's tensors", sorted(ours) == sorted(state), f"{len(ours)} and {len(state)}")
    # AdamW divides an element by its own size, so those with a gradient near zero differ by more than their roundings.
    worst = max(distance(ours[key].double(), state[key].double()) for key in ours)
    check(f"{name}: and their values", worst <= 1e-4, f"{worst:.1e}")
    wanted = logits_of(theirs, rows)
    bare = logits_of(transformers.AutoModelForCausalLM.from_pretrained(source), rows)
    check(f"{name}: an adapter changes the model", distance(bare, wanted) > 1e-2, f"{distance(bare, wanted):.1e}")
    for what, folder in (("checkpoint", checkpoint), ("export", exported)):
        base = transformers.AutoModelForCausalLM.from_pretrained(source)
        apart = distance(logits_of(peft.PeftModel.from_pretrained(base, folder), rows), wanted)
        check(f"{name}: PEFT loads the {what}", apart <= 1e-5, f"{apart:.1e}")
    whole = transformers.AutoModelForCausalLM.from_pretrained(merged)
    apart = distance(logits_of(whole, rows), wanted)
    check(f"{name}: transformers loads the merged model", apart <= 1e-5, f"{apart:.1e}")

    saved, again = scratch / f"{name}_saved", scratch / f"{name}_again"
    theirs.save_pretrained(saved)
    run(program, "export", "--init-from", saved, "--out-dir", again)
    apart = distance(logits_of(transformers.AutoModelForCausalLM.from_pretrained(again), rows), wanted)
    check(f"{name}: train_gpt merges the adapter that PEFT saves", apart <= 1e-5, f"{apart:.1e}")


def main():
    transformers.utils.logging.disable_progress_bar()
    program = pathlib.Path("train_gpt").resolve()
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        run("data/tokenize", "--stories", 20000, "--tokenizer", "byte", "--out", scratch / "data")
        shard = scratch / "data/train_000000.bin"
        tokens = torch.from_numpy(np.fromfile(shard, "<u2", offset=1024).astype(np.int64))
        rows = torch.stack([tokens[i * T : (i + 1) * T + 1] for i in range(STEPS * B)])
        data = ["--train-data", shard, "--val-data", scratch / "data/val_*.bin", "--seq-len", T, "--batch-size", B]
        data += ["--sample-tokens", 0, "--val-tokens", 1024, "--checkpoint-every", 0, "--device", "cpu", "--dtype", "fp32"]
        for name, model, targets in make_models():
            check_model(name, model, targets, program, data, rows, scratch)
    print(f"adapters: {differences.count} differences")
    return differences.count > 0


if __name__ == "__main__":
    sys.exit(main())
