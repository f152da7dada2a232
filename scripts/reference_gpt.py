"""One transformer in PyTorch, described by its config: GPT-2, nanochat's, modded-nanogpt's and Llama's models.

Written from the formulas. scripts/make_fixtures.py takes references from it, and scripts/reference_training.py trains it.
Parameters have the engine's names, Hugging Face's for GPT-2; every matrix is (out, in) as in nn.Linear.

    x = norm(wte[token]) + wpe[t]                                 each part only if the config has it
    x_t = x_t + smear_lambda sigmoid(smear_gate x_t[:24]) x_(t-1)                t > 0, with x_(t-1) before its own smear
    x0 = x;   before block l:   x = resid_lambdas[l] x + x0_lambdas[l] x0
    block:    x = x + c_proj attention(norm(x));   x = x + c_proj mlp(norm(x))
    dropout, after the embeddings and after both c_proj
    x = x - backout_lambda (x after block L/2);   logits = softcap(head norm(x))

Radford et al., 2019 (GPT-2); Su et al., 2021, arXiv:2104.09864 (rotary embeddings); Henry et al., 2020, arXiv:2010.04245
(QK-norm); Grattafiori et al., 2024, arXiv:2407.21783 (rotary scaling); So et al., 2021, arXiv:2109.08668 (squared ReLU);
Shazeer, 2020, arXiv:2002.05202 (SwiGLU).
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

EPS_F32 = 2.0**-23  # the default of PyTorch's rms_norm in float32, which these models use
GATE_CHANNELS, SMEAR_CHANNELS = 12, 24


@dataclass(frozen=True)
class Config:
    L: int  # layers
    NH: int  # heads
    NKV: int  # key/value heads, each shared by NH / NKV consecutive query heads
    HS: int  # channels per head
    C: int  # channels
    F: int  # hidden channels of the MLP
    V: int  # vocabulary, without padding
    max_T: int = 0  # rows of wpe, if positions are learned
    norm: str = "layernorm"  # or rmsnorm, with a gain, or rmsnorm_plain
    eps: float = 1e-5
    biases: bool = True
    qkv_biases: bool = False  # biases of c_attn only
    positions: str = "learned"  # or rotary
    base: float = 1e4  # of rotary embeddings
    scaling: tuple = ()  # Llama 3.1's: factor, low and high number of turns, original length
    rotary_layers: str = "R"  # a letter per layer, repeated: N does not rotate
    qk_rmsnorm: bool = False  # an RMSNorm with a gain on each head's query and key, before the rotation
    half_truncated: bool = False  # the first HS/4 frequencies go from 1 to 1/base, the others are 0
    clockwise: bool = False  # rotates by minus the angle, as nanochat and modded-nanogpt do
    qk_norm: bool = False
    qk_scale: float = 1.0  # queries and keys are multiplied by it
    score_scale: float = 0.0  # 0: 1 / sqrt(HS)
    windows: tuple = ()  # per layer: a query sees itself and that many keys before it; -1: all. Empty: -1 in all layers
    mlp: str = "gelu"  # in the tanh form, or relu_squared or swiglu
    tied: bool = True  # the head's weights are wte
    embedding_norm: bool = False  # without a gain
    value_embeds: bool = False  # in the last layer, and every second one before it
    lambdas: bool = False
    smear: bool = False
    backout: bool = False
    softcap: str = "none"  # or tanh, or isru: cap z / sqrt(z^2 + cap^2)
    cap: float = 15.0

    def has_value_embeds(self, layer):
        return self.value_embeds and layer % 2 == (self.L - 1) % 2


def shapes(config):
    c = config
    q, kv = c.NH * c.HS, c.NKV * c.HS
    found = {"wte.weight": (c.V, c.C)}

    def linear(name, outputs, inputs):
        found[name + ".weight"] = (outputs, inputs)
        if c.biases or (c.qkv_biases and name.endswith("c_attn")):
            found[name + ".bias"] = (outputs,)

    def norm(name):
        if c.norm != "rmsnorm_plain":
            found[name + ".weight"] = (c.C,)
        if c.norm == "layernorm":
            found[name + ".bias"] = (c.C,)

    if c.positions == "learned":
        found["wpe.weight"] = (c.max_T, c.C)
    if c.lambdas:
        found |= {"resid_lambdas": (c.L,), "x0_lambdas": (c.L,)}
    if c.smear:
        found |= {"smear_gate.weight": (1, SMEAR_CHANNELS), "smear_lambda": (1,)}
    if c.backout:
        found["backout_lambda"] = (1,)
    for layer in range(c.L):
        h = f"h.{layer}."
        norm(h + "ln_1")
        linear(h + "attn.c_attn", q + 2 * kv, c.C)
        if c.has_value_embeds(layer):
            found |= {f"value_embeds.{layer}.weight": (c.V, kv), h + "attn.ve_gate.weight": (c.NKV, GATE_CHANNELS)}
        if c.qk_rmsnorm:
            found |= {h + "attn.q_norm.weight": (c.HS,), h + "attn.k_norm.weight": (c.HS,)}
        linear(h + "attn.c_proj", c.C, q)
        norm(h + "ln_2")
        linear(h + "mlp.c_fc", 2 * c.F if c.mlp == "swiglu" else c.F, c.C)
        linear(h + "mlp.c_proj", c.C, c.F)
    norm("ln_f")
    if not c.tied:
        found["lm_head.weight"] = (c.V, c.C)
    return found


def rotary_turns(T, HS, base, half_truncated=False, clockwise=False, scaling=()):
    """(T, HS/2) complex numbers of absolute value 1: the rotation of channels j and j + HS/2 at each position."""
    if half_truncated:
        turning = torch.tensor(base, dtype=torch.float64) ** -torch.linspace(0, 1, HS // 4, dtype=torch.float64)
        frequencies = torch.cat([turning, torch.zeros(HS // 4, dtype=torch.float64)])
    else:
        frequencies = base ** -(torch.arange(0, HS, 2, dtype=torch.float64) / HS)
    if scaling:
        # By wavelengths, as in transformers' _compute_llama3_parameters.
        factor, low, high, length = scaling
        wavelengths = 2 * math.pi / frequencies
        smooth = (length / wavelengths - low) / (high - low)
        between = (1 - smooth) * frequencies / factor + smooth * frequencies
        slow, fast = wavelengths > length / low, wavelengths < length / high
        frequencies = torch.where(slow, frequencies / factor, torch.where(fast, frequencies, between))
    angles = torch.outer(torch.arange(T, dtype=torch.float64), -frequencies if clockwise else frequencies)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x, turns):
    """x (B, T, heads, HS), turns (T, HS/2)"""
    rotated = torch.complex(*x.chunk(2, dim=-1)) * turns[:, None]
    return torch.cat([rotated.real, rotated.imag], -1)


def causal_attention(q, k, v, scale=0.0, window=-1, starts=None):
    """q (B,T,NH,HS), k and v (B,T,NKV,HS) -> out (B,T,NH,HS), lse (B,NH,T): log-sum-exp of the scaled scores.

    starts (B,T): no query sees a key before it."""
    T, NH, HS = q.shape[1:]
    k, v = (x.repeat_interleave(NH // x.shape[2], 2) for x in (k, v))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    t, s = torch.arange(T)[:, None], torch.arange(T)
    seen = (s <= t) & (s >= t - (T if window < 0 else window))
    if starts is not None:
        seen = seen & (s >= starts[:, None, :, None])
    scores = (q @ k.transpose(2, 3) * (scale or 1 / math.sqrt(HS))).masked_fill(~seen, -math.inf)
    return (scores.softmax(3) @ v).transpose(1, 2), scores.logsumexp(3)


def softcap(kind, cap, z):
    if kind == "tanh":
        return cap * torch.tanh(z / cap)
    if kind == "isru":
        return cap * z / (z.square() + cap**2).sqrt()
    return z


# PyTorch's type and the largest number of each FP8 type.
FP8 = {"e4m3": (torch.float8_e4m3fn, 448.0), "e5m2": (torch.float8_e5m2, 57344.0)}


def codes_of(x, name):
    """The codes of float32 numbers in an FP8 type; larger numbers saturate."""
    dtype, largest = FP8[name]
    return x.clamp(-largest, largest).to(dtype).view(torch.uint8)


def quantized(x, name):
    """Quantizes float32 numbers with one scale: returns amax, the inverse of the scale, and the codes."""
    amax = x.abs().max()
    scale = (FP8[name][1] / amax.double().clamp(min=1e-12)).float()
    return amax, 1 / scale, codes_of(x * scale, name)


def rounded_to_fp8(x, name):
    """x, rounded to FP8."""
    _, inverse, codes = quantized(x.float(), name)
    return codes.view(FP8[name][0]).to(x.dtype) * inverse.to(x.dtype)


class LinearInFp8(torch.autograd.Function):
    """x W^T with all operands in FP8, also in the backward pass ("FP8 Formats for Deep Learning", Micikevicius et al., 2022,
    arXiv:2209.05433). Calls see(operand, its type) for each operand."""

    @staticmethod
    def forward(ctx, x, weight, see):
        see(x, "e4m3")
        x, weight = rounded_to_fp8(x, "e4m3"), rounded_to_fp8(weight, "e4m3")
        ctx.save_for_backward(x, weight)
        ctx.see = see
        return x @ weight.T

    @staticmethod
    def backward(ctx, dout):
        x, weight = ctx.saved_tensors
        ctx.see(dout, "e5m2")
        dout = rounded_to_fp8(dout, "e5m2")
        return dout @ weight, dout.flatten(0, -2).T @ x.flatten(0, -2), None


def suits_fp8(weight):
    return all(size % 16 == 0 and size >= 128 for size in weight.shape)


def forward(config, params, tokens, starts=None, see=None, drop=lambda x, site: x):
    """tokens (B,T) -> logits (B,T,V).

    starts (B,T): where in its row each token's document begins, for attention. see: if given, the blocks' large linear
    layers are computed in FP8, and it is called for each operand. drop(x, site): applies dropout to x at a site: 0 after
    the embeddings, then two per layer."""
    c, (B, T) = config, tokens.shape

    def norm(x, name):
        weight, bias = params.get(name + ".weight"), params.get(name + ".bias")
        if c.norm == "layernorm":
            return F.layer_norm(x, (c.C,), weight, bias, c.eps)
        return F.rms_norm(x, (c.C,), weight, c.eps)

    def linear(x, name):
        weight, bias = params[name + ".weight"], params.get(name + ".bias")
        if see and suits_fp8(weight):
            out = LinearInFp8.apply(x, weight, see)
            return out if bias is None else out + bias
        return F.linear(x, weight, bias)

    def attention(x, layer):
        h = f"h.{layer}.attn."
        qkv = linear(x, h + "c_attn").view(B, T, c.NH + 2 * c.NKV, c.HS)
        qk, v = qkv.split([c.NH + c.NKV, c.NKV], 2)
        if c.has_value_embeds(layer):
            gate = 3 * torch.sigmoid(linear(x[..., :GATE_CHANNELS], h + "ve_gate"))
            v = v + gate[..., None] * params[f"value_embeds.{layer}.weight"][tokens].view(v.shape)
        if c.qk_rmsnorm:
            q, k = qk.split([c.NH, c.NKV], 2)
            q, k = (F.rms_norm(x, (c.HS,), params[h + name + ".weight"], c.eps) for x, name in ((q, "q_norm"), (k, "k_norm")))
            qk = torch.cat([q, k], 2)
        if c.positions == "rotary" and c.rotary_layers[layer % len(c.rotary_layers)] == "R":
            qk = rotate(qk, turns)
        if c.qk_norm:
            qk = F.rms_norm(qk, (c.HS,), eps=EPS_F32)
        q, k = (c.qk_scale * qk).split([c.NH, c.NKV], 2)
        out, _ = causal_attention(q, k, v, c.score_scale, c.windows[layer] if c.windows else -1, starts)
        return linear(out.flatten(2), h + "c_proj")

    def mlp(x, layer):
        h = f"h.{layer}.mlp."
        x = linear(x, h + "c_fc")
        if c.mlp == "gelu":
            x = F.gelu(x, approximate="tanh")
        elif c.mlp == "relu_squared":
            x = F.relu(x).square()
        else:
            gate, up = x.chunk(2, dim=-1)
            x = F.silu(gate) * up
        return linear(x, h + "c_proj")

    x = params["wte.weight"][tokens]
    if c.embedding_norm:
        x = F.rms_norm(x, (c.C,), eps=c.eps)
    if c.positions == "learned":
        x = x + params["wpe.weight"][:T]
    else:
        turns = rotary_turns(T, c.HS, c.base, c.half_truncated, c.clockwise, c.scaling)
        turns = turns.to(torch.complex64 if x.dtype == torch.float32 else torch.complex128)
    if c.smear:
        gate = params["smear_lambda"] * torch.sigmoid(linear(x[:, 1:, :SMEAR_CHANNELS], "smear_gate"))
        x = torch.cat([x[:, :1], x[:, 1:] + gate * x[:, :-1]], 1)
    x0 = x = drop(x, 0)
    for layer in range(c.L):
        h = f"h.{layer}."
        if c.lambdas:
            x = params["resid_lambdas"][layer] * x + params["x0_lambdas"][layer] * x0
        x = x + drop(attention(norm(x, h + "ln_1"), layer), 1 + 2 * layer)
        x = x + drop(mlp(norm(x, h + "ln_2"), layer), 2 + 2 * layer)
        if layer == c.L // 2:
            middle = x
    if c.backout:
        x = x - params["backout_lambda"] * middle
    head = params["wte.weight" if c.tied else "lm_head.weight"]
    return softcap(c.softcap, c.cap, F.linear(norm(x, "ln_f"), head))
