"""Reference tensors of the ops: every function makes a fixture of scripts/make_fixtures.py."""

import numpy as np
import torch
import torch.nn.functional as F

import reference_gpt as gpt
from fixture_file import Fixture, bell, kept_by_dropout


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


def embedding_rmsnorm():
    f = Fixture("embedding_rmsnorm")
    # The last number is the inputs' scale: in one case eps outweighs their mean square.
    for B, T, C, V, scale in [(1, 1, 8, 3, 1), (1, 1, 16, 5, 1), (2, 5, 7, 11, 2**-13), (3, 4, 33, 2, 1),
                              (2, 9, 48, 31, 1), (1, 1, 1536, 2, 1)]:
        case = f"{B}x{T}x{C}."
        wte, tokens = f.floats(case + "wte", V, C, scale=scale), f.ints(case + "tokens", B, T, below=V)
        dout = f.floats(case + "dout", B, T, C)
        x = wte[tokens]
        x.retain_grad()
        out = F.rms_norm(x, (C,), eps=2.0**-23)
        out.backward(dout)
        f.want(f"want.{case}out", out)
        f.want(f"want.{case}rstd", (x.square().mean(2) + 2.0**-23).rsqrt())
        f.want(f"want.{case}dx", x.grad)
        f.want(f"want.{case}dwte", wte.grad)
    return f


def layernorm():
    f = Fixture("layernorm")
    # The third number is added to every element: in one case 1000 standard deviations.
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
        # The fused op normalizes the float32 sum it hands on, so that sum is where its reference starts, too.
        residual = (inp1.float() + inp2.float()).double()
        f.want(f"want.{case}residual", residual)
        f.want(f"want.{case}residual_out", F.layer_norm(residual, (C,), weight, bias, eps=1e-5))
    return f


def matmul():
    f = Fixture("matmul")
    # test/cpu/matmul_test.cpp tests all interesting sizes with exact products; these cases test the rounding.
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
    # An MLP with the activation between its two layers.
    N, C, H = 13, 20, 33
    for name, activation in [("gelu", lambda x: F.gelu(x, approximate="tanh")),
                             ("relu_squared", lambda x: F.relu(x).square())]:
        case = name + "."
        inp, dout = f.floats(case + "inp", N, C), f.floats(case + "dout", N, C)
        fc, fc_bias = f.floats(case + "fc", H, C, scale=0.25), f.floats(case + "fc_bias", H)
        proj = f.floats(case + "proj", C, H, scale=0.25)
        hidden = F.linear(inp, fc, fc_bias)
        hidden.retain_grad()
        out = F.linear(activation(hidden), proj)
        out.backward(dout)
        f.want(f"want.{case}hidden", hidden)
        f.want(f"want.{case}activation", activation(hidden))
        f.want(f"want.{case}dhidden", hidden.grad)
        for parameter, tensor in [("dinp", inp), ("dfc", fc), ("dfc_bias", fc_bias), ("dproj", proj)]:
            f.want(f"want.{case}{parameter}", tensor.grad)
    return f


def fp8():
    f = Fixture("fp8")
    for name, (dtype, _) in gpt.FP8.items():
        values = torch.arange(256, dtype=torch.uint8).view(dtype).float()
        f.arrays[f"want.{name}.values"] = values.numpy()
        # Every number, the middle between it and the next, the floats next to both, and numbers beyond the largest.
        numbers = np.unique(np.abs(values.numpy()[np.isfinite(values.numpy())]))
        middles = (numbers[1:] + numbers[:-1]) / 2
        points = np.concatenate([numbers, middles, np.float32(2.0) ** np.arange(-140, 128, 8).astype(np.float32)])
        last = numbers[-1] + (numbers[-1] - numbers[-2]) / 2
        points = np.concatenate([points, [last, np.float32(np.inf)]]).astype(np.float32)
        beside = [points, np.nextafter(points, np.float32(0)), np.nextafter(points, np.float32(np.inf))]
        points = np.unique(np.concatenate(beside))
        points = np.concatenate([points, -points]).astype(np.float32)
        f.given(f"{name}.inp", points)
        f.arrays[f"want.{name}.codes"] = gpt.codes_of(torch.from_numpy(points), name).int().numpy()
    return f


def quantize():
    f = Fixture("quantize", seed=0xC4B3DCBE)
    for rows, cols, scale in [(1, 1, 1), (3, 7, 1e-3), (5, 33, 100), (16, 48, 1), (17, 16, 1e-20), (40, 20, 1e30)]:
        inp = f.floats(f"{rows}x{cols}.inp", rows, cols, scale=scale).detach().float()
        for name in gpt.FP8:
            amax, inverse, codes = gpt.quantized(inp, name)
            f.arrays[f"want.{rows}x{cols}.{name}.amax"] = amax.reshape(1).numpy()
            f.arrays[f"want.{rows}x{cols}.{name}.inverse_scale"] = inverse.reshape(1).numpy()
            f.arrays[f"want.{rows}x{cols}.{name}.codes"] = codes.int().numpy()
    return f


def matmul_fp8():
    f = Fixture("matmul_fp8")
    for N, C, OC in [(16, 16, 16), (48, 16, 32), (16, 144, 16), (16, 32, 80)]:
        case = f"{N}x{C}x{OC}."
        operands = []
        for operand, name, shape, scale in [("inp", "e4m3", (N, C), 3), ("weight", "e4m3", (OC, C), 0.02),
                                            ("dout", "e5m2", (N, OC), 1e-5)]:
            x = f.floats(case + operand, *shape, scale=scale).detach().float()
            _, inverse, codes = gpt.quantized(x, name)
            operands.append(codes.view(gpt.FP8[name][0]).double() * inverse.double())
        inp, weight, dout = operands
        f.want(f"want.{case}out", inp @ weight.T)
        f.want(f"want.{case}dinp", dout @ weight)
        f.want(f"want.{case}dweight", dout.T @ inp)
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
        out, lse = gpt.causal_attention(*qkv.unbind(2))
        out.backward(dout)
        f.want(f"want.{case}out", out)
        f.want(f"want.{case}lse", lse)
        f.want(f"want.{case}dqkv", qkv.grad)
    # Windows and grouped queries. CPU tiles are 32 x 64: windows within a tile, at its border, and over several.
    for B, T, NH, NKV, HS, window, scale in [(2, 5, 4, 2, 4, 0, 0), (1, 20, 6, 2, 4, 3, 0.75), (2, 40, 3, 1, 4, -1, 0),
                                             (1, 70, 2, 2, 8, 31, 0), (1, 150, 4, 2, 4, 64, 1.25)]:
        case = f"{B}x{T}x{NH}x{NKV}x{HS}w{window}."
        qkv, dout = f.floats(case + "qkv", B, T, NH + 2 * NKV, HS), f.floats(case + "dout", B, T, NH, HS)
        out, lse = gpt.causal_attention(*qkv.split([NH, NKV, NKV], 2), scale, window)
        out.backward(dout)
        f.want(f"want.{case}out", out)
        f.want(f"want.{case}lse", lse)
        f.want(f"want.{case}dqkv", qkv.grad)
    # Documents: numbers that rise by one at each document start, about one token in `length`.
    for B, T, NH, NKV, HS, window, length in [(2, 9, 4, 2, 4, -1, 3), (2, 70, 2, 1, 8, -1, 20), (1, 150, 2, 1, 4, 20, 40)]:
        case = f"{B}x{T}x{NH}x{NKV}x{HS}w{window}documents."
        qkv, dout = f.floats(case + "qkv", B, T, NH + 2 * NKV, HS), f.floats(case + "dout", B, T, NH, HS)
        documents = (f.ints(case + "documents", B, T, below=length) == 0).cumsum(1)
        f.arrays[case + "documents"] = documents.numpy().astype(np.int32)
        position = torch.arange(T)
        seen = (documents[:, :, None] == documents[:, None, :]) & (position[:, None] >= position)
        seen &= (position[:, None] - position <= window) | (window < 0)
        q, k, v = (x.transpose(1, 2) for x in qkv.split([NH, NKV, NKV], 2))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None], enable_gqa=True)
        out = out.transpose(1, 2)
        out.backward(dout)
        scores = q @ k.repeat_interleave(NH // NKV, 1).transpose(2, 3) * HS**-0.5
        f.want(f"want.{case}out", out)
        f.want(f"want.{case}lse", scores.masked_fill(~seen[:, None], -np.inf).logsumexp(3))
        f.want(f"want.{case}dqkv", qkv.grad)
    return f


def attention_decode():
    f = Fixture("attention_decode")
    # Decoding: the query of the token at `last` of each row, which sees the keys before it in its document and window.
    for T, NH, NKV, HS, window, scale, lasts, starts in [
            (1, 1, 1, 4, 0, 0, [0], [0]), (70, 2, 1, 8, 69, 0, [69, 0, 63, 64], [0, 0, 0, 64]),
            (150, 3, 1, 4, 63, 0.75, [149, 70, 5], [0, 0, 3]), (140, 2, 2, 4, 70, 0, [139, 128], [0, 127])]:
        case = f"{T}x{NH}x{NKV}x{HS}w{window}."
        B = len(lasts)
        qkv = f.floats(case + "qkv", B, T, NH + 2 * NKV, HS)
        from_start = torch.tensor(starts)[:, None].expand(B, T)
        out, _ = gpt.causal_attention(*qkv.split([NH, NKV, NKV], 2), scale, window, from_start)
        f.arrays[case + "lasts"], f.arrays[case + "starts"] = (np.array(x, np.int32) for x in (lasts, starts))
        f.want(f"want.{case}out", out[range(B), lasts])
    return f


def document_starts():
    f = Fixture("document_starts")
    for B, T, V in [(1, 1, 1), (3, 1, 2), (2, 33, 1), (4, 150, 7), (2, 2100, 100)]:
        tokens = f.ints(f"{B}x{T}.tokens", B, T, below=V)
        begins = torch.where(tokens == 0, torch.arange(T), 0)
        f.arrays[f"want.{B}x{T}.starts"] = begins.cummax(1).values.numpy().astype(np.int32)
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
    for N, V, scale, limit in [(1, 5, 1, 15), (5, 65, 8, 15), (4, 301, 3, 30), (3, 33, 100, 8)]:
        case = f"{N}x{V}.isru."
        logits, targets = f.floats(case + "logits", N, V, scale=scale), f.ints(case + "targets", N, below=V)
        losses = F.cross_entropy(limit * logits / torch.sqrt(logits**2 + limit**2), targets, reduction="none")
        losses.backward(torch.full((N,), 0.25, dtype=torch.float64))  # dloss
        f.want(f"want.{case}losses", losses)
        f.want(f"want.{case}dlogits", logits.grad)
    # Logits up to the largest of float32.
    far = np.array([0, 1e4, -1e4, 3e38, -3e38, -0.0, 1e19, 2], np.float32)
    logits = f.given("far.logits", np.stack([far, far, far, -far]))
    targets = torch.tensor([0, 3, 4, 7])
    f.arrays["far.targets"] = targets.numpy().astype(np.int32)
    for cap, bent in [("tanh", 15 * torch.tanh(logits / 15)), ("isru", 15 * logits / torch.sqrt(logits**2 + 15**2))]:
        logits.grad = None
        losses = F.cross_entropy(bent, targets, reduction="none")
        losses.backward(torch.full((4,), 0.25, dtype=torch.float64))
        f.want(f"want.far.{cap}.bent", bent)
        f.want(f"want.far.{cap}.losses", losses)
        f.want(f"want.far.{cap}.dlogits", logits.grad)
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
        # The fused op normalizes the float32 sum it hands on, so that sum is where its reference starts, too.
        residual = (inp1.float() + inp2.float()).double()
        f.want(f"want.{case}residual", residual)
        f.want(f"want.{case}residual_out", F.rms_norm(residual, (C,), weight, eps=1e-5))
    return f


# test/cpu/qk_rmsnorm_test.cpp has the same table: B, T, NH, NKV, HS, and the inputs' scale.
QK_RMSNORM_CASES = {
    "one": (1, 1, 1, 1, 8, 1),
    "grouped": (2, 5, 4, 2, 16, 1),
    "odd": (3, 23, 3, 1, 14, 2**-10),  # eps outweighs the mean square, and the tokens are more than a chunk
    "wide": (1, 3, 2, 1, 128, 100),
}


def qk_rmsnorm():
    f = Fixture("qk_rmsnorm")
    for case, (B, T, NH, NKV, HS, scale) in QK_RMSNORM_CASES.items():
        qkv = f.floats(case + ".qkv", B, T, NH + 2 * NKV, HS, scale=scale)
        dout = f.floats(case + ".dout", B, T, NH + 2 * NKV, HS)
        gains = [f.floats(f"{case}.{name}_weight", HS, scale=0.5, shift=1) for name in "qk"]
        q, k, v = qkv.split([NH, NKV, NKV], 2)
        out = torch.cat([F.rms_norm(q, (HS,), gains[0], eps=1e-6), F.rms_norm(k, (HS,), gains[1], eps=1e-6), v], 2)
        out.backward(dout)
        f.want(f"want.{case}.out", out)
        f.want(f"want.{case}.rstd", (qkv[:, :, : NH + NKV].square().mean(-1) + 1e-6).rsqrt())
        f.want(f"want.{case}.dqkv", qkv.grad)
        f.want(f"want.{case}.dq_weight", gains[0].grad)
        f.want(f"want.{case}.dk_weight", gains[1].grad)
    return f


def dropout():
    f = Fixture("dropout")
    for percent, first in [(20, 0), (50, 1), (97, 12345), (0, 6)]:
        case, p = f"p{percent}.", percent / 100
        inp, dout = f.floats(case + "inp", 333), f.floats(case + "dout", 333)
        key = f.seed(case + "key") << 32 | f.seed(case + "other half")
        f.arrays[case + "key"] = np.array([key], np.uint64).view(np.int32)
        f.arrays[case + "first"] = np.array([first], np.int32)
        kept = torch.from_numpy(kept_by_dropout(key, first, inp.shape, p))
        out = inp * kept / (1 - p)
        out.backward(dout)
        f.want(f"want.{case}out", out)
        f.want(f"want.{case}dinp", inp.grad)
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


# test/cpu/residual_mix_test.cpp has the same table: N, C, b_sign, whether there is an a.
RESIDUAL_MIX_CASES = [(1, 1, 1, True), (3, 7, -1, False), (2, 33, 1, True), (17, 48, -1, True), (1, 1536, 1, False)]


def residual_mix():
    f = Fixture("residual_mix")
    for N, C, sign, has_a in RESIDUAL_MIX_CASES:
        case = f"{N}x{C}."
        inp, inp0, dout = (f.floats(case + name, N, C) for name in ("inp", "inp0", "dout"))
        a, b = f.floats(case + "a", 1, shift=1) if has_a else 1, f.floats(case + "b", 1)
        out = a * inp + sign * b * inp0
        out.backward(dout)
        f.want(f"want.{case}out", out)
        for name, tensor in [("dinp", inp), ("dinp0", inp0), ("db", b), *([("da", a)] if has_a else [])]:
            f.want(f"want.{case}{name}", tensor.grad)
    return f


def smear():
    f = Fixture("smear")
    for B, T, C, G in [(1, 1, 1, 1), (2, 5, 7, 3), (1, 2, 24, 24), (3, 4, 33, 17), (2, 20, 32, 24), (1, 2, 768, 24)]:
        case = f"{B}x{T}x{C}x{G}."
        inp, dout = f.floats(case + "inp", B, T, C), f.floats(case + "dout", B, T, C)
        weight, lam = f.floats(case + "weight", G, scale=0.5), f.floats(case + "lambda", 1)
        gate = lam * torch.sigmoid(inp[:, 1:, :G] @ weight)
        out = torch.cat([inp[:, :1], inp[:, 1:] + gate[..., None] * inp[:, :-1]], 1)
        out.backward(dout)
        f.want(f"want.{case}out", out)
        f.want(f"want.{case}dinp", inp.grad)
        f.want(f"want.{case}dweight", weight.grad)
        f.want(f"want.{case}dlambda", lam.grad)
    return f


# test/cpu/value_embedding_test.cpp has the same table: B, T, NH, NKV, HS, C, G, V.
VALUE_EMBEDDING_CASES = [(1, 1, 1, 1, 1, 1, 1, 1), (2, 5, 2, 1, 7, 9, 3, 4), (1, 3, 2, 2, 16, 24, 24, 5),
                         (3, 13, 4, 2, 6, 20, 17, 7), (1, 4, 1, 1, 128, 12, 12, 6), (1, 70, 1, 2, 3, 5, 5, 30)]


def value_embedding():
    f = Fixture("value_embedding")
    for B, T, NH, NKV, HS, C, G, V in VALUE_EMBEDDING_CASES:
        case = f"{B}x{T}x{NH}x{NKV}x{HS}."
        qkv, dqkv = (f.floats(case + name, B, T, NH + 2 * NKV, HS) for name in ("qkv", "dqkv"))
        inp, tokens = f.floats(case + "inp", B, T, C), f.ints(case + "tokens", B, T, below=V)
        table, weight = f.floats(case + "table", V, NKV, HS), f.floats(case + "weight", NKV, G, scale=0.5)
        gate = 3 * torch.sigmoid(inp[..., :G] @ weight.T)
        v = qkv[:, :, NH + NKV :] + gate[..., None] * table[tokens]
        out = torch.cat([qkv[:, :, : NH + NKV], v], 2)
        out.backward(dqkv.detach())
        f.want(f"want.{case}qkv", out)
        f.want(f"want.{case}dinp", inp.grad)
        f.want(f"want.{case}dtable", table.grad)
        f.want(f"want.{case}dweight", weight.grad)
    return f


# test/cpu/rotary_test.cpp has the same table: B, T, NH, NKV, HS, base, half_truncated, clockwise, qk_norm, scale, scaling.
ROTARY_CASES = {
    "one": (1, 1, 1, 1, 2, 1e4, False, False, False, 1.0),
    "llama": (2, 5, 4, 2, 16, 5e5, False, False, False, 1.0),
    "odd": (3, 7, 3, 1, 14, 100.0, False, False, True, 0.75),
    "nanochat": (1, 6, 2, 1, 128, 1e5, False, True, True, 1.2),
    "modded": (2, 5, 2, 2, 64, 1024.0, True, True, True, 1.0),
    "scaled": (1, 3, 1, 1, 34, 1e4, False, True, False, 1.5),
    "llama3": (1, 3, 2, 1, 64, 5e5, False, False, False, 1.0, (8.0, 1.0, 4.0, 8192.0)),
}


ROTARY_ROWS = [0, 1, 2, 3, 100, 1023, 2047]  # the positions whose row of the table is kept


def rotary():
    f = Fixture("rotary")
    for case, (B, T, NH, NKV, HS, base, half_truncated, clockwise, qk_norm, scale, *scaling) in ROTARY_CASES.items():
        size = 2**-10 if case == "odd" else 1  # small enough that the norm's eps matters
        qkv = f.floats(case + ".qkv", B, T, NH + 2 * NKV, HS, scale=size)
        dout = f.floats(case + ".dout", B, T, NH + 2 * NKV, HS)
        scale = float(np.float32(scale))
        turn = gpt.rotary_turns(2048, HS, base, half_truncated, clockwise, *scaling)
        f.want(f"want.{case}.table", torch.cat([turn.real, turn.imag], 1)[ROTARY_ROWS])
        qk, v = qkv[:, :, : NH + NKV], qkv[:, :, NH + NKV :]
        out = gpt.rotate(qk, turn[:T])
        if qk_norm:
            out = F.rms_norm(out, (HS,), eps=2.0**-23)
            f.want(f"want.{case}.rstd", (qk.square().mean(-1) + 2.0**-23).rsqrt())
        out = torch.cat([out * scale, v], 2)
        out.backward(dout)
        f.want(f"want.{case}.out", out)
        f.want(f"want.{case}.dqkv", qkv.grad)
    return f
