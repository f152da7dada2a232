#!/usr/bin/env python3
"""Checks that other projects' servers, with Anvil's models and OpenAI's client, continue a text greedily like train_gpt.

    V/bin/python scripts/check_servers.py       run by scripts/check_interop.sh, which makes V; exit code 1 on a difference

Runs llama.cpp's server (from the wheel xllamacpp) with a GGUF of a GPT-2, and transformers' server, by anvil.serve, with an exported
nanochat. A nanochat that has learned a few answers must chat like `train_gpt chat`, and its tokenizer's template must make the tokens
that data/tokenize makes. The models are trained for some seconds, until they have memorized a text. Then the likeliest token is so by
far, and neither rounding nor llama.cpp's GELU table can change it, which is checked, too.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import openai
import torch
import transformers
import xllamacpp

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))

import anvil

TRAIN, TOKENIZE = ROOT / "train_gpt", ROOT / "data/tokenize"
PROMPT, TOKENS, MARGIN = "Permission is", 40, 0.1
START_S = 180  # time limit for the start of a server
failures = 0


def check(what, good, detail=""):
    global failures
    failures += not good
    print(f"{'ok     ' if good else 'FAILED '} {what} {detail}", flush=True)


def make_run(out, architecture, **flags):
    """Trains a model, and returns the folder from which transformers loads it."""
    sizes = dict(num_layers=2, num_heads=2, channels=64, seq_len=64, batch_size=8, steps=400, warmup_steps=10)
    how = dict(sample_tokens=0, dtype="fp32", device="cpu")
    anvil.start(out, TRAIN, architecture=architecture, **{**sizes, **how, **flags}).wait()
    folder = out.with_name(out.name + "_hf")
    anvil.run_command("export", TRAIN, init_from=out, out_dir=folder)
    return folder


def make_model(scratch, architecture, **flags):
    """A model's folder for transformers, and train_gpt's continuation of the prompt."""
    folder = make_run(scratch / architecture, architecture, train_data=scratch / "data/train_*.bin", **flags)
    flags = dict(init_from=folder, prompt=PROMPT, sample_tokens=TOKENS, temperature=0, dtype="fp32", device="cpu")
    text = anvil.run_command("generate", TRAIN, **flags)
    check(f"{architecture}: {TOKENS} tokens", len(text) == TOKENS and text.isascii(), repr(text))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    with torch.no_grad():
        logits = model.eval()(input_ids=torch.tensor([list((PROMPT + text).encode())])).logits[0, len(PROMPT) - 1 : -1]
    best = logits.topk(2).values
    margin = (best[:, 0] - best[:, 1]).min().item()
    check(f"{architecture}: the likeliest token is so by far", margin >= MARGIN, f"{margin:.3f}")
    return folder, text


def ask(name, url, model, expected):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    request = dict(model=str(model), prompt=PROMPT, max_tokens=TOKENS, temperature=0)
    text = client.completions.create(**request).choices[0].text
    check(f"{name}: the text that train_gpt generates", text == expected, repr(text))
    pieces = [chunk.choices[0].text for chunk in client.completions.create(**request, stream=True) if chunk.choices]
    check(f"{name}: streamed", "".join(pieces) == expected and len(pieces) > 1, f"in {len(pieces)} pieces")


def ask_llama_cpp(scratch, expected):
    anvil.run_command("export", TRAIN, format="gguf", init_from=scratch / "gpt2", out_dir=scratch / "gguf")
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.port, params.warmup = str(scratch / "gguf/model.gguf"), 64, 0, False
    server = xllamacpp.Server(params)
    ask("llama.cpp", server.listening_address, "model", expected)
    del server


def ask_transformers(scratch, asked):
    # Port 0: a free port, which the server's log names.
    log = scratch / "serve.log"
    command = [sys.executable, "-m", "anvil.serve", "--port", "0", "--log-level", "info", "--device", "cpu"]
    with open(log, "wb") as output:
        server = subprocess.Popen(command, cwd=ROOT / "python", stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        end, found = time.monotonic() + START_S, None
        while not found and server.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
            found = re.search(r"running on (http://\S+:\d+)", log.read_text(errors="replace"))
        if not found:
            check("transformers serve: it starts", False, log.read_text(errors="replace")[-2000:])
            return
        asked(found[1])
    finally:
        server.terminate()
        server.wait()


TALKS = [("What is hot?", "The sun is."), ("What is cold?", "Ice and snow."), ("Who barks?", "A dog does!")]
SYSTEM = "Be brief."


def make_chat_model(scratch):
    """The folder of a nanochat that has learned the answers of TALKS."""
    talks = [[{"role": "user", "content": q}, {"role": "assistant", "content": a}] for q, a in TALKS]
    lines = [json.dumps({"messages": talk}) + "\n" for talk in talks]
    (scratch / "talks.jsonl").write_text("".join(lines) * 50)
    train = ["--train-tokenizer", "--vocab-size", "280", "--val-fraction", "0", "--out", scratch / "chat_data"]
    subprocess.run([TOKENIZE, scratch / "talks.jsonl", "--format", "chat", *train], check=True, stdout=subprocess.DEVNULL)
    flags = dict(train_data=scratch / "chat_data/train_*.bin", packing="pad", steps=200)
    return make_run(scratch / "chat", "nanochat", **flags)


def check_template(folder):
    """Checks that the template makes the tokens of llmc/data/chat.h, as data/tokenize writes them."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    talks = [
        [("user", "Who barks?"), ("assistant", "A dog does!")],
        [("system", SYSTEM), ("user", " hi\n"), ("assistant", "\n\n so "), ("user", "Who?"), ("assistant", "I.")],
    ]
    for i, talk in enumerate(talks):
        messages = [{"role": role, "content": content} for role, content in talk]
        path, out = folder.parent / f"template_{i}.jsonl", folder.parent / f"template_{i}"
        path.write_text(json.dumps(messages) + "\n")
        flags = ["--format", "chat", "--val-fraction", "0", "--tokenizer", folder / "tokenizer.json", "--out", out]
        subprocess.run([TOKENIZE, path, *flags], check=True, stdout=subprocess.DEVNULL)
        want = anvil.read_shard(out / "train_000000.bin").tokens.tolist()
        got = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
        check(f"chat template: conversation {i}", got == want, f"{len(got)} tokens")


def talk_to(url, folder):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    for question, answer in TALKS:
        messages = [{"role": "user", "content": question}]
        request = dict(model=str(folder), messages=messages, max_tokens=TOKENS, temperature=0)
        got = client.chat.completions.create(**request).choices[0].message.content
        flags = dict(init_from=folder, message=question, temperature=0, sample_tokens=TOKENS, dtype="fp32", device="cpu")
        ours = anvil.run_command("chat", TRAIN, **flags).strip()
        check(f"chat: {question}", got == ours == answer, f"{got!r} {ours!r}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        text = (ROOT / "LICENSE").read_text()
        (scratch / "text.txt").write_text(text[text.index(PROMPT) :][:200] * 100)
        subprocess.run([TOKENIZE, scratch / "text.txt", "--tokenizer", "byte", "--out", scratch / "data"], check=True, stdout=subprocess.DEVNULL)
        _, text = make_model(scratch, "gpt2", learning_rate=3e-3)
        ask_llama_cpp(scratch, text)
        folder, text = make_model(scratch, "nanochat")
        chat = make_chat_model(scratch)
        check_template(chat)

        def asked(url):  # a single server loads the model that a request names
            ask("transformers serve", url, folder, text)
            talk_to(url, chat)

        ask_transformers(scratch, asked)
    print(f"servers: {failures} differences")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
