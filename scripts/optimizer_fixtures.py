"""Reference tensors of the optimizers' ops: every public function makes a fixture of scripts/make_fixtures.py."""

import numpy as np
import torch

from fixture_file import Fixture, bell
from reference_training import POLAR_EXPRESS, QUINTIC, Muon, MuonMatrix, iterate


def global_norm():
    f = Fixture("global_norm")
    for n in [1, 7, 1000, 4099]:
        x = f.floats(f"{n}.x", n, scale=3)
        f.want(f"want.{n}.norm", torch.linalg.vector_norm(x).reshape(1))
    return f


ADAMW_CASES = {  # test/cpu/adamw_test.cpp has the same table: n, learning_rate, beta1, beta2, eps, weight_decay, grad_scale
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


# test/cpu/muon_test.cpp has the same table: R, K, momentum, beta2, weight_decay, learning_rate, equal_rows, fixed_norm.
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
        f.want(f"want.{case}.normalized", x / (x.norm() * 1.01 + 1e-6))
        # The result of Newton-Schulz is another input here.
        g, weight = f.floats(case + ".orthogonal", R, K).detach(), f.floats(case + ".weight", R, K).detach()
        second = f.given(case + ".second", np.abs(bell(f.seed(case + ".second"), (max(R, K),)))).detach()
        dim = 1 if R >= K else 0
        f.want(f"want.{case}.squares", g.square().sum(dim))
        if fixed_norm:
            g = g * min(R, K) ** 0.5 / g.norm().clamp_min(1e-6)
        rate = lr * max(1, R / K) ** 0.5
        f.want(f"want.{case}.weight_no_second", weight - rate * (g + wd * weight * (g * weight >= 0)))
        f.want(f"want.{case}.weight_all_decay", weight - rate * (g + wd * weight))
        v = g.square().mean(dim)
        second = second.lerp(v, 1 - beta2)
        scale = second.clamp_min(1e-10).rsqrt().unsqueeze(dim)
        scaled = g * scale
        scaled *= g.norm() / scaled.norm().clamp_min(1e-10)
        f.want(f"want.{case}.second", second)
        f.want(f"want.{case}.weight", weight - rate * (scaled + wd * weight * (scaled * weight >= 0)))
    return f


# test/cpu/newton_schulz_test.cpp has the same table: batch, R, K, coefficients.
NEWTON_SCHULZ_CASES = {
    "square": (1, 12, 12, POLAR_EXPRESS),
    "tall": (2, 33, 7, POLAR_EXPRESS),
    "wide": (3, 20, 50, POLAR_EXPRESS),
    "row": (1, 1, 9, POLAR_EXPRESS),
    "column": (1, 9, 1, POLAR_EXPRESS),
    "quintic": (2, 15, 31, QUINTIC),
    "more": (1, 16, 8, [*POLAR_EXPRESS, POLAR_EXPRESS[-1], POLAR_EXPRESS[-1]]),
    "fewer": (1, 8, 16, POLAR_EXPRESS[:2]),
}


def newton_schulz():
    f = Fixture("newton_schulz")
    f.given("coefficients", np.array(POLAR_EXPRESS + QUINTIC, np.float32))
    for case, (batch, R, K, coefficients) in NEWTON_SCHULZ_CASES.items():
        x = f.floats(case, batch, R, K, scale=0.8 / (R * K) ** 0.5).detach()
        f.want("want." + case, iterate(x, coefficients))
    return f


# test/cpu/muon_testing.h has the same table: R, K, number of matrices. The three are Q, K and V of one (3C, C).
MUON_MATRICES = {"square": (24, 24, 1), "tall": (96, 24, 1), "wide": (24, 96, 1), "qkv": (24, 24, 3)}
MUON_TRAINING_STEPS = 20


def muon_training():
    """Matrices after 20 steps of nanochat's Muon. The gradients, bell(1000 * matrix + step, (R, K)), are not stored."""
    f, first = Fixture("muon_training"), 0
    for name, (R, K, count) in MUON_MATRICES.items():
        weights = f.floats(name, count, R, K, scale=0.25).detach()
        f.want("want." + name, torch.stack([_muon_run(weight, first + i) for i, weight in enumerate(weights)]))
        first += count
    return f


def _muon_run(weight, matrix):
    state = MuonMatrix(weight)
    for step in range(MUON_TRAINING_STEPS):
        grad = torch.from_numpy(bell(1000 * matrix + step, weight.shape)).double()
        weight = state.step(weight, grad, Muon(), lr=0.02, mu=0.95, wd=0.1)
    return weight
