"""GPT-2 and its training in PyTorch, written from the formulas: what scripts/make_fixtures.py takes references from.

Pre-LayerNorm with eps 1e-5, learned positions, one QKV matrix, causal attention, GELU in the tanh form, tied head.
Radford et al., 2019. Parameters carry Hugging Face's names for GPT-2, but every matrix is (out, in) as in nn.Linear.
"""

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Config:
    L: int  # layers
    NH: int  # heads
    C: int  # channels
    max_T: int  # the longest sequence: rows of wpe
    V: int  # vocabulary, without any padding


SMALL = Config(L=3, NH=4, C=48, max_T=32, V=301)
WIDE = Config(L=1, NH=2, C=32, max_T=16, V=50257)


@dataclass(frozen=True)
class Run:
    steps: int = 20
    warmup: int = 5
    max_lr: float = 3e-3
    min_lr: float = 3e-4
    betas: tuple = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1  # on matrices only: the tensors with two dimensions
    clip: float = 2.0  # of the global norm; active in most steps, but not in all


RUN = Run()


def shapes(config):
    C = config.C
    found = {"wte.weight": (config.V, C), "wpe.weight": (config.max_T, C)}
    for layer in range(config.L):
        h = f"h.{layer}."
        found |= {h + "ln_1.weight": (C,), h + "ln_1.bias": (C,)}
        found |= {h + "attn.c_attn.weight": (3 * C, C), h + "attn.c_attn.bias": (3 * C,)}
        found |= {h + "attn.c_proj.weight": (C, C), h + "attn.c_proj.bias": (C,)}
        found |= {h + "ln_2.weight": (C,), h + "ln_2.bias": (C,)}
        found |= {h + "mlp.c_fc.weight": (4 * C, C), h + "mlp.c_fc.bias": (4 * C,)}
        found |= {h + "mlp.c_proj.weight": (C, 4 * C), h + "mlp.c_proj.bias": (C,)}
    return found | {"ln_f.weight": (C,), "ln_f.bias": (C,)}


def causal_attention(qkv):
    """qkv (B,T,3,NH,HS) -> out (B,T,NH,HS), lse (B,NH,T): the natural log-sum-exp of the scaled scores."""
    q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B,NH,T,HS) each
    T, HS = q.shape[-2:]
    scores = (q @ k.transpose(-1, -2)) / math.sqrt(HS)
    scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf)
    return (scores.softmax(-1) @ v).permute(0, 2, 1, 3), scores.logsumexp(-1)


def forward(config, params, tokens):
    """tokens (B,T) -> logits (B,T,V)"""
    B, T = tokens.shape

    def norm(x, name):
        return F.layer_norm(x, (config.C,), params[name + ".weight"], params[name + ".bias"], eps=1e-5)

    def linear(x, name):
        return F.linear(x, params[name + ".weight"], params[name + ".bias"])

    x = params["wte.weight"][tokens] + params["wpe.weight"][:T]
    for layer in range(config.L):
        h = f"h.{layer}."
        qkv = linear(norm(x, h + "ln_1"), h + "attn.c_attn").view(B, T, 3, config.NH, config.C // config.NH)
        x = x + linear(causal_attention(qkv)[0].flatten(2), h + "attn.c_proj")
        x = x + linear(F.gelu(linear(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh"), h + "mlp.c_proj")
    return F.linear(norm(x, "ln_f"), params["wte.weight"])


def learning_rate(run, step):
    """Linear warm-up, then a cosine from max_lr down to min_lr; `step` counts from 0."""
    if step < run.warmup:
        return run.max_lr * (step + 1) / run.warmup
    progress = (step - run.warmup) / (run.steps - run.warmup)
    return run.min_lr + (run.max_lr - run.min_lr) * 0.5 * (1 + math.cos(math.pi * progress))


@dataclass
class Trained:
    params: dict
    losses: list = field(default_factory=list)
    norms: list = field(default_factory=list)  # before clipping
    lrs: list = field(default_factory=list)


def train(config, run, initial, sequences, dtype):
    """AdamW over sequences (steps, B, T+1), a batch a step; PyTorch's own optimizer and clipping, all in `dtype`."""
    params = {name: value.to(dtype).clone().requires_grad_() for name, value in initial.items()}
    groups = [
        {"params": [p for p in params.values() if p.dim() == 2], "weight_decay": run.weight_decay},
        {"params": [p for p in params.values() if p.dim() != 2], "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(groups, betas=run.betas, eps=run.eps)
    result = Trained(params)
    for step, batch in enumerate(sequences):
        logits = forward(config, params, batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        adam.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(params.values(), run.clip)
        for group in adam.param_groups:
            group["lr"] = learning_rate(run, step)
        adam.step()
        result.losses.append(loss.item())
        result.norms.append(norm.item())
        result.lrs.append(learning_rate(run, step))
    return result
