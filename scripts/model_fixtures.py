"""Reference tensors of whole models, of their FP8 steps and of their training, for scripts/make_fixtures.py."""

import itertools
import re

import numpy as np
import torch
import torch.nn.functional as F

import reference_gpt as gpt
import reference_tasks
import reference_training as training
from fixture_file import Fixture, bell, dropout_key, kept_by_dropout

WIDE = gpt.Config(L=1, NH=2, NKV=2, HS=16, C=32, F=128, max_T=16, V=50257)

NANOCHAT = dict(
    norm="rmsnorm_plain", eps=gpt.EPS_F32, biases=False, embedding_norm=True, mlp="relu_squared", tied=False,
    positions="rotary", base=1e5, clockwise=True, qk_norm=True, qk_scale=1.2, softcap="tanh", cap=15,
    value_embeds=True, lambdas=True, smear=True, backout=True,
)  # fmt: skip
STAGE_A = dict(
    norm="rmsnorm", eps=gpt.EPS_F32, embedding_norm=True, mlp="relu_squared", tied=False, softcap="isru", cap=15,
    positions="rotary", base=1024, half_truncated=True, clockwise=True, qk_norm=True, score_scale=0.12,
)  # fmt: skip
LLAMA = dict(norm="rmsnorm", eps=1e-5, biases=False, positions="rotary", base=5e5, mlp="swiglu", tied=False)
# With two layers, backout would scale the last layer's output, which the following norm cancels: its gradient would be noise.
TWO_LAYERS = NANOCHAT | dict(L=2, backout=False)

# Small models with every part of the real ones: B, T and the config.
MODELS = {
    "model": (3, 24, gpt.Config(L=3, NH=4, NKV=4, HS=12, C=48, F=192, max_T=32, V=301)),
    "nano_d4": (3, 32, gpt.Config(L=4, NH=3, NKV=3, HS=16, C=48, F=96, V=100, windows=(7, 7, 7, -1), **NANOCHAT)),
    "nano_d5": (2, 19, gpt.Config(L=5, NH=2, NKV=1, HS=16, C=32, F=48, V=131, windows=(3, 3, 3, -1, -1), **NANOCHAT)),
    "nano_d2": (2, 33, gpt.Config(NH=2, NKV=2, HS=16, C=32, F=48, V=130, **TWO_LAYERS)),
    "stage_a": (3, 24, gpt.Config(L=3, NH=2, NKV=2, HS=16, C=32, F=96, V=131, **STAGE_A)),
    "llama": (2, 20, gpt.Config(L=2, NH=4, NKV=2, HS=16, C=64, F=32, V=100, **LLAMA)),
    # Like Qwen3 and SmolLM3, heads narrower than C / NH, windows in all layers. Like Qwen2 with Llama 3.1's rotary scaling, wider heads.
    "qk_gains": (2, 21, gpt.Config(L=3, NH=4, NKV=2, HS=8, C=48, F=40, V=100, windows=(4, 4, 4), **LLAMA | dict(qk_rmsnorm=True, rotary_layers="RN"))),
    "qkv_biases": (2, 24, gpt.Config(L=2, NH=3, NKV=1, HS=24, C=48, F=40, V=100, **LLAMA | dict(qkv_biases=True, scaling=(8.0, 1.0, 4.0, 16.0), base=100.0))),
    "documents": (3, 24, gpt.Config(NH=2, NKV=1, HS=16, C=32, F=48, V=131, windows=(5, -1), **TWO_LAYERS)),
}
# Document starts in the rows of the last model. The first row has a document of a single token at each end.
DOCUMENTS = [[0, 1, 9, 23], [0], [0, 12]]

# Random weights: deviation and mean for each kind of parameter; the first match counts. Unlike at the start of a run,
# nothing is zero, and softcaps and gates are outside of their linear ranges. The means of the lambdas are chosen so that
# their gradients are not near zero: each is a sum over all tokens of terms that cancel, and AdamW with an eps of 1e-10
# would divide the remaining rounding error by itself.
WEIGHTS = [
    (r"(ln_\w+|[qk]_norm)\.weight$", 0.2, 1),
    (r"^resid_lambdas$", 0.1, 1.1),
    (r"^x0_lambdas$", 0.1, 0.25),
    (r"^smear_lambda$", 0.1, 0.9),
    (r"^backout_lambda$", 0.1, 0.5),
    (r"^(smear_gate|wte)", 0.25, 0),
    (r"^(lm_head|value_embeds)|ve_gate", 0.5, 0),
    (r"", 0.125, 0),
]


def weights_of(f, config):
    """Random weights, also for biases and norms, stored in the file under the engine's names; matrices are (out, in)."""
    params = {}
    for name, shape in gpt.shapes(config).items():
        scale, shift = next(weights[1:] for weights in WEIGHTS if re.search(weights[0], name))
        if name == "wte.weight" and config.V == 50257:  # bell(50257, (V, C), 0.25): too large to be stored
            params[name] = torch.from_numpy(bell(50257, shape, 0.25)).double().requires_grad_()
        else:
            if f.name == "nano_d2" and name == "wte.weight":
                scale *= 2**-6  # small enough that the norm's eps matters
            params[name] = f.floats(name, *shape, scale=scale, shift=shift)
    return params


def model(name):
    """The loss, the logits and the gradient of every parameter of a small model."""
    f, (B, T, config) = Fixture(name), MODELS[name]
    params = weights_of(f, config)
    tokens, targets = f.ints("tokens", B, T, below=config.V), f.ints("targets", B, T, below=config.V)
    starts = None
    if name == "documents":
        starts = torch.tensor([[max(s for s in row if s <= t) for t in range(T)] for row in DOCUMENTS])
        f.arrays["starts"] = starts.numpy().astype(np.int32)
    logits = gpt.forward(config, params, tokens, starts)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    f.want("want.loss", loss.reshape(1))
    f.want("want.logits", logits)
    for parameter, value in params.items():
        f.want("grad." + parameter, value.grad)
    return f


def model_gpt2_shape():
    """One narrow layer with GPT-2's vocabulary. Of wte's gradient it stores some rows, and each column's sum of squares."""
    f, config = Fixture("model_gpt2_shape"), WIDE
    params = weights_of(f, config)
    tokens, targets = f.ints("tokens", 1, 16, below=config.V), f.ints("targets", 1, 16, below=config.V)
    tokens[0, 7] = targets[0, 6] = config.V - 1  # the last row of wte, as input and as target
    f.arrays["tokens"][0, 7] = f.arrays["targets"][0, 6] = config.V - 1
    losses = F.cross_entropy(gpt.forward(config, params, tokens)[0], targets[0], reduction="none")
    losses.mean().backward()
    f.want("want.loss", losses.mean().reshape(1))
    f.want("want.losses", losses)
    rows = sorted({*range(0, config.V, 997), *tokens.flatten().tolist(), *targets.flatten().tolist()})
    f.arrays["wte_rows"] = np.array(rows, np.int32)
    for name, param in params.items():
        if name == "wte.weight":
            f.want("grad.wte.weight.rows", param.grad[rows])
            f.want("grad.wte.weight.squares", (param.grad**2).sum(0))
        else:
            f.want("grad." + name, param.grad)
    return f


# Models whose large linear layers are computed in FP8: all of them, except for the second MLP layer of fp8_llama.
MODELS_IN_FP8 = {
    "fp8_gpt2": (1, 16, gpt.Config(L=2, NH=2, NKV=2, HS=64, C=128, F=128, max_T=16, V=61)),
    "fp8_nanochat": (2, 8, gpt.Config(L=3, NH=2, NKV=1, HS=64, C=128, F=128, V=61, windows=(3, 3, -1), **NANOCHAT)),
    "fp8_llama": (2, 8, gpt.Config(L=2, NH=2, NKV=1, HS=64, C=128, F=64, V=61, **LLAMA)),
    "fp8_llama_wide": (2, 8, gpt.Config(L=2, NH=2, NKV=1, HS=64, C=128, F=128, V=61, **LLAMA)),
}
# The first seed, counted from 0, with which all numbers keep FP8_MARGIN.
FIRST_SALT = {"fp8_gpt2": 152, "fp8_nanochat": 145, "fp8_llama": 5, "fp8_llama_wide": 50}
# The least distance of a number to the middle between two FP8 codes, as a fraction of its tensor's rms: rounding errors are
# smaller, so they cannot change the code. Codes that are closer together than SMALL_STEP may be confused: among some 2000
# numbers that is an error below 1e-6.
FP8_MARGIN, SMALL_STEP = 4e-7, 2.0**-15


def distance_to_middle(x, name):
    """The smallest distance of a number to the middle between two codes, as a fraction of x's rms."""
    values = torch.arange(256, dtype=torch.uint8).view(gpt.FP8[name][0]).double()
    numbers = values[values.isfinite() & (values >= 0)].unique()
    scaled = x.abs().flatten() * (gpt.FP8[name][1] / x.abs().max())
    rms = scaled.square().mean().sqrt()
    middles = ((numbers[1:] + numbers[:-1]) / 2)[numbers.diff() > SMALL_STEP * rms]
    above = torch.searchsorted(middles, scaled).clamp(max=len(middles) - 1)
    nearest = torch.minimum((scaled - middles[above]).abs(), (scaled - middles[(above - 1).clamp(min=0)]).abs())
    return float(nearest.min() / rms)


def model_in_fp8(name):
    """Loss and gradients. Weights are generated on both sides; of a matrix's gradient, sums of rows and columns are stored."""
    B, T, config = MODELS_IN_FP8[name]
    for salt in itertools.count(FIRST_SALT[name]):
        f, params, nearest = Fixture(name), {}, [1.0]
        for parameter, shape in gpt.shapes(config).items():
            scale, shift = next(weights[1:] for weights in WEIGHTS if re.search(weights[0], parameter))
            seed = f.seed(f"{parameter} {salt}") >> 1
            f.arrays["seed." + parameter] = np.array([seed], np.int32)
            f.arrays["scale." + parameter] = np.array([scale, shift], np.float32)
            made = bell(seed, shape, scale) + np.float32(shift)
            params[parameter] = torch.from_numpy(made).double().requires_grad_()
        tokens, targets = f.ints("tokens", B, T, below=config.V), f.ints("targets", B, T, below=config.V)

        def see(x, dtype, nearest=nearest):
            nearest.append(distance_to_middle(x.detach(), dtype))

        loss = F.cross_entropy(gpt.forward(config, params, tokens, see=see).flatten(0, 1), targets.flatten())
        loss.backward()
        if min(nearest) >= FP8_MARGIN:
            break
    f.want("want.loss", loss.reshape(1))
    want_sums_of_gradients(f, params)
    return f


# Twenty optimizer steps from the weights in the fixture of a model: the series that are stored, and the recipe.
RUNS = {
    "adamw_run": ("model", ["loss", "norm", "lr"], training.GPT2),
    "nano_run": ("nano_d4", ["loss", "lr", "momentum", "weight_decay"], training.nanochat(C=48, batch_tokens=2**13)),
    "stage_a_run": ("stage_a", ["loss", "lr"], training.STAGE_A),
}


def run_of(name, made):
    start, kept, recipe = RUNS[name]
    f, (B, T, config) = Fixture(name), MODELS[start]
    initial = {key: torch.from_numpy(made[start][key]) for key in gpt.shapes(config)}
    # Each token predicts the next, so a row has T + 1 tokens.
    sequences = f.ints("tokens_and_target", recipe.steps, B, T + 1, below=config.V)
    exact = training.train(config, recipe, initial, sequences, torch.float64)
    for key in kept:
        f.want("want." + key, torch.tensor(exact.series[key], dtype=torch.float64))
    for key, param in exact.params.items():
        f.want("want." + key, param)
    report_drift(name, kept, exact, training.train(config, recipe, initial, sequences, torch.float32))
    return f


def masked_run(made):
    """Like adamw_run, but only some targets count, in some rows none."""
    f, (B, T, config) = Fixture("masked_run"), MODELS["model"]
    initial = {key: torch.from_numpy(made["model"][key]) for key in gpt.shapes(config)}
    steps = training.GPT2.steps
    sequences = f.ints("tokens_and_target", steps, B, T + 1, below=config.V)
    learned = f.ints("learned", steps, B, T, below=3) == 0
    learned[::4, 1] = False
    f.arrays["learned"] = learned.numpy().astype(np.int32)
    exact = training.train(config, training.GPT2, initial, sequences, torch.float64, learned)
    for key in ["loss", "norm"]:
        f.want("want." + key, torch.tensor(exact.series[key], dtype=torch.float64))
    f.want("want.wte.weight", exact.params["wte.weight"])
    return f


# Models with dropout: the fixture of their weights and batch; p, seed, step, the batch's first row.
WITH_DROPOUT = {"dropout_gpt2": ("model", 0.2, 7, 11, 5), "dropout_nanochat": ("nano_d5", 0.4, 2**40 + 1, 0, 0)}


def model_with_dropout(name, made):
    """Loss and gradients; of a matrix's gradient, sums of its rows and columns are stored."""
    start, p, seed, step, first_row = WITH_DROPOUT[name]
    f, (B, T, config) = Fixture(name), MODELS[start]
    params = {key: torch.from_numpy(made[start][key]).double().requires_grad_() for key in gpt.shapes(config)}
    tokens, targets = (torch.from_numpy(made[start][key]).long() for key in ["tokens", "targets"])

    def drop(x, site):
        kept = kept_by_dropout(dropout_key(seed, step, site), first_row * T * config.C, x.shape, p)
        return x * torch.from_numpy(kept) / (1 - p)

    logits = gpt.forward(config, params, tokens, drop=drop)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    f.want("want.loss", loss.reshape(1))
    want_sums_of_gradients(f, params)
    return f


def want_sums_of_gradients(f, params):
    for parameter, value in params.items():
        if value.dim() == 2:
            # Weighted, because the gradients of a token's logits sum to zero.
            by_row, by_column = (1.0 + torch.arange(n) % 3 for n in value.shape)
            f.want("grad.rows." + parameter, value.grad @ by_column.double())
            f.want("grad.columns." + parameter, by_row.double() @ value.grad)
        else:
            f.want("grad." + parameter, value.grad)


def report_drift(run, kept, exact, rough):
    """Prints how far PyTorch's own float32 run is from its float64 run, which suggests a tolerance for Anvil's."""
    for key in kept:
        print(f"{run}: {key}", " ".join(f"{x:.4g}" for x in exact.series[key]))
        worst = max(abs(a - b) / (abs(b) or 1) for a, b in zip(rough.series[key], exact.series[key]))
        if worst:
            print(f"{run}: in float32 PyTorch drifts by {worst:.2e} in {key} (relative, worst step)")
    drifts = {}
    for name, param in exact.params.items():
        param, other = param.detach(), rough.params[name].detach().double()
        if run == "adamw_run" and name.endswith("c_attn.bias"):
            # The key bias adds one number to all scores of a row, which the softmax ignores. Its exact gradient is zero; in
            # floating point it is noise, which Adam divides by its own size. So it is left out of comparisons.
            param, other = (torch.cat(t.chunk(3)[::2]) for t in (param, other))
        drifts[name] = float((other - param).norm() / param.norm())
    for name, drift in sorted(drifts.items(), key=lambda item: -item[1])[:4]:
        print(f"{run}: in float32 PyTorch drifts by {drift:.2e} (relative L2) in {name}")


def fixtures():
    """All fixtures by name. Training starts from the weights of the models; the first model scores the tasks."""
    made = {f.name: f.arrays for f in [model_gpt2_shape(), *map(model, MODELS), *map(model_in_fp8, MODELS_IN_FP8)]}
    made["tasks"] = reference_tasks.fixture(MODELS["model"][2], made["model"]).arrays
    made["masked_run"] = masked_run(made).arrays
    made |= {name: model_with_dropout(name, made).arrays for name in WITH_DROPOUT}
    return made | {name: run_of(name, made).arrays for name in RUNS}
