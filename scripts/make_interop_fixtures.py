#!/usr/bin/env python3
"""Makes test/fixtures/interop/: tiny models as Hugging Face's transformers writes them, with their logits.

    python3 -m venv V && V/bin/pip install torch==2.13.0 transformers
    V/bin/python scripts/make_interop_fixtures.py            writes them
    V/bin/python scripts/make_interop_fixtures.py --check    makes them again and compares; exit code 1 on a difference

scripts/check_interop.sh runs --check: weights must be the committed ones bit for bit, and the logits of today's transformers
theirs up to rounding. config.json, to which each version adds fields, is not compared. Each folder has the files of save_pretrained(), in one of the variants that occur on the hub:

    gpt2          fp32, tied head, prefix `transformer.`
    gpt2_bare     like the hub's gpt2: half precision, without the prefix, with masks among the weights, in two files
    llama         bf16, grouped queries, untied head
    llama_tied    fp32, tied head, another rotary base and epsilon
    mistral       fp32, a Llama by another name: grouped queries, no window
    nanochat      fp32, grouped queries, another rotary base, epsilon and softcap
    llama31       fp32, rotary scaling of Llama 3.1, heads wider than C / heads
    mistral_window  bf16, windows of three tokens in every layer
    qwen2         fp32, biases of queries, keys and values, a window in the last layer
    qwen3         fp32, QK-norm with gains, heads narrower than C / heads
    smollm3       fp32, one layer in four without positions, tied head

and logits.safetensors: tokens (2, T) and their logits, computed by transformers in fp32.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

V, T, C, L = 37, 6, 8, 2
COMMITTED = pathlib.Path(__file__).resolve().parent.parent / "test/fixtures/interop"
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 36], [9, 2, 6, 0, 35, 8]], dtype=torch.int32)


def gpt2(**changes):
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=V, n_positions=T + 2, n_embd=C, n_layer=L, n_head=2, bos_token_id=None, eos_token_id=None, **changes
        )
    )


def llama(**changes):
    sizes = dict(vocab_size=V, max_position_embeddings=T, hidden_size=C, intermediate_size=12, num_hidden_layers=L)
    config = transformers.LlamaConfig(
        **sizes, num_attention_heads=2, num_key_value_heads=1, bos_token_id=None, eos_token_id=None, **changes
    )
    return transformers.LlamaForCausalLM(config)


def mistral(**changes):
    sizes = dict(vocab_size=V, max_position_embeddings=T, hidden_size=C, intermediate_size=12, num_hidden_layers=L)
    config = transformers.MistralConfig(
        **sizes, num_attention_heads=2, num_key_value_heads=1, sliding_window=None, bos_token_id=None, eos_token_id=None, **changes
    )
    return transformers.MistralForCausalLM(config)


def nanochat(**changes):
    sizes = dict(vocab_size=V, max_position_embeddings=T, hidden_size=C, intermediate_size=12, num_hidden_layers=L)
    config = transformers.NanoChatConfig(
        **sizes, num_attention_heads=2, num_key_value_heads=1, bos_token_id=None, eos_token_id=None, pad_token_id=None, **changes
    )
    return transformers.NanoChatForCausalLM(config)


def grouped(name, **changes):
    """A tiny model with grouped queries of a family, by its name in transformers."""
    sizes = dict(vocab_size=V, max_position_embeddings=T, hidden_size=C, intermediate_size=12, num_hidden_layers=L)
    heads = dict(num_attention_heads=2, num_key_value_heads=1, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    config = getattr(transformers, name + "Config")(**sizes | heads | changes)
    return getattr(transformers, name + "ForCausalLM")(config)


LLAMA_31 = {
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}  # fmt: skip


def randomize(model, dtype):
    """Random weights, also for gains and biases, large enough that each affects the logits."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(1.0 if p.dim() == 1 and "weight" in name else 0.0, 0.3)
    return model.to(dtype).eval()


def without_prefix(folder):
    """Rewrites a folder like the hub's gpt2: names without prefix, and masks; in two files with an index."""
    path = folder / "model.safetensors"
    tensors = {name.removeprefix("transformer."): t for name, t in load_file(path).items()}
    path.unlink()
    mask = torch.tril(torch.ones(T + 2, T + 2)).view(1, 1, T + 2, T + 2)
    for layer in range(L):
        tensors[f"h.{layer}.attn.bias"] = mask.bool() if layer else mask.half()
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4, dtype=torch.float16)
    names = sorted(tensors)
    files = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, some in files.items():
        save_file({name: tensors[name].contiguous() for name in some}, folder / file, {"format": "pt"})
    index = {"metadata": {"total_size": 0}, "weight_map": {n: f for f, some in files.items() for n in some}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")


def make(out):
    """Writes all folders and the logits."""
    torch.manual_seed(1234)
    models = {
        "gpt2": randomize(gpt2(layer_norm_epsilon=1e-3, n_inner=20), torch.float32),
        "gpt2_bare": randomize(gpt2(), torch.float16),
        "llama": randomize(llama(), torch.bfloat16),
        "llama_tied": randomize(llama(tie_word_embeddings=True, rope_theta=50.0, rms_norm_eps=1e-3), torch.float32),
        "nanochat": randomize(
            nanochat(rms_norm_eps=1e-2, final_logit_softcapping=2.0, rope_parameters={"rope_type": "default", "rope_theta": 50.0}),
            torch.float32,
        ),
        "mistral": randomize(mistral(), torch.float32),
        "llama31": randomize(grouped("Llama", head_dim=8, rope_parameters=LLAMA_31), torch.float32),
        "mistral_window": randomize(grouped("Mistral", sliding_window=3), torch.bfloat16),
        "qwen2": randomize(grouped("Qwen2", use_sliding_window=True, sliding_window=2, max_window_layers=1), torch.float32),
        "qwen3": randomize(grouped("Qwen3", head_dim=2), torch.float32),
        "smollm3": randomize(grouped("SmolLM3", num_hidden_layers=5), torch.float32),
    }
    tensors = {"tokens": TOKENS}
    for name, model in models.items():
        model.save_pretrained(out / name)
        with torch.no_grad():
            # Loaded again, because converting a Llama to bf16 and back loses digits of its rotary frequencies.
            again = type(model).from_pretrained(out / name, dtype=torch.float32)
            tensors[name] = again(input_ids=TOKENS.long()).logits.contiguous()
        if name == "gpt2_bare":
            without_prefix(out / name)
        (out / name / "generation_config.json").unlink(missing_ok=True)
        config = out / name / "config.json"
        config.write_text(config.read_text().rstrip() + "\n")
    save_file(tensors, out / "logits.safetensors")
    for path in out.rglob("*.safetensors"):
        path.chmod(0o644)


def differences(made):
    """Tensors in which the committed fixtures differ from those in `made`."""
    for path in sorted(made.rglob("*.safetensors")):
        name = path.relative_to(made)
        wanted, found = load_file(path), load_file(COMMITTED / name) if (COMMITTED / name).is_file() else {}
        # Two rounding errors of fp32 for each term of the longest chain of sums: five layers of about 100 terms.
        rounding = 1000 * torch.finfo(torch.float32).eps / 2 if name.name == "logits.safetensors" else 0
        for tensor in sorted(wanted.keys() | found.keys()):
            a, b = wanted.get(tensor), found.get(tensor)
            if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
                yield f"{name}: {tensor} is missing, or of another shape or type"
            elif (off := (a.double() - b.double()).abs().max()) > rounding * a.double().abs().max():
                yield f"{name}: {tensor} differs by {off:.3g}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed fixtures, write nothing there")
    if not parser.parse_args().check:
        make(COMMITTED)
        return
    with tempfile.TemporaryDirectory() as folder:
        make(pathlib.Path(folder))
        found = list(differences(pathlib.Path(folder)))
    print("\n".join(found) if found else "ok      test/fixtures/interop is what transformers makes")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
