#!/usr/bin/env python3
"""Checks that no field of a config.json changes what a model computes in transformers and not in train_gpt.

    V/bin/python dev/interop/check_configs.py        run by dev/interop/check_interop.sh, which makes V; exit code 1 on a difference

Tiny models with random weights of each family, whose config.json is changed. The lists below have every field that transformers reads:
a followed one changes the loss of both programs alike, one at a time and several at random; a refused one is named in train_gpt's error;
the harmless ones, all at once, are accepted and change neither. A field that only a newer transformers has must be one of the three.
"""

import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import check_models
import differences
import safetensors.torch
import torch
import transformers
from check_models import loss_of, tokens_of
from differences import check, run

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM, TOKENIZE = ROOT / "train_gpt", ROOT / "data/tokenize"
T, V, RANDOM = check_models.T, 256, 5
FULL, SLIDING = "full_attention", "sliding_attention"
LLAMA = dict(
    vocab_size=V, max_position_embeddings=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, initializer_range=0.2,
)  # fmt: skip
SIZES = {
    "gpt2": dict(vocab_size=V, n_positions=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.2),
    "llama": LLAMA,
    "mistral": LLAMA | dict(sliding_window=9),
    "ministral": LLAMA | dict(head_dim=8, sliding_window=9, layer_types=[FULL, SLIDING, FULL]),
    "qwen2": LLAMA | dict(use_sliding_window=True, sliding_window=9, layer_types=[FULL, SLIDING, FULL]),
    "qwen3": LLAMA | dict(head_dim=16),
    "smollm3": LLAMA,
    "nanochat": LLAMA | dict(final_logit_softcapping=3.0),
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
PLAIN, YARN = {"rope_type": "default", "rope_theta": 500.0}, {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
STRETCHED = [
    dict(rope_parameters=LLAMA3 | {"rope_theta": 500.0}), dict(rope_scaling=LLAMA3),
    dict(rope_scaling=LLAMA3, rope_theta=500.0, rope_parameters={"rope_type": "default", "rope_theta": 1e3}),
    dict(rope_scaling=LLAMA3 | {"rope_theta": 70.0}, rope_theta=500.0, rope_parameters=PLAIN),
    dict(rope_parameters=YARN), dict(rope_scaling=YARN | {"beta_fast": 4, "beta_slow": 0.25}),
    dict(rope_scaling={"type": "yarn", "factor": 2.0, "attention_factor": 1.25, "beta_fast": None, "truncate": True}),
]  # fmt: skip
FOLLOWED_LLAMA = [
    dict(rms_norm_eps=0.01), dict(num_key_value_heads=1), dict(num_key_value_heads=4), dict(intermediate_size=32),
    dict(num_attention_heads=2, head_dim=16), dict(hidden_size=48, num_attention_heads=6, head_dim=8, num_key_value_heads=3),
    dict(tie_word_embeddings=True), dict(tie_word_embeddings=False), dict(rope_parameters=PLAIN), dict(rope_theta=500.0, rope_parameters=None),
    dict(rope_scaling={}, rope_theta=500.0, rope_parameters={"rope_type": "default", "rope_theta": 1e3}),
]  # fmt: skip
LAYERS = dict(layer_types=[SLIDING, FULL, SLIDING])
FEWER = dict(num_hidden_layers=2, layer_types=[FULL, FULL])
WINDOWS = [dict(use_sliding_window=True, sliding_window=6) | LAYERS, dict(use_sliding_window=True, layer_types=None, sliding_window=6, max_window_layers=1), FEWER]
FOLLOWED = {
    "gpt2": [
        dict(n_layer=1), dict(n_head=2), dict(n_embd=48), dict(n_inner=40), dict(layer_norm_epsilon=0.01), dict(tie_word_embeddings=False),
        dict(activation_function="gelu_pytorch_tanh"), dict(activation_function="gelu_fast"), dict(n_positions=32),
    ],
    "llama": [*FOLLOWED_LLAMA, *STRETCHED, dict(head_dim=16), dict(head_dim=None), dict(num_hidden_layers=2), dict(num_key_value_heads=None)],
    "mistral": [
        *FOLLOWED_LLAMA, *STRETCHED, FEWER, LAYERS | dict(head_dim=8), dict(sliding_window=5), dict(sliding_window=None), dict(head_dim=16),
    ],
    "ministral": [
        *FOLLOWED_LLAMA, *STRETCHED, FEWER, LAYERS, dict(sliding_window=5), dict(layer_types=None),
    ],
    "qwen2": [*FOLLOWED_LLAMA, *STRETCHED, *WINDOWS, dict(head_dim=16), dict(use_sliding_window=False, layer_types=None)],
    "qwen3": [*FOLLOWED_LLAMA, *STRETCHED, *WINDOWS, dict(head_dim=8)],
    "smollm3": [
        *FOLLOWED_LLAMA, *STRETCHED, dict(num_hidden_layers=2, layer_types=None, no_rope_layers=[0, 1]), dict(no_rope_layers=[1, 0, 1]),
        dict(no_rope_layers=None, no_rope_layer_interval=2), dict(head_dim=16),
        dict(use_sliding_window=True, sliding_window=6, no_rope_layers=[1, 0, 1], layer_types=None),
        dict(use_sliding_window=True, sliding_window=6) | LAYERS,
    ],
    "nanochat": [*FOLLOWED_LLAMA[:4], *FOLLOWED_LLAMA[6:], dict(hidden_size=48, num_attention_heads=6, num_key_value_heads=3), dict(final_logit_softcapping=2.0), dict(final_logit_softcapping=None), dict(num_hidden_layers=2)],
}  # fmt: skip
REFUSED_ALL = [
    dict(is_encoder_decoder=True), dict(add_cross_attention=True), dict(per_layer_config={"0": {"rms_norm_eps": 0.1}}), dict(embedding_multiplier=2.0),
    dict(quantization_config={"bits": 4}), dict(pruned_heads={"0": [1]}), dict(partial_rotary_factor=0.5), dict(attn_logit_softcapping=2.0),
]  # fmt: skip
REFUSED_LLAMA = [
    *REFUSED_ALL, dict(hidden_act="gelu"), dict(attention_bias=True), dict(rope_parameters=PLAIN | {"partial_rotary_factor": 0.5}),
    dict(rope_parameters=YARN | {"truncate": False}), dict(rope_parameters=YARN | {"mscale": 1.0}),
    dict(rope_scaling={"type": "linear", "factor": 2.0}), dict(rope_parameters={FULL: PLAIN, SLIDING: PLAIN}),
    dict(original_max_position_embeddings=32),
]  # fmt: skip
REFUSED_WINDOW = [*REFUSED_LLAMA, dict(mlp_bias=True), dict(final_logit_softcapping=2.0), dict(layer_types=["chunked_attention"] * 3), dict(sliding_window=1, use_sliding_window=True)]
NO_WINDOW = dict(use_sliding_window=False) | LAYERS
REFUSED = {
    "gpt2": [
        *REFUSED_ALL, dict(activation_function="gelu"), dict(activation_function="relu"), dict(scale_attn_weights=False),
        dict(scale_attn_by_inverse_layer_idx=True), dict(num_hidden_layers=1), dict(max_position_embeddings=32),
    ],
    "llama": REFUSED_WINDOW[:-1],
    "mistral": [*REFUSED_WINDOW, dict(sliding_window=None) | LAYERS],
    "ministral": [*REFUSED_WINDOW, dict(sliding_window=None) | LAYERS],
    "qwen2": [*REFUSED_WINDOW, NO_WINDOW],
    "qwen3": [*REFUSED_WINDOW, NO_WINDOW],
    "smollm3": [*REFUSED_WINDOW, NO_WINDOW, dict(no_rope_layers=[1, 1, 2])],
    "nanochat": [*REFUSED_LLAMA, dict(rope_parameters=LLAMA3), dict(rope_parameters=YARN), dict(head_dim=16), dict(sliding_window=5), dict(layer_types=[FULL] * 3)],
}  # fmt: skip
# All at once. vocab_size, initializer_range, model_type and return_dict would change more than the model.
HARMLESS_ALL = dict(
    architectures=["X"], attn_implementation="eager", bos_token_id=3, eos_token_id=[3, 4], pad_token_id=-1, chunk_size_feed_forward=8,
    dtype="float16", torch_dtype="bfloat16", gradient_checkpointing=True, id2label={"0": "A"}, label2id={"A": 0}, is_decoder=True,
    is_encoder_decoder=False, add_cross_attention=False, output_attentions=False, output_hidden_states=True, problem_type="regression",
    pruned_heads={}, temperature=2.0, max_length=7, do_sample=True, tie_last_hidden_states=True, transformers_version="1", unsloth_fixed=True,
    unsloth_version="1", use_cache=False, _name_or_path="x", partial_rotary_factor=1, tokenizer_class="X", sep_token_id=3,
)  # fmt: skip
HARMLESS_LLAMA = HARMLESS_ALL | dict(attention_dropout=0.5, pretraining_tp=2, attention_bias=False, max_position_embeddings=100)
HARMLESS_WINDOW = HARMLESS_LLAMA | dict(hidden_act="swish", mlp_bias=False)
HARMLESS = {
    "gpt2": HARMLESS_ALL | dict(
        attn_pdrop=0.5, embd_pdrop=0.5, resid_pdrop=0.5, n_ctx=7, reorder_and_upcast_attn=True, summary_activation="tanh",
        summary_first_dropout=0.5, summary_proj_to_labels=False, summary_type="last", summary_use_proj=False, scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
    ),
    "llama": HARMLESS_WINDOW | dict(sliding_window=5, layer_types=[FULL] * 3),
    "mistral": HARMLESS_WINDOW | dict(use_sliding_window=False, max_window_layers=1),
    "ministral": HARMLESS_WINDOW | dict(use_sliding_window=False, max_window_layers=1),
    "qwen2": HARMLESS_WINDOW | dict(max_window_layers=1),
    "qwen3": HARMLESS_WINDOW | dict(max_window_layers=1, sliding_window=5),
    "smollm3": HARMLESS_WINDOW | dict(sliding_window=5, no_rope_layer_interval=3),
    "nanochat": HARMLESS_LLAMA | dict(head_dim=8),
}  # fmt: skip
UNCHANGED = {"vocab_size", "initializer_range", "model_type", "return_dict"}


def other_value(value):
    if isinstance(value, bool):
        return not value
    return value * 2 + 1 if isinstance(value, int | float) else {} if value is None else None


def one_line(error):
    return " ".join(str(error).split())[:200]


class Family:
    def __init__(self, name, folder, shard, tokens):
        self.name, self.folder, self.shard, self.tokens = name, folder, shard, tokens
        made = transformers.AutoConfig.for_model(name, **SIZES[name])
        self.base = json.loads(made.to_json_string(use_diff=False))
        self.base |= dict(model_type=name, bos_token_id=None, eos_token_id=None, pad_token_id=None, dtype="float32")

    def write(self, changes):
        self.config = self.base | changes
        (self.folder / "config.json").write_text(json.dumps(self.config))

    def theirs(self):
        """Writes weights that fit. Returns transformers' loss; an exception if it does not take the config."""
        torch.manual_seed(3)
        try:
            config = transformers.AutoConfig.from_pretrained(self.folder)
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
            with torch.no_grad():
                for p in model.parameters():
                    if p.dim() == 1:
                        p.add_(torch.randn_like(p) * 0.1)
            state = {name: p for name, p in model.state_dict().items() if not (name == "lm_head.weight" and config.tie_word_embeddings)}
            safetensors.torch.save_file(state, self.folder / "model.safetensors")
            return loss_of(model, self.tokens)
        except Exception as error:
            return error

    def ours(self):
        """The loss, or the error message."""
        command = [PROGRAM, "eval", "--init-from", self.folder, "--val-data", self.shard, "--val-tokens", 0, "--seq-len", T, "--batch-size", 4]
        command += ["--device", "cpu", "--dtype", "fp32", "--threads", 1, "--summary"]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        found = re.search(r"^val_loss: +(\S+)$", done.stdout, re.MULTILINE)
        return float(found[1]) if done.returncode == 0 and found else done.stderr

    def difference(self, changes, may_be_refused=False):
        """None if both have the same loss."""
        self.write(changes)
        want, got = self.theirs(), self.ours()
        if isinstance(want, Exception):
            return None if may_be_refused else f"transformers refuses it: {one_line(want)}"
        if isinstance(got, str):
            return None if may_be_refused and self.is_named(got, changes) else f"refused: {got}"
        return None if abs(got - want) <= 3e-6 * want else f"loss {got:.6f}, in transformers {want:.6f}"  # six digits are printed

    def is_named(self, error, changes):
        return error.count("\n") == 1 and any(f'"{name}"' in error for name in changes)

    def check_all(self):
        what = lambda kind: f"{self.name}: {kind}"  # noqa: E731
        followed, refused, harmless = FOLLOWED[self.name], REFUSED[self.name], HARMLESS[self.name]
        wrong = [f"{changes}: {found}" for changes in [{}, *followed] if (found := self.difference(changes))]
        check(what(f"{len(followed)} changes are followed"), not wrong, "; ".join(wrong))
        wrong = []
        for changes in refused:
            self.write(changes)
            got = self.ours()
            if not isinstance(got, str) or not self.is_named(got, changes):
                wrong.append(f"{changes}: {got}")
        check(what(f"{len(refused)} changes are refused by name"), not wrong, "; ".join(wrong))
        found = self.difference(harmless)
        check(what(f"{len(harmless)} fields are harmless"), not found, str(found or ""))
        known = UNCHANGED.union(harmless, *followed, *refused)
        for field in sorted(self.base.keys() - known):
            found = self.difference({field: other_value(self.base[field])}, may_be_refused=True)
            check(what(f"the new field {field}"), not found, str(found or ""))
        wrong = []
        for _ in range(RANDOM):
            changes = {}
            for some in random.sample(followed, 4):
                changes |= some
            if found := self.difference(changes, may_be_refused=True):
                wrong.append(f"{changes}: {found}")
        check(what(f"{RANDOM} configs at random"), not wrong, "; ".join(wrong))

    def check_heads(self):
        """config.json says that the head is tied, and the file has one of its own, or no embeddings."""
        self.write(dict(tie_word_embeddings=True))
        self.theirs()
        path = self.folder / "model.safetensors"
        tied = safetensors.torch.load_file(path)
        table = tied["model.embed_tokens.weight"]
        for name, state in {
            "another head": tied | {"lm_head.weight": table * 1.5}, "the same head": tied | {"lm_head.weight": table.clone()},
            "no embeddings": {("lm_head.weight" if t is table else n): t for n, t in tied.items()},
        }.items():  # fmt: skip
            safetensors.torch.save_file(state, path, {"format": "pt"})
            want = loss_of(transformers.AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32), self.tokens)
            got = self.ours()
            check(f"{self.name}: tied, with {name} in the file", not isinstance(got, str) and abs(got - want) <= 3e-6 * want, f"{got} {want:.6f}")


def main():
    random.seed(5)
    torch.set_num_threads(1)  # the models are tiny
    transformers.utils.logging.set_verbosity(50)
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        run(TOKENIZE, "--stories", 20000, "--tokenizer", "byte", "--out", scratch / "data")
        tokens = tokens_of(scratch / "data/val_000000.bin")[: 4 * T + 1]
        (scratch / "few.txt").write_bytes(bytes(tokens.tolist()))
        run(TOKENIZE, scratch / "few.txt", "--tokenizer", "byte", "--out", scratch / "few", "--val-fraction", 0)
        for name in SIZES:
            (scratch / name).mkdir()
            family = Family(name, scratch / name, scratch / "few/train_000000.bin", tokens)
            family.check_all()
            if name == "llama":
                family.check_heads()
    print(f"configs: {differences.count} differences")
    return differences.count > 0


if __name__ == "__main__":
    sys.exit(main())
