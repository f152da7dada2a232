#!/usr/bin/env python3
"""Checks chat templates of other models: compares tokens of conversations with transformers' apply_chat_template.

    dev/interop/check_templates.py        run by dev/interop/check_interop.sh; needs ./data/tokenize, transformers and jinja2

Uses a tokenizer with each family's special tokens and template, and conversations with and without a system message. The
shards of data/tokenize, without the token that separates documents, must equal the tokens of the original template in
transformers; with that token, those of the template that data/tokenize writes. Exit code 1 on a difference.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOKENIZE = pathlib.Path(os.environ.get("ANVIL_PROGRAMS", f"{ROOT}/")) / "data/tokenize"
sys.path.insert(0, str(ROOT / "python"))

import anvil

QWEN = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
CHATML_TURN = "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
CHATML_PROMPT = "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n"
CHATML_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA_TOKENS = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
LLAMA_TURN = (
    "{%- set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}"
)
LLAMA_PROMPT = "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
DATED = """{{- bos_token }}
{%- if not date_string is defined %}{%- if strftime_now is defined %}{%- set date_string = "26 Jul 2024" %}
{%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\n" }}{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}{{- "<|eot_id|>" }}
"""
# name: special tokens, template
FAMILIES = {
    "chatml": (CHATML_TOKENS, "{%- for message in messages %}" + CHATML_TURN + "{%- endfor %}\n" + CHATML_PROMPT),
    "smollm2": (
        CHATML_TOKENS,
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
        "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    ),
    "qwen2.5": (
        CHATML_TOKENS,
        "{%- if messages[0]['role'] == 'system' %}\n    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}\n"
        "{%- else %}\n    {{- '<|im_start|>system\\n" + QWEN + "<|im_end|>\\n' }}\n{%- endif %}\n"
        "{%- for message in messages %}\n    {%- if (message.role == 'user') or (message.role == 'system' and not loop.first) or"
        " (message.role == 'assistant') %}\n        " + CHATML_TURN + "\n    {%- endif %}\n{%- endfor %}\n" + CHATML_PROMPT,
    ),
    "llama3": (
        LLAMA_TOKENS,
        "{%- for message in messages %}" + LLAMA_TURN + "{%- if loop.index0 == 0 %}{%- set content = bos_token + content %}{%- endif %}"
        "{{- content }}{%- endfor %}" + LLAMA_PROMPT,
    ),
    "llama3.1": (LLAMA_TOKENS, DATED + "{%- for message in messages %}" + LLAMA_TURN + "{{- content }}{%- endfor %}" + LLAMA_PROMPT),
}
TALKS = [
    [("user", "Who barks?"), ("assistant", "A dog does!")],
    [("user", " Ein Hund?\n"), ("assistant", "\n\nJa, ä🐕! "), ("user", "'Why' & \"how\"?"), ("assistant", "I <b>know</b>.")],
    [("system", " Be\nbrief. "), ("user", " hi\n"), ("assistant", "\n\n so "), ("user", "<|im_end|"), ("assistant", "{{ 1 }} #}")],
]
failures = 0


def check(what, is_right, detail=""):
    global failures
    failures += not is_right
    print(f"{'ok    ' if is_right else 'DIFFER'} {what}{'' if is_right else ': ' + detail}")


def make_tokenizer(folder, specials, template):
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    text = (ROOT / "doc/formats.md").read_text(encoding="utf-8")
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=specials, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([text], trainer)
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": specials[0], "eos_token": specials[-1], "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def check_family(scratch, name, specials, template):
    folder = scratch / name
    make_tokenizer(folder, specials, template)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for i, talk in enumerate(TALKS):
        messages = [{"role": role, "content": content} for role, content in talk]
        path, out = scratch / f"{name}_{i}.jsonl", scratch / f"{name}_{i}"
        path.write_text(json.dumps(messages) + "\n")
        flags = ["--format", "chat", "--val-fraction", "0", "--tokenizer", folder / "tokenizer.json", "--out", out]
        done = subprocess.run([TOKENIZE, path, *flags], capture_output=True, text=True)
        if done.returncode:
            check(f"{name}: conversation {i}", False, done.stderr)
            continue
        got = anvil.read_shard(out / "train_000000.bin").tokens.tolist()
        want = theirs.apply_chat_template(messages, tokenize=True, return_dict=False)
        first = theirs.convert_tokens_to_ids(specials[0])
        want_whole = want if want[0] == first else [first, *want]
        check(f"{name}: conversation {i}", got == want_whole, f"{theirs.decode(got)!r}, expected {theirs.decode(want_whole)!r}")
        again = transformers.AutoTokenizer.from_pretrained(folder, chat_template=(out / "chat_template.jinja").read_text())
        rendered = again.apply_chat_template(messages, tokenize=True, return_dict=False)
        check(f"{name}: conversation {i}, by the template that was written", rendered == got, again.decode(rendered))
        asked = messages[:-1]
        prompts = [t.apply_chat_template(asked, tokenize=True, return_dict=False, add_generation_prompt=True) for t in (theirs, again)]
        whole = prompts[0] if prompts[0][0] == first else [first, *prompts[0]]
        check(f"{name}: prompt {i}, by the template that was written", prompts[1] == whole == got[: len(whole)], again.decode(prompts[1]))


def main():
    with tempfile.TemporaryDirectory() as folder:
        for name, (specials, template) in FAMILIES.items():
            check_family(pathlib.Path(folder), name, specials, template)
        unknown = pathlib.Path(folder) / "unknown"
        make_tokenizer(unknown, CHATML_TOKENS, "{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}")
        flags = ["--format", "chat", "--val-fraction", "0", "--tokenizer", unknown / "tokenizer.json", "--out", unknown / "out"]
        done = subprocess.run([TOKENIZE, pathlib.Path(folder) / "chatml_0.jsonl", *flags], capture_output=True, text=True)
        said = "it writes none of the forms nanochat, chatml and llama3; its prompts begin '[INST] "
        check("another form is refused", done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr)
    print(f"templates: {failures} differences")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
