"""Makes the reference tensors in test/fixtures/ with PyTorch: what every op and the whole model are checked against.

    pip install torch==2.13.0 numpy          (the CPU build is enough)
    python scripts/make_fixtures.py          writes test/fixtures/*.safetensors; the same bytes every time
    python scripts/make_fixtures.py --check  makes them again elsewhere and compares; exit code 1 on a difference

Inputs are float32, made from integers (splitmix64) without any library function, so that every machine and also the
C++ tests (test/op_testing.h) get the same bits. References are computed by PyTorch in float64 from those float32
inputs and rounded once to float32: a test's tolerance has to cover our error only. Double results may differ in the
last bits between machines, so --check allows references one float32 epsilon of |value| + rms; everything else must be
identical. Tensors that begin with `grad.` or `want.` are references; all others are inputs.
"""

import argparse
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F

import reference_gpt2 as gpt2
from fixture_file import TORCH, Fixture, bell, check, save

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "test" / "fixtures"


# ---- the ops ----------------------------------------------------------------------------------------------------


def embedding():
    f = Fixture("embedding")
    for B, T, C, V in [(1, 1, 1, 3), (1, 1, 16, 5), (2, 5, 7, 11), (3, 4, 33, 2), (2, 9, 48, 301)]:
        case = f"{B}x{T}x{C}."
        wte, wpe = f.floats(case + "wte", V, C), f.floats(case + "wpe", T, C)
        tokens, dout = f.ints(case + "tokens", B, T, below=V), f.floats(case + "dout", B, T, C)
        out = wte[tokens] + wpe[torch.arange(T)]
        out.backward(dout)
        f.want(f"want.{case}out", out)
        f.want(f"want.{case}dwte", wte.grad)
        f.want(f"want.{case}dwpe", wpe.grad)
    return f


def layernorm():
    f = Fixture("layernorm")
    # The third number is what every element is shifted by: 1000 standard deviations away from zero in one case.
    for N, C, shift in [(1, 8, 0), (3, 7, 0), (3, 33, 0.5), (17, 48, 0), (2, 768, 0), (5, 100, 1000), (40, 16, -3)]:
        case = f"{N}x{C}."
        inp1, inp2 = f.floats(case + "inp1", N, C, shift=shift), f.floats(case + "inp2", N, C)
        weight, bias = f.floats(case + "weight", C, scale=0.5, shift=1), f.floats(case + "bias", C, scale=0.5)
        dout = f.floats(case + "dout", N, C)
        out = F.layer_norm(inp1, (C,), weight, bias, eps=1e-5)
        out.backward(dout)
        f.want(f"want.{case}out", out)
        f.want(f"want.{case}mean", inp1.mean(1))
        f.want(f"want.{case}rstd", (inp1.var(1, unbiased=False) + 1e-5).rsqrt())
        f.want(f"want.{case}dinp", inp1.grad)
        f.want(f"want.{case}dweight", weight.grad)
        f.want(f"want.{case}dbias", bias.grad)
        # The fused op normalises the float32 sum it hands on, so that sum is where its reference starts, too.
        residual = (inp1.float() + inp2.float()).double()
        f.want(f"want.{case}residual", residual)
        f.want(f"want.{case}residual_out", F.layer_norm(residual, (C,), weight, bias, eps=1e-5))
    return f


def matmul():
    f = Fixture("matmul")
    # The exact tests in test/matmul_test.cpp cover the product of all interesting sizes; these are true roundings.
    for N, C, OC in [(1, 1, 1), (3, 7, 33), (5, 1, 3), (12, 255, 32), (13, 257, 33), (4, 600, 17), (257, 5, 9),
                     (600, 3, 5), (3, 5, 600)]:
        case = f"{N}x{C}x{OC}."
        inp, weight = f.floats(case + "inp", N, C), f.floats(case + "weight", OC, C)
        bias, dout = f.floats(case + "bias", OC), f.floats(case + "dout", N, OC)
        out = F.linear(inp, weight, bias)
        out.backward(dout)
        f.want(f"want.{case}out", out)
        f.want(f"want.{case}dinp", inp.grad)
        f.want(f"want.{case}dweight", weight.grad)
        f.want(f"want.{case}dbias", bias.grad)
    return f


def gelu():
    f = Fixture("gelu")
    grid = (np.arange(-480, 481).astype(np.float32) / np.float32(16)) * np.float32(1.0009765625)  # just beyond +-30
    powers = np.float32(2) ** np.arange(-126, 7, 4).astype(np.float32)  # the smallest normal number to 64
    inp = f.given("inp", np.concatenate([grid, powers, -powers, np.array([0.0, -0.0], np.float32)]))
    dout = f.floats("dout", len(inp))
    out = F.gelu(inp, approximate="tanh")
    out.backward(dout)
    f.want("want.out", out)
    f.want("want.dinp", inp.grad)
    return f


def attention():
    f = Fixture("attention")
    # scale 1: scores near +-3. scale 16: scores in the hundreds, a softmax that is nearly one-hot.
    for B, T, NH, HS, scale in [(1, 1, 1, 4, 1), (2, 2, 3, 16, 1), (1, 31, 2, 16, 1), (1, 33, 1, 64, 1),
                                (1, 64, 1, 32, 1), (1, 65, 1, 80, 1), (1, 150, 2, 4, 1), (2, 40, 2, 16, 16)]:
        case = f"{B}x{T}x{NH}x{HS}."
        qkv, dout = f.floats(case + "qkv", B, T, 3, NH, HS, scale=scale), f.floats(case + "dout", B, T, NH, HS)
        out, lse = gpt2.causal_attention(qkv)
        out.backward(dout)
        f.want(f"want.{case}out", out)
        f.want(f"want.{case}lse", lse)
        f.want(f"want.{case}dqkv", qkv.grad)
    # Windows and shared keys. Tiles of the CPU are 32 x 64: windows within one, at its border, and over several.
    for B, T, NH, NKV, HS, window, scale in [(2, 5, 4, 2, 4, 0, 0), (1, 20, 6, 2, 4, 3, 0.75), (2, 40, 3, 1, 4, -1, 0),
                                             (1, 70, 2, 2, 8, 31, 0), (1, 150, 4, 2, 4, 64, 1.25)]:
        case = f"{B}x{T}x{NH}x{NKV}x{HS}w{window}."
        qkv, dout = f.floats(case + "qkv", B, T, NH + 2 * NKV, HS), f.floats(case + "dout", B, T, NH, HS)
        q, k, v = (x.transpose(1, 2) for x in qkv.split([NH, NKV, NKV], 2))  # (B, heads, T, HS)
        k, v = (x.repeat_interleave(NH // NKV, 1) for x in (k, v))
        seen = torch.tensor([[s <= t and (window < 0 or t - window <= s) for s in range(T)] for t in range(T)])
        scores = q @ k.transpose(2, 3) * (scale or HS**-0.5)
        scores = scores.masked_fill(~seen, -np.inf)
        out = (scores.softmax(3) @ v).transpose(1, 2)
        out.backward(dout)
        f.want(f"want.{case}out", out)
        f.want(f"want.{case}lse", scores.logsumexp(3))
        f.want(f"want.{case}dqkv", qkv.grad)
    return f


def cross_entropy():
    f = Fixture("cross_entropy")
    for N, V, scale in [(1, 1, 1), (1, 5, 1), (3, 7, 3), (5, 65, 1), (4, 301, 3), (6, 33, 1e4)]:
        case = f"{N}x{V}."
        logits, targets = f.floats(case + "logits", N, V, scale=scale), f.ints(case + "targets", N, below=V)
        targets[0] = V - 1  # the last column that counts; `targets` is a copy, so the stored one follows by hand
        f.arrays[case + "targets"][0] = V - 1
        losses = F.cross_entropy(logits, targets, reduction="none")
        losses.backward(torch.full((N,), 0.25, dtype=torch.float64))  # dloss
        f.want(f"want.{case}losses", losses)
        f.want(f"want.{case}dlogits", logits.grad)
    # Logits far below the cap, about as large, and far beyond it.
    for N, V, scale, softcap in [(1, 5, 1, 15), (5, 65, 8, 15), (4, 301, 3, 30), (3, 33, 100, 8)]:
        case = f"{N}x{V}.softcap."
        logits, targets = f.floats(case + "logits", N, V, scale=scale), f.ints(case + "targets", N, below=V)
        losses = F.cross_entropy(softcap * torch.tanh(logits / softcap), targets, reduction="none")
        losses.backward(torch.full((N,), 0.25, dtype=torch.float64))  # dloss
        f.want(f"want.{case}losses", losses)
        f.want(f"want.{case}dlogits", logits.grad)
    # GPT-2's vocabulary: the logits are bell(50257, (3, 50257), 2), and every 53rd column of the gradient is kept.
    logits = torch.from_numpy(bell(50257, (3, 50257), 2)).double().requires_grad_()
    targets = torch.tensor([50256, 0, 31337])
    f.arrays["gpt2.targets"] = targets.numpy().astype(np.int32)
    losses = F.cross_entropy(logits, targets, reduction="none")
    losses.backward(torch.full((3,), 0.25, dtype=torch.float64))
    f.want("want.gpt2.losses", losses)
    f.want("want.gpt2.dlogits_every_53rd", logits.grad[:, ::53])
    f.want("want.gpt2.dlogits_target", logits.grad[torch.arange(3), targets])
    return f


def global_norm():
    f = Fixture("global_norm")
    for n in [1, 7, 1000, 4099]:
        x = f.floats(f"{n}.x", n, scale=3)
        f.want(f"want.{n}.norm", torch.linalg.vector_norm(x).reshape(1))
    return f


ADAMW_CASES = {  # test/adamw_test.cpp has the same table: n, learning_rate, beta1, beta2, eps, weight_decay, grad_scale
    "one": (1, 1e-2, 0.9, 0.999, 1e-8, 0.0, 1.0),
    "decay": (37, 3e-3, 0.9, 0.95, 1e-8, 0.1, 1.0),
    "clipped": (1003, 6e-4, 0.8, 0.99, 1e-6, 0.2, 0.125),
}


def adamw():
    f = Fixture("adamw")
    for case, (n, lr, beta1, beta2, eps, weight_decay, grad_scale) in ADAMW_CASES.items():
        param, grads = f.floats(case + ".param", n), f.floats(case + ".grads", 4, n, scale=0.3).detach()
        adam = torch.optim.AdamW([param], lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay)
        for step in range(4):
            param.grad = grads[step] * grad_scale
            adam.step()
            if step in (0, 3):
                f.want(f"want.{case}.param{step + 1}", param)
                f.want(f"want.{case}.m{step + 1}", adam.state[param]["exp_avg"])
                f.want(f"want.{case}.v{step + 1}", adam.state[param]["exp_avg_sq"])
    return f


def rmsnorm():
    f = Fixture("rmsnorm")
    # The third number is the inputs' scale: in one case eps outweighs their mean square.
    for N, C, scale in [(1, 8, 1), (3, 7, 1), (3, 33, 100), (17, 48, 1), (1, 1536, 1), (5, 100, 2**-10), (40, 16, 1)]:
        case = f"{N}x{C}."
        inp1, inp2 = f.floats(case + "inp1", N, C, scale=scale), f.floats(case + "inp2", N, C, scale=scale)
        weight, dout = f.floats(case + "weight", C, scale=0.5, shift=1), f.floats(case + "dout", N, C)
        out = F.rms_norm(inp1, (C,), weight, eps=1e-5)
        out.backward(dout)
        f.want(f"want.{case}out", out)
        f.want(f"want.{case}rstd", (inp1.square().mean(1) + 1e-5).rsqrt())
        f.want(f"want.{case}dinp", inp1.grad)
        f.want(f"want.{case}dweight", weight.grad)
        inp1.grad = None
        out = F.rms_norm(inp1, (C,), eps=1e-5)
        out.backward(dout)
        f.want(f"want.{case}out_no_gain", out)
        f.want(f"want.{case}dinp_no_gain", inp1.grad)
        # The fused op normalises the float32 sum it hands on, so that sum is where its reference starts, too.
        residual = (inp1.float() + inp2.float()).double()
        f.want(f"want.{case}residual", residual)
        f.want(f"want.{case}residual_out", F.rms_norm(residual, (C,), weight, eps=1e-5))
    return f


def relu_squared():
    f = Fixture("relu_squared")
    special = np.array([0.0, -0.0, 2.0**-40, -(2.0**-40), 3e4, -3e4], np.float32)
    inp = f.given("inp", np.concatenate([special, bell(f.seed("inp"), (327,), 8)]))
    dout = f.floats("dout", 333)
    out = F.relu(inp).square()
    out.backward(dout)
    f.want("want.out", out)
    f.want("want.dinp", inp.grad)
    return f


def swiglu():
    f = Fixture("swiglu")
    for N, C, scale in [(1, 1, 1), (3, 7, 1), (2, 16, 4), (5, 33, 1), (4, 150, 8)]:
        case = f"{N}x{C}."
        inp, dout = f.floats(case + "inp", N, 2 * C, scale=scale), f.floats(case + "dout", N, C)
        gate, up = inp.chunk(2, dim=1)
        out = F.silu(gate) * up
        out.backward(dout)
        f.want(f"want.{case}out", out)
        f.want(f"want.{case}dinp", inp.grad)
    return f


# test/rotary_test.cpp has the same table: B, T, NH, NKV, HS, base, half_truncated, clockwise, qk_norm, scale.
ROTARY_CASES = {
    "one": (1, 1, 1, 1, 2, 1e4, False, False, False, 1.0),
    "llama": (2, 5, 4, 2, 16, 5e5, False, False, False, 1.0),
    "odd": (3, 7, 3, 1, 14, 100.0, False, False, True, 0.75),
    "nanochat": (1, 6, 2, 1, 128, 1e5, False, True, True, 1.2),
    "modded": (2, 5, 2, 2, 64, 1024.0, True, True, True, 1.0),
    "scaled": (1, 3, 1, 1, 34, 1e4, False, True, False, 1.5),
}


ROTARY_ROWS = [0, 1, 2, 3, 100, 1023, 2047]  # the positions whose row of the table is kept


def rotary():
    f = Fixture("rotary")
    for case, (B, T, NH, NKV, HS, base, half_truncated, clockwise, qk_norm, scale) in ROTARY_CASES.items():
        size = 2**-10 if case == "odd" else 1  # small enough that the norm's eps matters
        qkv = f.floats(case + ".qkv", B, T, NH + 2 * NKV, HS, scale=size)
        dout = f.floats(case + ".dout", B, T, NH + 2 * NKV, HS)
        scale = float(np.float32(scale))
        if half_truncated:
            turning = torch.tensor(base, dtype=torch.float64) ** -torch.linspace(0, 1, HS // 4, dtype=torch.float64)
            frequencies = torch.cat([turning, torch.zeros(HS // 4, dtype=torch.float64)])
        else:
            frequencies = base ** -(torch.arange(0, HS, 2, dtype=torch.float64) / HS)
        # One complex number for the two that turn together.
        angles = torch.outer(torch.arange(2048, dtype=torch.float64), -frequencies if clockwise else frequencies)
        turn = torch.polar(torch.ones_like(angles), angles)
        f.want(f"want.{case}.table", torch.cat([turn.real, turn.imag], 1)[ROTARY_ROWS])
        qk, v = qkv[:, :, : NH + NKV], qkv[:, :, NH + NKV :]
        turned = torch.complex(*qk.chunk(2, dim=-1)) * turn[:T, None]
        out = torch.cat([turned.real, turned.imag], -1)
        if qk_norm:
            out = F.rms_norm(out, (HS,), eps=2.0**-23)
            f.want(f"want.{case}.rstd", (qk.square().mean(-1) + 2.0**-23).rsqrt())
        out = torch.cat([out * scale, v], 2)
        out.backward(dout)
        f.want(f"want.{case}.out", out)
        f.want(f"want.{case}.dqkv", qkv.grad)
    return f

# test/muon_test.cpp has the same table: R, K, momentum, beta2, weight_decay, learning_rate, equal_rows, fixed_norm.
MUON_CASES = {
    "square": (12, 12, 0.95, 0.9, 0.1, 0.02, True, True),
    "tall": (40, 17, 0.9, 0.95, 0.2, 0.02, True, True),
    "wide": (35, 70, 0.85, 0.9, 0.05, 0.02, True, True),
    "row": (1, 9, 0.95, 0.9, 0.0, 0.01, True, True),
    "tiny": (12, 16, 0.95, 0.9, 0.1, 0.02, True, True),
    "plain": (20, 6, 0.95, 0.95, 0.1, 0.01, False, False),
}


def muon():
    f = Fixture("muon")
    for case, (R, K, mu, beta2, wd, lr, equal_rows, fixed_norm) in MUON_CASES.items():
        size = 2**-18 if case == "tiny" else 1  # small enough that the 1e-6 in the norms matter
        grad = f.floats(case + ".grad", R, K, scale=size).detach() * 0.5
        momentum = f.floats(case + ".momentum", R, K, scale=size).detach()
        momentum = momentum.lerp(grad, 1 - mu)
        x = grad.lerp(momentum, mu)
        f.want(f"want.{case}.momentum", momentum)
        f.want(f"want.{case}.look_ahead", x)
        if equal_rows:
            x = x * (x.norm() / R**0.5) / x.norm(dim=1, keepdim=True).clamp_min(1e-6)
        f.want(f"want.{case}.normalised", x / (x.norm() * 1.01 + 1e-6))
        # What the products in the middle would give is another input here.
        g, weight = f.floats(case + ".orthogonal", R, K).detach(), f.floats(case + ".weight", R, K).detach()
        second = f.given(case + ".second", np.abs(bell(f.seed(case + ".second"), (max(R, K),)))).detach()
        dim = 1 if R >= K else 0
        f.want(f"want.{case}.squares", g.square().sum(dim))
        if fixed_norm:
            g = g * min(R, K) ** 0.5 / g.norm().clamp_min(1e-6)
        rate = lr * max(1, R / K) ** 0.5
        f.want(f"want.{case}.weight_no_second", weight - rate * (g + wd * weight * (g * weight >= 0)))
        v = g.square().mean(dim)
        second = second.lerp(v, 1 - beta2)
        scale = second.clamp_min(1e-10).rsqrt().unsqueeze(dim)
        scaled = g * scale
        scaled *= g.norm() / scaled.norm().clamp_min(1e-10)
        f.want(f"want.{case}.second", second)
        f.want(f"want.{case}.weight", weight - rate * (scaled + wd * weight * (scaled * weight >= 0)))
    return f


# ---- the whole model --------------------------------------------------------------------------------------------


def weights_of(f, config):
    """Random everywhere, biases and norms too. Written to the file under Hugging Face's names, matrices (out, in)."""
    params = {}
    for name, shape in gpt2.shapes(config).items():
        if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")):
            params[name] = f.floats(name, *shape, scale=0.2, shift=1)
        elif name == "wte.weight" and config.V == 50257:  # bell(50257, (V, C), 0.25): too large to be stored
            params[name] = torch.from_numpy(bell(50257, shape, 0.25)).double().requires_grad_()
        else:
            params[name] = f.floats(name, *shape, scale=0.25 if name == "wte.weight" else 0.125)
    return params


def model():
    """Loss, logits and the gradient of every parameter of a small model."""
    f, config = Fixture("model"), gpt2.SMALL
    params = weights_of(f, config)
    tokens, targets = f.ints("tokens", 3, 24, below=config.V), f.ints("targets", 3, 24, below=config.V)
    logits = gpt2.forward(config, params, tokens)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    f.want("want.loss", loss.reshape(1))
    f.want("want.logits", logits)
    for name, param in params.items():
        f.want("grad." + name, param.grad)
    return f


def model_gpt2_shape():
    """One thin layer under GPT-2's vocabulary. The gradient of wte: some rows, and each column's sum of squares."""
    f, config = Fixture("model_gpt2_shape"), gpt2.WIDE
    params = weights_of(f, config)
    tokens, targets = f.ints("tokens", 1, 16, below=config.V), f.ints("targets", 1, 16, below=config.V)
    tokens[0, 7] = targets[0, 6] = config.V - 1  # the last row of wte, as input and as target
    f.arrays["tokens"][0, 7] = f.arrays["targets"][0, 6] = config.V - 1
    losses = F.cross_entropy(gpt2.forward(config, params, tokens)[0], targets[0], reduction="none")
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


def adamw_run(initial):
    """Twenty optimizer steps of the small model, from the weights in model.safetensors."""
    f, config, run = Fixture("adamw_run"), gpt2.SMALL, gpt2.RUN
    sequences = f.ints("tokens_and_target", run.steps, 3, 25, below=config.V)  # (steps, B, T+1): each predicts the next
    result = gpt2.train(config, run, initial, sequences, torch.float64)
    for name, values in [("loss", result.losses), ("norm", result.norms), ("lr", result.lrs)]:
        f.want("want." + name, torch.tensor(values, dtype=torch.float64))
    for name, param in result.params.items():
        f.want("want." + name, param)
    return f, result, gpt2.train(config, run, initial, sequences, torch.float32)


def report_drift(exact, rough):
    """How far a float32 run of PyTorch's own is from its float64 run: what a fair tolerance for ours is."""
    print("adamw_run: loss", " ".join(f"{x:.4f}" for x in exact.losses))
    print("adamw_run: norm", " ".join(f"{x:.3f}" for x in exact.norms), f"(clipped at {gpt2.RUN.clip})")
    drifts = {}
    for name, param in exact.params.items():
        param, other = param.detach(), rough.params[name].detach().double()
        if name.endswith("c_attn.bias"):
            # A key's bias adds the same number to all scores of a row, which softmax ignores: its gradient is zero, in
            # floating point it is noise, and Adam divides noise by its own size. It is left out of comparisons.
            param, other = (torch.cat(t.chunk(3)[::2]) for t in (param, other))
        drifts[name] = float((other - param).norm() / param.norm())
    for name, drift in sorted(drifts.items(), key=lambda item: -item[1])[:4]:
        print(f"adamw_run: in float32 PyTorch drifts by {drift:.2e} (relative L2) in {name}")
    loss = max(abs(a - b) / b for a, b in zip(rough.losses, exact.losses))
    norm = max(abs(a - b) / b for a, b in zip(rough.norms, exact.norms))
    print(f"adamw_run: in float32 PyTorch drifts by {loss:.2e} in a loss, {norm:.2e} in a norm (relative, worst step)")


def make_all():
    fixtures = [embedding(), layernorm(), matmul(), gelu(), attention(), cross_entropy(), global_norm(), adamw()]
    fixtures += [rmsnorm(), relu_squared(), swiglu(), rotary(), muon()]
    fixtures += [model(), model_gpt2_shape()]
    initial = {name: torch.from_numpy(fixtures[-2].arrays[name]) for name in gpt2.shapes(gpt2.SMALL)}
    run, exact, rough = adamw_run(initial)
    report_drift(exact, rough)
    return {f.name: f.arrays for f in fixtures + [run]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed fixtures, write nothing there")
    arguments = parser.parse_args()
    if torch.__version__.split("+")[0] != TORCH:
        sys.exit(f"error: PyTorch {torch.__version__} found, expected {TORCH}; run: pip install torch=={TORCH}")
    torch.set_num_threads(1)
    made = make_all()
    size = sum(a.nbytes for arrays in made.values() for a in arrays.values())
    summary = f"{len(made)} fixtures, {size / 1e6:.2f} MB"
    if not arguments.check:
        for name, arrays in made.items():
            save(FOLDER / f"{name}.safetensors", arrays)
        print(f"{summary}, written to {FOLDER}")
    elif differences := check(made, FOLDER):
        sys.exit(f"error: {differences} tensors differ; if that is meant, run this script without --check and commit")
    else:
        print(f"{summary}: the committed ones agree")


if __name__ == "__main__":
    main()
