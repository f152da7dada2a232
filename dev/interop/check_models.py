#!/usr/bin/env python3
"""Checks that models of transformers have the same losses, logits and weights in train_gpt, and after an export.

    V/bin/python dev/interop/check_models.py        run by dev/interop/check_interop.sh, which makes V; exit code 1 on a difference

With random tiny models, GPT-2, Llama, its successors and NanoChat, saved by transformers in one file and in several, in fp32 and
bf16: --init-from, whose validation loss must be PyTorch's; three steps of training, whose checkpoint transformers loads unchanged;
its exports to hf, gguf and llmc, read by transformers, llama.cpp, the gguf package and this script; AutoTokenizer.

With models that transformers has no class for, nanochat's and modded-nanogpt's with random weights in all parts: exports with
modeling_anvil.py. Its logits must be those of dev/fixtures/reference_gpt.py, its loss train_gpt's, with and without a cache and with
padding, and it must generate the same as train_gpt.
"""

import json
import math
import pathlib
import subprocess
import sys
import tempfile

import differences
import gguf
import llama_cpp
import numpy as np
import safetensors.torch
import torch
import transformers
from differences import check, run

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[2] / "dev/fixtures"))
import reference_gpt as reference  # noqa: E402

T = 32
TEXT = "Once there was a fox.\n\tIt ran: 100 times, na\u00efve caf\u00e9 \u2014 \U0001f98a"

def tokens_of(shard):
    return torch.from_numpy(np.fromfile(shard, "<u2", offset=1024).astype(np.int64))


def logits_of(model, tokens):
    with torch.no_grad():
        return model.eval()(input_ids=tokens).logits.double()


def loss_of(model, tokens):
    """The loss on rows of T tokens, cut as in validation."""
    rows = (len(tokens) - 1) // T
    x, y = tokens[: rows * T].view(rows, T), tokens[1 : rows * T + 1].view(rows, T)
    return torch.nn.functional.cross_entropy(logits_of(model, x).flatten(0, 1), y.flatten()).item()


def validation_loss(out):
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [r["loss"] for r in records if r["type"] == "val"][-1]


def loaded(folder, **how):
    """Loads a model with transformers, which must find all weights in the files, and no others."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **how)
    model.eval()
    leftover = {k: v for k, v in info.items() if v}
    check(f"{folder.name}: {type(model).__name__} has all its weights and no other", not leftover, str(leftover or ""))
    return model


# With 64 positions, some frequencies are kept, some interpolated and some divided.
LLAMA_31 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}


WINDOWS = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"]


def make_models():
    torch.manual_seed(7)
    sizes = dict(vocab_size=256, bos_token_id=None, eos_token_id=None)
    gpt2 = transformers.GPT2Config(n_positions=64, n_embd=48, n_layer=3, n_head=4, initializer_range=0.2, **sizes)
    llama = transformers.LlamaConfig(
        max_position_embeddings=64, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2, **sizes,
    )  # fmt: skip
    nanochat = transformers.NanoChatConfig(
        max_position_embeddings=64, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2, final_logit_softcapping=3.0, pad_token_id=None, **sizes,
    )  # fmt: skip

    def grouped(name, **changes):
        config = dict(
            max_position_embeddings=64, hidden_size=64, intermediate_size=96, num_hidden_layers=5, num_attention_heads=4,
            num_key_value_heads=2, initializer_range=0.2, pad_token_id=None, **sizes,
        )  # fmt: skip
        return getattr(transformers, name + "ForCausalLM")(getattr(transformers, name + "Config")(**config | changes))

    for name, model, how in (
        ("gpt2", transformers.GPT2LMHeadModel(gpt2), {}),
        ("gpt2_files", transformers.GPT2LMHeadModel(gpt2).to(torch.bfloat16), {"max_shard_size": "100KB"}),
        ("llama", transformers.LlamaForCausalLM(llama), {}),
        ("nanochat", transformers.NanoChatForCausalLM(nanochat), {}),
        # With heads wider than C / heads, with narrower ones, and with a last layer whose window differs from the others'.
        ("llama31", grouped("Llama", head_dim=32, rope_parameters=LLAMA_31), {}),
        ("yarn", grouped("Llama", head_dim=32, rope_parameters=YARN), {}),
        ("qwen3_yarn", grouped("Qwen3", rope_parameters=YARN | {"attention_factor": 1.5, "beta_fast": 8.0}), {}),
        ("mistral", grouped("Mistral", sliding_window=9), {}),
        ("ministral", grouped("Ministral", head_dim=16, sliding_window=9, layer_types=WINDOWS), {}),
        ("qwen2", grouped("Qwen2"), {}),
        ("qwen2_windows", grouped("Qwen2", use_sliding_window=True, sliding_window=7, max_window_layers=2), {}),
        ("qwen3", grouped("Qwen3", head_dim=8, tie_word_embeddings=True), {}),
        ("smollm3", grouped("SmolLM3", rope_parameters={"rope_type": "default", "rope_theta": 5e6}), {}),
        ("llama_files", transformers.LlamaForCausalLM(llama).to(torch.bfloat16), {"max_shard_size": "100KB"}),
    ):
        with torch.no_grad():
            for p in model.parameters():
                if p.dim() == 1:
                    p.add_(torch.randn_like(p) * 0.1)
            if name in GGUF_KINDS:
                model.get_output_embeddings().weight[128:] = 0  # so that generated tokens are text: bytes below 128
        yield name, model, how


# Windows of 5 tokens, grouped queries, every part of nanochat and modded-nanogpt, and combinations that no preset has.
SIZES = dict(L=4, NH=4, NKV=2, HS=12, C=48, F=80, V=256)
OURS = {
    "ours-nanochat": dict(
        norm="rmsnorm_plain", eps=2.0**-23, biases=False, positions="rotary", base=1e5, clockwise=True, qk_norm=True, qk_scale=1.2,
        windows=(5, 5, 5, -1), mlp="relu_squared", tied=False, embedding_norm=True, value_embeds=True, lambdas=True, smear=True,
        backout=True, softcap="tanh", cap=3.0,
    ),
    "ours-stage-a": dict(
        norm="rmsnorm", eps=2.0**-23, positions="rotary", base=1024.0, half_truncated=True, clockwise=True, qk_norm=True,
        score_scale=0.12, mlp="relu_squared", tied=False, embedding_norm=True, softcap="isru", cap=4.0,
    ),
    # The parts of Qwen2, Qwen3, SmolLM3, Mistral and Llama 3.1 at once, some that none of them has, and heads wider than C / heads.
    "ours-families": dict(
        HS=20, norm="rmsnorm", eps=1e-6, biases=False, qkv_biases=True, qk_rmsnorm=True, positions="rotary", base=500.0,
        scaling=(8.0, 1.0, 4.0, 32.0), rotary_layers="RN", windows=(5, 5, 5, 5), mlp="swiglu", tied=False, smear=True,
    ),
    "ours-yarn": dict(
        HS=20, norm="rmsnorm", eps=1e-6, biases=False, positions="rotary", base=50.0, qk_scale=1.2, score_scale=0.3,
        scaling=(4.0, 0.1, 2.0, 32.0, "yarn"), mlp="swiglu", tied=False,
    ),
    "ours-mixed": dict(max_T=64, lambdas=True, smear=True, windows=(-1, 5, -1, -1), mlp="swiglu"),
}  # fmt: skip


def our_folder(folder, c):
    """Writes a model with random weights in every part, under Anvil's own names: config.json and model.safetensors."""
    config = {
        "model_type": "anvil", "n_layer": c.L, "n_head": c.NH, "n_kv_head": c.NKV, "n_embd": c.C, "n_inner": c.F,
        "n_positions": 64, "vocab_size": c.V, "norm": c.norm.replace("rmsnorm_plain", "plain-rmsnorm"), "norm-eps": c.eps,
        "biases": c.biases, "mlp": c.mlp.replace("_", "-"), "tied-head": c.tied, "positions": c.positions, "rotary-base": c.base,
        "half-rotary": c.half_truncated, "clockwise-rotary": c.clockwise, "qk-norm": c.qk_norm, "qk-scale": c.qk_scale,
        "qk-eps": reference.EPS_F32, "score-scale": c.score_scale, "short-window": 5,
        "window-pattern": "".join("L" if window < 0 else "S" for window in c.windows) or "L",
        "full-last-layer": not c.windows or c.windows[-1] < 0, "head_dim": c.HS, "qkv-biases": c.qkv_biases,
        "qk-rmsnorm": c.qk_rmsnorm, "rotary-pattern": c.rotary_layers,
        "embedding-norm": c.embedding_norm, "value-embeddings": c.value_embeds, "residual-lambdas": c.lambdas, "smear": c.smear,
        "backout": c.backout, "softcap-kind": c.softcap, "softcap": c.cap,
    }  # fmt: skip
    if c.scaling:
        names = ("rotary-factor", "rotary-low-turns", "rotary-high-turns", "rotary-original-length", "rotary-scaling")
        config |= dict(zip(names, c.scaling, strict=False))
    params = {}
    for name, shape in reference.shapes(c).items():
        is_gain = len(shape) == 1 and (name.endswith("weight") or "lambda" in name)
        params[name] = torch.randn(shape) * 0.3 + (1.0 if is_gain else 0.0)
    for name in ("wte.weight", "lm_head.weight"):
        if name in params:
            params[name][128:] = 0  # never the likeliest, so that generated tokens are text: bytes below 128
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.torch.save_file({f"transformer.{name}": p for name, p in params.items()}, folder / "model.safetensors")
    return params


def greedy(program, folder, prompt, n):
    """The bytes with which train_gpt continues a prompt."""
    command = [program, "generate", "--init-from", folder, "--prompt", prompt, "--sample-tokens", n, "--temperature", 0]
    command += ["--device", "cpu", "--dtype", "fp32"]
    done = subprocess.run([str(part) for part in command], capture_output=True, check=True)
    return done.stdout


def check_ours(name, program, data, tokens, scratch, tokenizer):
    c = reference.Config(**SIZES | OURS[name])
    source, exported = scratch / name, scratch / f"{name}_exported"
    params = our_folder(source, c)
    for file in tokenizer:
        (source / file.name).write_bytes(file.read_bytes())
    run(program, "export", "--init-from", source, "--out-dir", exported)
    model = loaded(exported, trust_remote_code=True)
    check(f"{name}: the folder's own code", type(model).__module__.startswith("transformers_modules"), type(model).__module__)
    rows = tokens[: 4 * T].view(4, T)
    with torch.no_grad():
        # In double, so that rounding errors are those of the tested model.
        wide = reference.forward(c, {key: value.double() for key, value in params.items()}, rows)
        got = logits_of(model, rows)
        # As in test/model: in fp32 the error's norm is below 1e-5 of the logits'.
        close = lambda a, b: ((a - b).norm() / b.norm()).item() <= 1e-5  # noqa: E731
        check(f"{name}: logits of the formulas", close(got, wide), f"{((got - wide).norm() / wide.norm()).item():.1e}")
        pieces, cache = [], None
        for begin, end in ((0, 7), (7, 8), (8, 9), (9, 20), *((t, t + 1) for t in range(20, T))):
            out = model(input_ids=rows[:, begin:end], past_key_values=cache, use_cache=True)
            cache = out.past_key_values  # the older name; transformers 5.24 and later have two
            pieces.append(out.logits)
        check(f"{name}: with a cache, in pieces", close(torch.cat(pieces, 1).double(), got))
        padded = torch.cat([rows[:, :3], rows], 1)
        mask = torch.ones_like(padded)
        mask[:, :3] = 0
        check(f"{name}: padded on the left", close(model(input_ids=padded, attention_mask=mask).logits[:, 3:].double(), got))
        last = model(input_ids=rows, logits_to_keep=2, labels=None).logits
        check(f"{name}: the last logits alone", torch.equal(last, model(input_ids=rows).logits[:, -2:]))
    run(program, "--init-from", exported, *data, "--steps", 0, "--out-dir", scratch / f"{name}_run")
    got, want = validation_loss(scratch / f"{name}_run"), loss_of(model, tokens)
    check(f"{name}: loss as train_gpt's", abs(got - want) <= 4 * 2**-23 * want, f"{got:.9f} {want:.9f}")
    prompt = "Once there was"
    auto = transformers.AutoTokenizer.from_pretrained(exported, trust_remote_code=True)
    ids = auto(prompt, return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=24, do_sample=False, pad_token_id=0)[0, ids["input_ids"].shape[1] :]
    check(f"{name}: the same greedy tokens", bytes(out.tolist()) in greedy(program, exported, prompt, 24), str(out.tolist()))
    again = scratch / f"{name}_saved"
    model.save_pretrained(again)
    run(program, "--init-from", again, *data, "--steps", 0, "--out-dir", scratch / f"{name}_again")
    check(f"{name}: saved by transformers, and read back", validation_loss(scratch / f"{name}_again") == got)
    if name == next(iter(OURS)):
        config = json.loads((again / "config.json").read_text())
        for field, value in (("stream-cap", 0.001), ("softcap-kind", "cubic"), ("mlp", "geglu")):
            (again / "config.json").write_text(json.dumps(config | {field: value}))
            try:
                said = str(transformers.AutoModelForCausalLM.from_pretrained(again, trust_remote_code=True))
            except ValueError as error:
                said = str(error)
            ours = subprocess.run([program, "generate", "--init-from", again], capture_output=True, text=True).stderr
            check(f"{name}: {field} is refused by both", said.startswith(f'config.json: "{field}"') and f'"{field}"' in ours, ours.strip())


def check_gguf(path, model, tokenizer):
    reader = gguf.GGUFReader(path)
    value = lambda key: reader.fields[key].contents()  # noqa: E731
    config = model.config
    want = {
        "general.architecture": "gpt2", "gpt2.context_length": config.n_positions, "gpt2.block_count": config.n_layer,
        "gpt2.embedding_length": config.n_embd, "gpt2.attention.head_count": config.n_head,
        "gpt2.feed_forward_length": 4 * config.n_embd, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokenizer.convert_ids_to_tokens(range(256)),
    }  # fmt: skip
    differing = [key for key, wanted in want.items() if value(key) != wanted]
    check("gguf: metadata and tokens", not differing, str(differing or ""))
    check("gguf: epsilon", math.isclose(value("gpt2.attention.layer_norm_epsilon"), 1e-5, rel_tol=1e-6))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, config.n_layer)
    state = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    tensors = {t.name: t for t in reader.tensors}
    check("gguf: as many tensors", len(tensors) == len(state), f"{len(tensors)} and {len(state)}")
    for key, weight in state.items():
        name = names.get_name(key, try_suffixes=(".weight", ".bias"))
        transposed = any(part in key for part in ("c_attn.w", "c_proj.w", "c_fc.w"))
        got = tensors.get(name)
        same = got is not None and np.array_equal(got.data, (weight.T if transposed else weight).numpy())
        if not same:
            check(f"gguf: {key} as {name}", False)


GGUF_KINDS = ("llama", "llama31", "qwen2", "qwen3", "smollm3")
GREEDY, MARGIN = 24, 0.05  # llama.cpp's KV cache is in half precision: log-probabilities are off by about 0.01


def check_in_llama_cpp(name, path, model, prompts):
    """Checks that llama.cpp continues greedily like transformers, for the prompt whose continuation is surest."""
    ids = model.generate(prompts, max_new_tokens=GREEDY, do_sample=False, pad_token_id=0)
    values = torch.log_softmax(logits_of(model, ids)[:, prompts.shape[1] - 1 : -1], 2).topk(2).values
    # Without token 11, which llama.cpp takes for the end where a file names none.
    margins = (values[..., 0] - values[..., 1]).min(1).values * (ids[:, prompts.shape[1] :] != 11).all(1)
    row = margins.argmax().item()
    margin, prompt, want, logprobs = margins[row].item(), prompts[row], ids[row, prompts.shape[1] :], values[row, :, 0]
    check(f"{name}: the likeliest token is so by far", margin >= MARGIN, f"{margin:.3f}")
    request = {"prompt": prompt.tolist(), "n_predict": GREEDY, "temperature": 0, "n_probs": 1, "logprobs": 1}
    content = llama_cpp.serve(path).handle_completions(request)["choices"][0]["logprobs"]["content"]
    got = [token["id"] for token in content]
    check(f"{name}: llama.cpp's greedy tokens", got == want.tolist(), str(got))
    furthest = max(abs(token["logprob"] - value) for token, value in zip(content, logprobs.tolist()))
    check(f"{name}: llama.cpp's log-probabilities", furthest <= MARGIN / 2, f"{furthest:.1e}")


def check_llmc(path, model):
    """Reads a file in the order in which llm.c's train_gpt2.py writes a model."""
    header, config = np.fromfile(path, "<i4", count=256), model.config
    V, padded, C, L = config.vocab_size, 256, config.n_embd, config.n_layer
    check("llmc: header", list(header[:8]) == [20240326, 3, config.n_positions, V, L, config.n_head, C, padded])
    state, h = model.transformer.state_dict(), [f"h.{layer}." for layer in range(L)]
    want = [state["wte.weight"], state["wpe.weight"]]
    for kind in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"):
        for part in (".weight", ".bias"):
            transposed = part == ".weight" and "c_" in kind
            want += [state[b + kind + part].T if transposed else state[b + kind + part] for b in h]
    want += [state["ln_f.weight"], state["ln_f.bias"]]
    flat = torch.cat([w.reshape(-1) for w in want]).numpy()
    check("llmc: weights", np.array_equal(np.fromfile(path, "<f4", offset=1024), flat))


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    program, tokenize = root / "train_gpt", root / "data/tokenize"
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        run(tokenize, "--stories", 20000, "--tokenizer", "byte", "--out", scratch / "data")
        shard = lambda kind: scratch / f"data/{kind}_000000.bin"  # noqa: E731
        tokens = tokens_of(shard("val"))
        rows = (len(tokens) - 1) // T
        data = ["--train-data", shard("train"), "--val-data", shard("val"), "--val-tokens", 0, "--seq-len", T]
        data += ["--batch-size", 1, "--sample-tokens", 0, "--device", "cpu", "--dtype", "fp32"]
        for name, model, how in make_models():
            source, out = scratch / name, scratch / f"{name}_run"
            model.save_pretrained(source, **how)
            if how:
                check(f"{name}: several files", len(list(source.glob("*.safetensors"))) > 1)
            run(program, "--init-from", source, *data, "--steps", 0, "--out-dir", out)
            # Loaded again, because converting a Llama to bf16 and back loses digits of its rotary frequencies.
            model = type(model).from_pretrained(source, dtype=torch.float32)
            got, want = validation_loss(out), loss_of(model, tokens)
            # The rounding errors of single losses, about 2^-22 of each, mostly cancel in a mean of hundreds.
            check(f"{name}: loss as PyTorch's", abs(got - want) <= 4 * 2**-23 * want, f"{got:.9f} {want:.9f} {rows} rows")
            again = loaded(out / "step_00000000")
            check(f"{name}: the same class", type(again) is type(model), type(again).__name__)
            same = all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))
            check(f"{name}: the same weights back", same)

            trained = scratch / f"{name}_trained"
            run(program, "--init-from", source, *data, "--steps", 3, "--warmup-steps", 0, "--out-dir", trained)
            checkpoint = trained / "step_00000003"
            tuned = loaded(checkpoint)
            got, want = validation_loss(trained), loss_of(tuned, tokens)
            check(f"{name}: loss after training", abs(got - want) <= 4 * 2**-23 * want, f"{got:.9f} {want:.9f}")
            check(f"{name}: it has learned", got < loss_of(model, tokens))

            exported = scratch / f"{name}_exported"
            run(program, "export", "--init-from", trained, "--out-dir", exported)
            row = tokens[:T].view(1, T)
            check(f"{name}: exported logits", torch.equal(logits_of(loaded(exported), row), logits_of(tuned, row)))
            tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
            ids = tokenizer(TEXT)["input_ids"]
            check(f"{name}: AutoTokenizer", ids == list(TEXT.encode()) and tokenizer.decode(ids) == TEXT)
            bf16 = scratch / f"{name}_bf16"
            run(program, "export", "--resume", checkpoint, "--dtype", "bf16", "--out-dir", bf16)
            pairs = zip(loaded(bf16, dtype="auto").parameters(), tuned.parameters(), strict=True)
            check(f"{name}: exported in bf16", all(torch.equal(a, b.to(torch.bfloat16)) for a, b in pairs))
            if name in GGUF_KINDS:
                run(program, "export", "--format", "gguf", "--init-from", trained, "--out-dir", scratch / f"{name}_gguf")
                check_in_llama_cpp(name, scratch / f"{name}_gguf/model.gguf", tuned, tokens[: 64 * 16].view(64, 16))
            if name == "gpt2":
                for kind in ("gguf", "llmc"):
                    run(program, "export", "--format", kind, "--init-from", checkpoint, "--out-dir", scratch / kind)
                check_gguf(scratch / "gguf/model.gguf", tuned, tokenizer)
                check_llmc(scratch / "llmc/model.bin", tuned)
                run(program, "--init-from", scratch / "llmc/model.bin", *data, "--steps", 0, "--out-dir", scratch / "c")
                check("llmc: read back", validation_loss(scratch / "c") == validation_loss(trained))
        torch.manual_seed(11)
        for name in OURS:
            check_ours(name, program, data, tokens, scratch, list((scratch / "gpt2_exported").glob("tokenizer*.json")))
    print(f"models: {differences.count} differences")
    return differences.count > 0


if __name__ == "__main__":
    llama_cpp.end(main())
