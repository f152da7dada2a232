#!/usr/bin/env python3
"""Which form a chat template writes: what data/tokenize and ./train_gpt chat ask of a tokenizer that has one.

    data/chat_template.py FOLDER DOCUMENT_TOKEN

FOLDER has chat_template.jinja, or tokenizer_config.json with a "chat_template". A few conversations are rendered with
jinja2, as transformers renders them, and compared with the forms of llmc/data/chat.h. Prints one line of JSON:
{"template": "chatml", "begins": false, "system": "You are ...", "before_system": ""}, or {"error": "..."}. A template
that asks for today's date gets none, and takes the date that its authors wrote into it.
"""

import json
import pathlib
import re
import resource
import sys

SYSTEM, QUESTION, ANSWER, MORE = " Be\nbrief äß. ", " What is {{ 2 }} + 2?\n", "\n\n Four! ", "<b> & \"why\"? "
TALK = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
MORE_TALK = [*TALK, {"role": "user", "content": MORE}]
SYSTEM_TURN = {"role": "system", "content": SYSTEM}
FORMS = {
    "chatml": ("<|im_start|>%s\n", "<|im_end|>\n"),
    "llama3": ("<|start_header_id|>%s<|end_header_id|>\n\n", "<|eot_id|>"),
}


def turn(name, role, text):
    begin, end = FORMS[name]
    return begin % role + text + end


def words(name, text):
    return text.strip() if name == "llama3" else text


def written(form, messages, is_prompt):
    """What llmc/data/chat.cpp writes."""
    name, text = form["template"], form["document_token"] if form["begins"] else ""
    has_system = messages[0]["role"] == "system"
    if name == "nanochat":
        before = messages[0]["content"] + "\n\n" if has_system else ""
        for message in messages[has_system:]:
            text += f"<|{message['role']}_start|>{before}{message['content']}<|{message['role']}_end|>"
            before = ""
        return text + ("<|assistant_start|>" if is_prompt else "")
    if not has_system and form["system"]:
        text += turn(name, "system", form["system"])
    for message in messages:
        before = form["before_system"] if message["role"] == "system" else ""
        text += turn(name, message["role"], before + words(name, message["content"]))
    return text + (FORMS[name][0] % "assistant" if is_prompt else "")


def system_in(name, text):
    """The words of a first system turn; None: there is no such turn."""
    begin, end = FORMS[name]
    begin %= "system"
    return text[len(begin) : text.index(end)] if text.startswith(begin) and end in text else None


def find_form(render, document_token):
    plain, prompt = render(TALK, False), render(MORE_TALK, True)
    with_system, system_prompt = render([SYSTEM_TURN, *TALK], False), render([SYSTEM_TURN, *MORE_TALK], True)
    begins = bool(document_token) and prompt.startswith(document_token)
    first = len(document_token) if begins else 0
    for name in ["nanochat", *FORMS]:
        form = {"template": name, "begins": begins, "system": "", "before_system": "", "document_token": document_token}
        if name in FORMS:
            form["system"] = system_in(name, prompt[first:]) or ""
            given, said = system_in(name, with_system[first:]), words(name, SYSTEM)
            if given is not None and given.endswith(said):
                form["before_system"] = given[: len(given) - len(said)]
        asked = [(TALK, False, plain), (MORE_TALK, True, prompt)]
        asked += [([SYSTEM_TURN, *TALK], False, with_system), ([SYSTEM_TURN, *MORE_TALK], True, system_prompt)]
        if all(written(form, messages, is_prompt) == text for messages, is_prompt, text in asked):
            del form["document_token"]
            return form
    begin = prompt if len(prompt) <= 60 else prompt[:60] + "..."
    return {"error": f"it writes none of the forms nanochat, chatml and llama3; its prompts begin {begin!r}"}


def template_in(folder):
    """The template, and the special tokens that it may name."""
    config, named = {}, folder / "chat_template.jinja"
    if (folder / "tokenizer_config.json").exists():
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    text = named.read_text(encoding="utf-8") if named.exists() else config["chat_template"]
    if isinstance(text, list):
        text = next(one["template"] for one in text if one["name"] == "default")
    tokens = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = config.get(name)
        tokens[name] = value.get("content") if isinstance(value, dict) else value
    return text, {name: value for name, value in tokens.items() if isinstance(value, str)}


def ask(folder, document_token):
    try:
        import jinja2.ext
        import jinja2.sandbox
    except ImportError:
        return {"error": "Python's jinja2 is missing, which reads it (pip install jinja2, or apt-get install python3-jinja2)"}
    # What a template says is a program of whoever made it: it sees nothing, and may not run for long.
    resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    environment.globals["raise_exception"] = raise_exception
    try:
        text, tokens = template_in(folder)
        # transformers' mark of what is learned, which Jinja does not know
        template = environment.from_string(re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", text))
        return find_form(lambda messages, is_prompt: template.render(messages=messages, add_generation_prompt=is_prompt, **tokens), document_token)
    except Exception as error:  # whatever a template may do
        return {"error": f"it cannot be rendered: {type(error).__name__}: {' '.join(str(error).split())[:200]}"}


print(json.dumps(ask(pathlib.Path(sys.argv[1]), sys.argv[2])))
