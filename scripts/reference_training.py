"""Training in PyTorch: whole recipes of AdamW and Muon, run in float64 or float32. scripts/make_fixtures.py uses it.

A recipe's rules select the parameters that AdamW updates. Muon updates the remaining matrices, with stacked queries, keys
and values as three matrices. Muon: Jordan et al., 2024 (kellerjordan.github.io/posts/muon), with nanochat's additions,
one of which is NorMuon (Li et al., 2025, arXiv:2510.05491).
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from reference_gpt import forward

# (a, b, c) of each iteration: Amsel et al., 2025 (arXiv:2505.16932), as in nanochat, and Jordan et al., 2024.
POLAR_EXPRESS = [
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
]
IGNORED = -100  # a target that does not count
QUINTIC = [(3.4445, -4.7750, 2.0315)] * 5


def iterate(x, coefficients):
    for a, b, c in coefficients:
        gram = x @ x.mT if x.shape[-2] <= x.shape[-1] else x.mT @ x
        factor = b * gram + c * gram @ gram
        x = a * x + (factor @ x if x.shape[-2] <= x.shape[-1] else x @ factor)
    return x


# ---- Muon -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Muon:
    beta2: float = 0.9  # of NorMuon
    margin: float = 1.01  # keeps the largest singular value below one
    nanochat: bool = True  # MuonEq, Muon+, NorMuon and cautious decay; else the original Muon


class MuonMatrix:
    """The optimizer state of one matrix."""

    def __init__(self, weight):
        R, K = weight.shape
        self.momentum, self.second = torch.zeros_like(weight), weight.new_zeros(max(R, K))

    def step(self, weight, grad, muon, lr, mu, wd):
        """Updates the state, and returns the new weight."""
        R, K = weight.shape
        self.momentum = self.momentum.lerp(grad, 1 - mu)
        g = grad.lerp(self.momentum, mu)
        if muon.nanochat:
            g = g * (g.norm() / R**0.5) / g.norm(dim=1, keepdim=True).clamp_min(1e-6)
        g = iterate(g / (g.norm() * muon.margin + 1e-6), POLAR_EXPRESS)
        rate = lr * max(1, R / K) ** 0.5
        if not muon.nanochat:
            return weight * (1 - lr * wd) - rate * g
        dim = 1 if R >= K else 0
        g = g * min(R, K) ** 0.5 / g.norm().clamp_min(1e-6)
        self.second = self.second.lerp(g.square().mean(dim), 1 - muon.beta2)
        scaled = g * self.second.clamp_min(1e-10).rsqrt().unsqueeze(dim)
        g = scaled * g.norm() / scaled.norm().clamp_min(1e-10)
        return weight - rate * (g + wd * weight * (g * weight >= 0))


# ---- schedules, by step (counted from 0) of `steps` ---------------------------------------------------------------


def warmup_cosine(warmup, max_lr, min_lr):
    def at(step, steps):
        if step < warmup:
            return max_lr * (step + 1) / warmup
        progress = (step - warmup) / (steps - warmup)
        return min_lr + (max_lr - min_lr) * 0.5 * (1 + math.cos(math.pi * progress))

    return at


def warmup_flat_linear(warmup, warmdown, final):
    """Rises from 1/warmup to 1; falls to `final` in the last fraction `warmdown` of all steps, reached one step after them."""

    def at(step, steps):
        if step < warmup:
            return (step + 1) / warmup
        left = min(1, (steps - step) / round(warmdown * steps))
        return left + (1 - left) * final

    return at


def momentum_ramp(first, most, last, warmup, warmdown):
    """Linear from first to most in `warmup` steps, and to last in the last fraction `warmdown` of all steps."""

    def at(step, steps):
        if step < warmup:
            return first + (most - first) * step / warmup
        left = min(1, (steps - step) / round(warmdown * steps))
        return last + (most - last) * left

    return at


def cosine_to_zero(most):
    return lambda step, steps: most * 0.5 * (1 + math.cos(math.pi * step / steps))


def constant(value):
    return lambda step, steps: value


# ---- recipes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AdamW:
    names: str  # a regular expression for the parameters; an earlier rule takes precedence
    lr: float
    betas: tuple
    eps: float
    weight_decay: float


@dataclass(frozen=True)
class Recipe:
    rules: list  # of AdamW
    lr: Callable  # factor on the learning rates of all rules and of Muon
    steps: int = 20
    clip: float = math.inf  # of the global norm
    muon: Muon = Muon()
    muon_lr: float = 0.0
    momentum: Callable = constant(0.95)
    weight_decay: Callable = constant(0.0)  # Muon's

    def rule(self, name):
        return next((rule for rule in self.rules if re.search(rule.names, name)), None)


def adamw(names="", lr=1.0, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0):
    return AdamW(names, lr, betas, eps, weight_decay)


# Clipping is active in most steps, but not in all.
GPT2 = Recipe(
    rules=[adamw(r"(ln_\w+\.weight|\.bias)$", eps=1e-8), adamw(eps=1e-8, weight_decay=0.1)],
    lr=warmup_cosine(warmup=5, max_lr=3e-3, min_lr=3e-4),
    clip=2.0,
)


def nanochat(C, batch_tokens):
    """nanochat's groups, betas and decays. Its schedules are for thousands of steps; here their ramps take only a few.

    Learning rates are for 2^19 tokens per step and 768 channels. They scale with the square root of the batch size, and
    inversely with that of the width."""
    batch = math.sqrt(batch_tokens / 2**19)
    width = (C / 768) ** -0.5
    return Recipe(
        rules=[
            adamw(r"^lm_head", 0.008 * batch * width, (0.8, 0.96), weight_decay=0.01),
            adamw(r"^wte", 0.3 * batch * width, (0.8, 0.995), weight_decay=0.001),
            adamw(r"^value_embeds", 0.3 * batch * width * 0.5, (0.8, 0.995), weight_decay=0.01),
            adamw(r"^resid_lambdas", 0.5 * batch * 0.01, (0.8, 0.95), weight_decay=0.05),
            adamw(r"^x0_lambdas", 0.5 * batch, (0.96, 0.95)),
            adamw(r"^(smear|backout)", 0.2, (0.8, 0.95)),
        ],
        lr=warmup_flat_linear(warmup=4, warmdown=0.65, final=0.05),
        muon_lr=0.02 * batch,
        momentum=momentum_ramp(0.85, 0.97, 0.90, warmup=6, warmdown=0.65),
        weight_decay=cosine_to_zero(0.0597),
    )


# modded-nanogpt's third track.
STAGE_A = Recipe(
    rules=[
        adamw(r"^wte", 0.7, (0.8, 0.95), weight_decay=0.001),
        adamw(r"^lm_head", 0.004, (0.8, 0.95), weight_decay=0.001),
        adamw(r"(ln_\w+\.weight|\.bias)$", 0.015, (0.8, 0.95), weight_decay=0.001),
    ],
    lr=warmup_flat_linear(warmup=0, warmdown=0.7, final=0.0),
    muon=Muon(margin=1.02, nanochat=False),
    muon_lr=0.025,
    weight_decay=constant(0.05),
)


# ---- training -----------------------------------------------------------------------------------------------------


@dataclass
class Trained:
    params: dict
    series: dict = field(default_factory=dict)  # per step: loss, norm before clipping, and the schedules' values


def matrices(config, name, tensor):
    """Views of a parameter's matrices, which Muon treats one by one."""
    if name.endswith("c_attn.weight"):
        return tensor.split([config.NH * config.HS, config.NKV * config.HS, config.NKV * config.HS])
    return (tensor,)


def train(config, recipe, initial, sequences, dtype, learned=None):
    """Trains on sequences (steps, B, T+1), one batch per step, all in `dtype`, with PyTorch's AdamW and clipping.

    learned (steps, B, T): the targets that count; None: all."""
    params = {name: value.to(dtype).clone().requires_grad_() for name, value in initial.items()}
    groups = []
    for rule in recipe.rules:
        taken = [p for name, p in params.items() if recipe.rule(name) is rule]
        groups.append({"params": taken, "lr": rule.lr, "betas": rule.betas, "eps": rule.eps})
        groups[-1]["weight_decay"] = rule.weight_decay
    optimizer = torch.optim.AdamW(groups)
    states = {
        name: [MuonMatrix(m) for m in matrices(config, name, p.detach())]
        for name, p in params.items()
        if recipe.rule(name) is None
    }
    result = Trained(params)
    for step, batch in enumerate(sequences):
        logits = forward(config, params, batch[:, :-1])
        targets = batch[:, 1:]
        if learned is not None:
            targets = targets.masked_fill(~learned[step], IGNORED)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        for p in params.values():  # also Muon's, which PyTorch's optimizer does not have
            p.grad = None
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(params.values(), recipe.clip)
        lr, mu, wd = (schedule(step, recipe.steps) for schedule in (recipe.lr, recipe.momentum, recipe.weight_decay))
        for group, rule in zip(optimizer.param_groups, recipe.rules):
            group["lr"] = rule.lr * lr
        optimizer.step()
        with torch.no_grad():
            for name, state in states.items():
                parts = zip(state, *(matrices(config, name, t) for t in (params[name], params[name].grad)))
                for matrix, weight, grad in parts:
                    weight.copy_(matrix.step(weight, grad, recipe.muon, recipe.muon_lr * lr, mu, wd))
        now = {"loss": loss.item(), "norm": norm.item(), "lr": lr, "momentum": mu, "weight_decay": wd}
        for key, value in now.items():
            result.series.setdefault(key, []).append(value)
    return result
