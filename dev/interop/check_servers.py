#!/usr/bin/env python3
"""Checks that other projects' servers, with Anvil's models and OpenAI's client, continue a text greedily like train_gpt.

    V/bin/python dev/interop/check_servers.py       run by dev/interop/check_interop.sh, which makes V; exit code 1 on a difference

Chat models with the tokens and templates of Llama 3, Qwen and Mistral keep them in exports to hf and GGUF, after training, too:
llama.cpp's prompts and ids must be those of transformers.

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
import urllib.request

import check_templates
import differences
import gguf
import llama_cpp
import openai
import torch
import transformers
from differences import check

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import anvil

TRAIN, TOKENIZE = ROOT / "train_gpt", ROOT / "data/tokenize"
PROMPT, TOKENS, MARGIN = "Permission is", 40, 0.1
START_S = 180  # time limit for the start of a server

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
    ask("llama.cpp", llama_cpp.serve(scratch / "gguf/model.gguf").listening_address, "model", expected)


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


MISTRAL_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}[INST] {{ message['content'] }} [/INST]"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
)
# name: special tokens, template, begin, end in tokenizer_config.json, ends in generation_config.json, pad
CHATS = {
    "llama3": (*check_templates.FAMILIES["llama3"], "<|begin_of_text|>", "<|eot_id|>", ["<|end_of_text|>", "<|eot_id|>"], None),
    "qwen2.5": (*check_templates.FAMILIES["qwen2.5"], None, "<|im_end|>", ["<|im_end|>", "<|endoftext|>"], "<|endoftext|>"),
    "mistral": (["<unk>", "<s>", "</s>", "[INST]", "[/INST]"], MISTRAL_TEMPLATE, "<s>", "</s>", ["</s>"], None),
}
THOUGHTS = "<think>ok</think> so"  # added tokens that are not special


def make_source(folder, specials, template, begin, end, ends, pad):
    """A chat model's folder as the hub has them: the template in tokenizer_config.json, several ends, defaults for sampling."""
    check_templates.make_tokenizer(folder, specials, template)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<think>", "</think>"])
    ids = tokenizer.convert_tokens_to_ids
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    if begin:  # put before every text
        spec = json.loads((folder / "tokenizer.json").read_text())
        first, text = {"SpecialToken": {"id": begin, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
        spec["post_processor"] = {
            "type": "TemplateProcessing", "single": [first, text], "pair": [first, text, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {begin: {"id": begin, "ids": [ids(begin)], "tokens": [begin]}},
        }  # fmt: skip
        (folder / "tokenizer.json").write_text(json.dumps(spec))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": begin, "eos_token": end, "pad_token": pad, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    said = dict(bos_token_id=begin and ids(begin), eos_token_id=ids(ends[0]), pad_token_id=pad and ids(pad))
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=256)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=len(tokenizer), **sizes, **said))
    model.generation_config = transformers.GenerationConfig(
        **said | dict(eos_token_id=[ids(token) for token in ends]), do_sample=True, temperature=0.5, top_p=0.75, top_k=7
    )
    model.save_pretrained(folder)


def ids_of(folder):
    config = json.loads((folder / "config.json").read_text())
    generation = json.loads((folder / "generation_config.json").read_text())
    generation.pop("transformers_version", None)
    return [config.get(f"{token}_token_id") for token in ("bos", "eos", "pad")], generation


def post(url, path, **content):
    request = urllib.request.Request(url + path, json.dumps(content).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def check_chat_exports(scratch, name, chat):
    source, tuned = scratch / f"chat_{name}", scratch / f"chat_{name}_run"
    make_source(source, *chat)
    begin, end, ends = chat[2:5]
    text = scratch / f"chat_{name}.txt"
    text.write_text((ROOT / "LICENSE").read_text())
    command = [TOKENIZE, text, "--tokenizer", source / "tokenizer.json", "--val-fraction", "0", "--out", scratch / f"chat_{name}_data"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    flags = dict(train_data=scratch / f"chat_{name}_data/train_*.bin", seq_len=16, batch_size=1, steps=1, sample_tokens=0)
    anvil.start(tuned, TRAIN, init_from=source, dtype="fp32", device="cpu", **flags).wait()
    theirs = transformers.AutoTokenizer.from_pretrained(source)
    messages = [{"role": "user", "content": "Who barks?"}, {"role": "assistant", "content": "A dog."}, {"role": "user", "content": "Why?"}]
    prompt = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    for model in (source, tuned):
        folder = scratch / f"{model.name}_hf"
        anvil.run_command("export", TRAIN, init_from=model, out_dir=folder)
        check(f"{model.name}: begin, end, pad and defaults", ids_of(folder) == ids_of(source), str(ids_of(folder)))
        again = transformers.AutoTokenizer.from_pretrained(folder)
        same = again.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == prompt
        check(f"{model.name}: prompt, and ids of text", same and again(THOUGHTS).input_ids == theirs(THOUGHTS).input_ids)
    anvil.run_command("export", TRAIN, format="gguf", init_from=tuned, out_dir=scratch / f"{name}_gguf")
    path = scratch / f"{name}_gguf/model.gguf"
    fields = gguf.GGUFReader(path).fields
    got = [theirs.convert_ids_to_tokens(fields[key].contents()) for key in (f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot")) if key in fields]
    check(f"{name}: ends in GGUF", got == [end, *(token for token in ends if token != end)], str(got))
    got = [fields[f"general.sampling.{key}"].contents() for key in ("temp", "top_p", "top_k")]
    check(f"{name}: defaults in GGUF", got == [0.5, 0.75, 7], str(got))
    url = llama_cpp.serve(path).listening_address
    got = post(url, "/apply-template", messages=messages)["prompt"]
    # The first token is put before every text, so llama.cpp takes it out of a template's.
    check(f"{name}: llama.cpp's prompt is that of transformers", got == prompt.removeprefix(begin or ""), repr(got))
    got = post(url, "/tokenize", content=got, add_special=True, parse_special=True)["tokens"]
    check(f"{name}: ids of the prompt", got == theirs(prompt, add_special_tokens=False).input_ids, str(got))
    got = post(url, "/tokenize", content=THOUGHTS, add_special=True, parse_special=False)["tokens"]
    check(f"{name}: ids of text with added tokens", got == theirs(THOUGHTS).input_ids, str(got))


def main():
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        text = (ROOT / "LICENSE").read_text()
        (scratch / "text.txt").write_text(text[text.index(PROMPT) :][:200] * 100)
        subprocess.run([TOKENIZE, scratch / "text.txt", "--tokenizer", "byte", "--out", scratch / "data"], check=True, stdout=subprocess.DEVNULL)
        for name, chat in CHATS.items():
            check_chat_exports(scratch, name, chat)
        _, text = make_model(scratch, "gpt2", learning_rate=3e-3)
        ask_llama_cpp(scratch, text)
        folder, text = make_model(scratch, "nanochat")
        chat = make_chat_model(scratch)
        check_template(chat)

        def asked(url):  # a single server loads the model that a request names
            ask("transformers serve", url, folder, text)
            talk_to(url, chat)

        ask_transformers(scratch, asked)
    print(f"servers: {differences.count} differences")
    return differences.count > 0


if __name__ == "__main__":
    llama_cpp.end(main())
