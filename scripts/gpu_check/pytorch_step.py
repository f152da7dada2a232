"""GPT-2 124M trained by PyTorch on a GPU, as scripts/gpu_check.sh trains it: tokens per second of whole steps.

    python3 scripts/gpu_check/pytorch_step.py B T TOKENS STEPS        prints a line of JSON for each step, in ms

PyTorch's fast options: torch.compile, autocast to bf16, F.scaled_dot_product_attention, fused AdamW, set_to_none, a vocabulary
padded to 50304. The model is that of dev/bench/against_pytorch.py, whose losses are compared with Anvil's there.
"""
import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "dev/bench"))
import torch  # noqa: E402
from against_pytorch import BETAS, DECAY, gpt_class  # noqa: E402

LAYERS, HEADS, CHANNELS, VOCAB, RATE = 12, 12, 768, 50304, 6e-4


def main():
    B, T, tokens, steps = map(int, sys.argv[1:])
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    with torch.device("cuda"):
        model = gpt_class()[0](LAYERS, HEADS, CHANNELS, T, VOCAB)
        data = torch.randint(0, 50257, (B * T + 1,))
    for p in model.parameters():
        if p.dim() >= 2:
            torch.nn.init.normal_(p, std=0.02)
    groups = [{"params": [p for p in model.parameters() if (p.dim() >= 2) == decays], "weight_decay": DECAY * decays}
              for decays in (True, False)]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, fused=True)
    run = torch.compile(model)
    x, y = data[:-1].view(B, T), data[1:].view(B, T)
    micro_batches = tokens // (B * T)
    for _ in range(steps):
        began = time.perf_counter()
        total = 0
        for _ in range(micro_batches):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = run(x, y) / micro_batches
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = total.item()  # waits for the GPU
        print(json.dumps({"ms": (time.perf_counter() - began) * 1e3, "loss": loss, "version": torch.__version__}), flush=True)


if __name__ == "__main__":
    main()
