"""Anvil's models in transformers: what `./train_gpt export` writes beside weights that have no class there.

    model = AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)

The parts are the fields of config.json, the names of train_gpt's flags; every matrix is (out, in). Computed as by the engine:

    x = norm(wte[token]) + wpe[t];   x_t = x_t + smear_lambda sigmoid(smear_gate x_t[:24]) x_(t-1);   x0 = x
    block:  x = resid_lambdas[l] x + x0_lambdas[l] x0;   x = x + c_proj attention(norm(x));   x = x + c_proj mlp(norm(x))
    x = x - backout_lambda (x after block L/2);   logits = softcap(head norm(x))

each part only if the config has it. Norms, rotations and the softcap are computed in float32 whatever the weights are in.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers import DynamicCache, GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

GATE_CHANNELS, SMEAR_CHANNELS, WINDOW_MULTIPLE = 12, 24, 128
# transformers 5.24 renamed the KV cache, as an argument and in what a model returns.
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
# What a config.json has that does not name a part: a GPT-2.
PARTS = {
    "head_dim": 0, "norm": "layernorm", "norm-eps": 1e-5, "biases": True, "qkv-biases": False, "mlp": "gelu", "tied-head": True, "positions": "learned",
    "rotary-base": 10000.0, "rotary-factor": 1.0, "rotary-low-turns": 1.0, "rotary-high-turns": 4.0, "rotary-scaling": "llama3",
    "rotary-original-length": 8192.0, "rotary-pattern": "R", "half-rotary": False, "clockwise-rotary": False, "qk-norm": False,
    "qk-rmsnorm": False, "qk-scale": 1.0, "qk-eps": 2.0**-23, "score-scale": 0.0, "window-pattern": "L",
    "full-last-layer": True, "short-window": 0, "embedding-norm": False,
    "value-embeddings": False, "residual-lambdas": False, "smear": False, "backout": False, "softcap-kind": "none",
    "softcap": 15.0,
}  # fmt: skip
CHOICES = {
    "norm": ("layernorm", "rmsnorm", "plain-rmsnorm"), "mlp": ("gelu", "relu-squared", "swiglu"), "positions": ("learned", "rotary"),
    "softcap-kind": ("none", "tanh", "isru"), "rotary-scaling": ("llama3", "yarn"),
}  # fmt: skip
# What transformers and other programs write, beside the fields of its own configs, and what changes no result.
HARMLESS = ("auto_map", "attn_implementation", "attention_dropout", "name_or_path", "tokenizer_class", "tie_word_embeddings")


class AnvilConfig(PretrainedConfig):
    model_type = "anvil"
    keys_to_ignore_at_inference = [CACHE]
    attribute_map = {
        "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
        "num_key_value_heads": "n_kv_head", "max_position_embeddings": "n_positions", "intermediate_size": "n_inner",
    }  # fmt: skip

    def __init__(self, vocab_size=256, n_positions=64, n_embd=128, n_layer=4, n_head=4, n_kv_head=0, n_inner=0, **others):
        self.vocab_size, self.n_positions, self.n_embd, self.n_layer, self.n_head = vocab_size, n_positions, n_embd, n_layer, n_head
        self.n_kv_head, self.n_inner = n_kv_head or n_head, n_inner or 4 * n_embd
        for name, default in PARTS.items():  # with the hyphens of the file, so that save_pretrained() writes them
            setattr(self, name, others.pop(name, default))
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f'config.json: "{name}" is {getattr(self, name)!r}: expected one of {", ".join(choices)}')
        theirs = (PretrainedConfig(), GenerationConfig())
        for name in others:
            is_known = name in HARMLESS or name.startswith(("_", "transformers", "unsloth_")) or any(hasattr(one, name) for one in theirs)
            if not is_known:
                raise ValueError(
                    f'config.json: "{name}" is a field that this modeling_anvil.py does not know and that may change what the '
                    "model computes: export the model again with the Anvil that trained it, or remove the field if it does not"
                )
        others["tie_word_embeddings"] = False  # a tied head has no tensor of its own here
        super().__init__(**others)

    def part(self, name):
        return getattr(self, name)

    @property
    def head_size(self):
        return self.head_dim or self.n_embd // self.n_head

    def rotates(self, layer):
        pattern = self.part("rotary-pattern")
        return self.part("positions") == "rotary" and pattern[layer % len(pattern)] == "R"

    def has_value_embedding(self, layer):
        return self.part("value-embeddings") and layer % 2 == (self.n_layer - 1) % 2

    def window(self, layer):
        """How many tokens before its own a query sees; None: all."""
        pattern = self.part("window-pattern")
        if pattern[layer % len(pattern)] == "L" or (self.part("full-last-layer") and layer == self.n_layer - 1):
            return None
        quarter = -(-self.n_positions // 4)
        window = self.part("short-window") or -(-quarter // WINDOW_MULTIPLE) * WINDOW_MULTIPLE
        return window if window < self.n_positions else None


def plain_norm(x, eps):
    return F.rms_norm(x.float(), (x.shape[-1],), eps=eps).to(x.dtype)


class Norm(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.kind, self.eps = config.part("norm"), config.part("norm-eps")
        if self.kind != "plain-rmsnorm":
            self.weight = nn.Parameter(torch.ones(config.n_embd))
        if self.kind == "layernorm":
            self.bias = nn.Parameter(torch.zeros(config.n_embd))

    def forward(self, x):
        if self.kind == "plain-rmsnorm":
            return plain_norm(x, self.eps)
        weight = self.weight.float()
        if self.kind == "rmsnorm":
            return F.rms_norm(x.float(), weight.shape, weight, self.eps).to(x.dtype)
        return F.layer_norm(x.float(), weight.shape, weight, self.bias.float(), self.eps).to(x.dtype)


class Gain(nn.Module):
    """RMSNorm of a head's query or key."""

    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x, eps):
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), eps).to(x.dtype)


def rotary_table(config, positions):
    """cos and sin of each position, (B, 1, T, HS/2) float32, from double; the direction is in the sign of the sines."""
    HS = config.head_size
    half = HS // 2
    turning = HS // 4 if config.part("half-rotary") else half
    steps = max(turning - 1, 1) if config.part("half-rotary") else half
    j = torch.arange(half, dtype=torch.float64, device=positions.device)
    frequencies = torch.where(j < turning, config.part("rotary-base") ** (-j / steps), torch.zeros_like(j))
    factor = config.part("rotary-factor")
    if factor != 1:  # see llmc/ops/rotary.h
        length, low, high = (config.part("rotary-" + name) for name in ("original-length", "low-turns", "high-turns"))
        if config.part("rotary-scaling") == "yarn":
            first, last = (HS * math.log(length / (2 * math.pi * n)) / (2 * math.log(config.part("rotary-base"))) for n in (high, low))
            first, last = max(math.floor(first), 0), min(math.ceil(last), HS - 1)
            kept = 1 - ((j - first) / (last - first or 0.001)).clamp(0, 1)
        else:
            kept = ((length * frequencies / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
        frequencies = (1 - kept) * frequencies / factor + kept * frequencies
    angles = positions[:, None, :, None].double() * frequencies
    return angles.cos().float(), (-angles.sin() if config.part("clockwise-rotary") else angles.sin()).float()


class Attention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.config, self.layer = config, layer
        self.NH, self.NKV, self.HS = config.n_head, config.n_kv_head, config.head_size
        biases = config.part("biases")
        self.c_attn = nn.Linear(config.n_embd, (self.NH + 2 * self.NKV) * self.HS, bias=biases or config.part("qkv-biases"))
        if config.part("qk-rmsnorm"):
            self.q_norm, self.k_norm = Gain(self.HS), Gain(self.HS)
        self.c_proj = nn.Linear(self.NH * self.HS, config.n_embd, bias=biases)
        if config.has_value_embedding(layer):
            self.ve_gate = nn.Linear(GATE_CHANNELS, self.NKV, bias=False)

    def forward(self, x, value_embedding, table, mask, cache, carried):
        """carried: what the cache keeps beside this layer's keys, or None; see Transformer.forward."""
        B, T, _ = x.shape
        q, k, v = self.c_attn(x).view(B, T, -1, self.HS).transpose(1, 2).split([self.NH, self.NKV, self.NKV], 1)
        if value_embedding is not None:
            gate = 3 * torch.sigmoid(self.ve_gate(x[..., :GATE_CHANNELS]))
            v = v + gate.transpose(1, 2)[..., None] * value_embedding.view(B, T, self.NKV, self.HS).transpose(1, 2)
        if self.config.part("qk-rmsnorm"):
            eps = self.config.part("norm-eps")
            q, k = self.q_norm(q, eps), self.k_norm(k, eps)
        if table is not None and self.config.rotates(self.layer):
            q, k = self.positioned(q, table), self.positioned(k, table)
        if cache is not None:
            k, v = cache.update(k if carried is None else torch.cat([k, carried], 1), v, self.layer)
            k = k[:, : self.NKV]
        k, v = (part.repeat_interleave(self.NH // self.NKV, 1) for part in (k, v))
        scale = self.config.part("score-scale") or 1 / math.sqrt(self.HS)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        return self.c_proj(out.transpose(1, 2).reshape(B, T, -1))

    def positioned(self, x, table):
        (cos, sin), (first, second) = table, x.float().chunk(2, -1)
        out = torch.cat([first * cos - second * sin, first * sin + second * cos], -1)
        if self.config.part("qk-norm"):
            out = F.rms_norm(out, (self.HS,), eps=self.config.part("qk-eps"))
        return (out * self.config.part("qk-scale")).to(x.dtype)


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.kind, biases = config.part("mlp"), config.part("biases")
        self.c_fc = nn.Linear(config.n_embd, config.n_inner * (2 if self.kind == "swiglu" else 1), bias=biases)
        self.c_proj = nn.Linear(config.n_inner, config.n_embd, bias=biases)

    def forward(self, x):
        x = self.c_fc(x)
        if self.kind == "gelu":
            x = F.gelu(x, approximate="tanh")
        elif self.kind == "relu-squared":
            x = F.relu(x).square()
        else:
            gate, up = x.chunk(2, -1)
            x = F.silu(gate) * up
        return self.c_proj(x)


class Block(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = Norm(config), Attention(config, layer), Norm(config), Mlp(config)

    def forward(self, x, *for_attention):
        x = x + self.attn(self.ln_1(x), *for_attention)
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, L, C = config, config.n_layer, config.n_embd
        self.wte = nn.Embedding(config.vocab_size, C)
        if config.part("positions") == "learned":
            self.wpe = nn.Embedding(config.n_positions, C)
        if config.part("smear"):
            self.smear_gate = nn.Linear(SMEAR_CHANNELS, 1, bias=False)
            self.smear_lambda = nn.Parameter(torch.zeros(1))
        if config.part("residual-lambdas"):
            self.resid_lambdas, self.x0_lambdas = nn.Parameter(torch.ones(L)), nn.Parameter(torch.zeros(L))
        if config.part("backout"):
            self.backout_lambda = nn.Parameter(torch.zeros(1))
        tables = [str(layer) for layer in range(L) if config.has_value_embedding(layer)]
        if tables:
            channels = config.n_kv_head * config.head_size
            self.value_embeds = nn.ModuleDict({layer: nn.Embedding(config.vocab_size, channels) for layer in tables})
        self.h = nn.ModuleList([Block(config, layer) for layer in range(L)])
        self.ln_f = Norm(config)
        if not config.part("tied-head"):
            self.lm_head = nn.Linear(C, config.vocab_size, bias=False)

    def forward(self, tokens, attention_mask, positions, cache, logits_to_keep):
        c, (B, T) = self.config, tokens.shape
        past = cache.get_seq_length() if cache is not None else 0
        real = torch.ones(B, past + T, dtype=torch.bool, device=tokens.device)
        if attention_mask is not None:
            if attention_mask.shape != real.shape:
                raise ValueError(f"attention_mask is {tuple(attention_mask.shape)}, expected {tuple(real.shape)}: one of each token so far")
            real = attention_mask.bool()
        if positions is None:
            positions = (real.long().cumsum(1) - 1).clamp(min=0)[:, past:]

        x = self.wte(tokens)
        if c.part("embedding-norm"):
            x = plain_norm(x, c.part("norm-eps"))
        if c.part("positions") == "learned":
            x, table = x + self.wpe(positions), None
        else:
            table = rotary_table(c, positions)
        carried = None
        if c.part("smear"):
            # What a token gets is of the one before it, so the cache keeps embeddings: as more heads of the first
            # layer's keys, that they may follow these wherever generate() moves rows.
            carried = F.pad(x, (0, -x.shape[2] % c.head_size)).view(B, T, -1, c.head_size).transpose(1, 2)
            before = torch.zeros_like(x[:, :1])
            if past > 0:
                before = cache.layers[0].keys[:, c.n_kv_head :, -1:].transpose(1, 2).reshape(B, 1, -1)
                before = before[..., : x.shape[2]].to(x.dtype)
            before = torch.cat([before, x[:, :-1]], 1)
            has_before = torch.cat([torch.zeros_like(real[:, :1]), real[:, :-1]], 1)[:, past:, None]
            gate = self.smear_lambda * torch.sigmoid(self.smear_gate(x[..., :SMEAR_CHANNELS]))
            x = x + torch.where(has_before, gate * before, torch.zeros_like(x))

        t = torch.arange(past, past + T, device=x.device)[:, None]
        s = torch.arange(past + T, device=x.device)
        masks = {}

        def mask_of(window):
            if window not in masks:
                seen = (s <= t) & (t - s <= window) if window is not None else s <= t
                masks[window] = (seen & real[:, None, None, :]) | (s == t)  # padding sees itself: a softmax needs something
            return masks[window]

        x0 = x
        for layer, block in enumerate(self.h):
            if c.part("residual-lambdas"):
                x = self.resid_lambdas[layer] * x + self.x0_lambdas[layer] * x0
            values = self.value_embeds[str(layer)](tokens) if c.has_value_embedding(layer) else None
            x = block(x, values, table, mask_of(c.window(layer)), cache, carried if layer == 0 else None)
            if c.part("backout") and layer == c.n_layer // 2:
                middle = x
        if c.part("backout"):
            x = x - self.backout_lambda * middle
        x = self.ln_f(x)
        x = x[:, -logits_to_keep if logits_to_keep else 0 :] if isinstance(logits_to_keep, int) else x[:, logits_to_keep]
        logits = F.linear(x, (self.wte if c.part("tied-head") else self.lm_head).weight)
        kind, cap = c.part("softcap-kind"), c.part("softcap")
        if kind == "none":
            return logits
        z = logits.float()
        return (cap * torch.tanh(z / cap) if kind == "tanh" else cap * z / (z.square() + cap * cap).sqrt()).to(logits.dtype)


class AnvilForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = AnvilConfig
    base_model_prefix = "transformer"
    _no_split_modules = ["Block"]
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        self.transformer = Transformer(config)
        self.post_init()

    def get_input_embeddings(self):
        return self.transformer.wte

    def set_input_embeddings(self, embeddings):
        self.transformer.wte = embeddings

    def get_output_embeddings(self):
        return None if self.config.part("tied-head") else self.transformer.lm_head

    def forward(
        self, input_ids, attention_mask=None, position_ids=None, past_key_values=None, labels=None, use_cache=None,
        logits_to_keep=0, cache=None, **others,
    ):  # fmt: skip
        cache = past_key_values if cache is None else cache
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        logits = self.transformer(input_ids, attention_mask, position_ids, cache, logits_to_keep)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, self.config.vocab_size, **others)
        return CausalLMOutputWithPast(loss=loss, logits=logits, **{CACHE: cache})
