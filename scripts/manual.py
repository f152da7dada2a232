#!/usr/bin/env python3
"""Makes the man page and the bash completion for `make install`, from doc/flags.md, which a test compares with train_gpt.

    scripts/manual.py man            train_gpt(1), in troff
    scripts/manual.py completion     bash completion of commands, flags and their values
    scripts/manual.py man NAME       NAME(1), whose text is that of NAME --help, read from standard input

Needs only Python 3.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Command:
    def __init__(self, name, about, example, sections, shared):
        self.name, self.about, self.example, self.shared = name, about, example, shared
        self.sections = sections  # [(title, [(flag without dashes, has a --no- form, value, default, meaning)])]

    def flags(self):
        return [flag for _, flags in self.sections for flag in flags]


def read_flags(text):
    """(commands, [(exit code, meaning)]) of doc/flags.md."""
    commands, exits = [], []
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        name, _, body = part.partition("\n")
        if name == "Exit codes":
            exits = re.findall(r"^\| (\d+) \| (.*) \|$", body, re.M)
        if not re.fullmatch(r"[a-z-]+", name):
            continue  # recipes
        about, example = re.match(r"\n(.*)\n\n    (.*)\n", body).groups()
        sections = []
        for section in re.split(r"^### ", body, flags=re.M)[1:]:
            rows = re.findall(r"^\| `--(\[no-\])?([a-z0-9-]+) ?([^`]*)` \| (?:`([^`]*)`)? *\| (.*) \|$", section, re.M)
            flags = [(flag, bool(no), plain(value), plain(default), plain(meaning)) for no, flag, value, default, meaning in rows]
            if flags:  # else lines of a file
                sections.append((section.partition("\n")[0], flags))
        shared = re.search(r"^(?:Flags of `train`|And of `train`'s flags): (.*)$", body, re.M)
        commands.append(Command(name, about, example, sections, shared[1] if shared else ""))
    if not commands or commands[0].name != "train" or not exits:
        raise SystemExit("error: doc/flags.md: expected the form that ./train_gpt --help-markdown has")
    return commands, exits


def plain(text):
    return text.replace("\\|", "|").replace("\\*", "*")


def troff(text):
    """Escapes text for troff."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    return "\\&" + text if text[:1] in (".", "'") else text


def man_page(commands, exits, version):
    out = [
        f'.TH TRAIN_GPT 1 "" "Anvil {version}" "User Commands"',
        ".SH NAME",
        "train_gpt \\- train GPTs on CPUs and NVIDIA GPUs",
        ".SH SYNOPSIS",
        "\\fBtrain_gpt\\fR [\\fICOMMAND\\fR] [\\fB\\-\\-\\fIflag value\\fR]...",
        ".SH DESCRIPTION",
        "Trains GPTs on token shards, which \\fBanvil\\-tokenize\\fR makes from text. Without a command it trains. Flags can",
        "also come from a file, with \\fB\\-\\-config\\fR \\fIFILE\\fR; the command line wins. \\fB\\-\\-version\\fR prints",
        "the version, \\fB\\-\\-help\\fR the most used flags of a command and \\fB\\-\\-help\\-all\\fR all of them.",
        ".SH COMMANDS",
    ]
    for command in commands:
        out += [".TP", f"\\fB{troff(command.name)}\\fR", troff(command.about)]
    for command in commands:
        out += [f'.SH "FLAGS OF {troff(command.name.upper())}"', ".nf", troff(command.example.replace("./", "")), ".fi"]
        for title, flags in command.sections:
            out.append(f'.SS "{troff(title)}"')
            for flag, no, value, default, meaning in flags:
                negated = f", \\fB\\-\\-no\\-{troff(flag)}\\fR" if no else ""
                argument = f" \\fI{troff(value)}\\fR" if value else ""
                end = f" [{troff(default)}]" if default else ""
                out += [".TP", f"\\fB\\-\\-{troff(flag)}\\fR{argument}{negated}", troff(meaning) + end]
        if command.shared:
            out += [".PP", f"Flags of train: {troff(command.shared)}"]
    out.append('.SH "EXIT STATUS"')
    for code, meaning in exits:
        out += [".TP", f"\\fB{code}\\fR", troff(meaning)]
    return "\n".join(out) + "\n"


def help_page(name, text, version):
    about = next(line for line in text.splitlines() if line and not line.lower().startswith("usage:") and not line[0].isspace())
    return "\n".join(
        [
            f'.TH {troff(name.upper())} 1 "" "Anvil {version}" "User Commands"',
            ".SH NAME",
            f"{troff(name)} \\- {troff(about[0].lower() + about[1:].rstrip('.'))}",
            ".SH DESCRIPTION",
            ".nf",
            *map(troff, text.splitlines()),
            ".fi",
            "",
        ]
    )


COMPLETION = """# Completion of train_gpt for bash; made by scripts/manual.py from doc/flags.md.
_train_gpt() {
    local current=${COMP_WORDS[COMP_CWORD]} before= command=train flags values
    [ "$COMP_CWORD" -lt 1 ] || before=${COMP_WORDS[COMP_CWORD - 1]}
    case ${COMP_WORDS[1]-} in
%(commands)s
    esac
    case $command in
%(flags)s
    esac
    case $command$before in
%(values)s
    *--config | *--*-data | *--tokenizer | *--resume | *--init-from | *--out-dir | *--profile | *--results | *--trace)
        # shellcheck disable=SC2207
        COMPREPLY=($(compgen -f -- "$current"))
        compopt -o filenames 2>/dev/null
        return
        ;;
    *) values= ;;
    esac
    if [ -n "$values" ]; then
        # shellcheck disable=SC2207
        COMPREPLY=($(compgen -W "$values" -- "$current"))
    elif [ "$COMP_CWORD" = 1 ] && [[ $current != -* ]]; then
        # shellcheck disable=SC2207
        COMPREPLY=($(compgen -W "%(names)s" -- "$current"))
    else
        # shellcheck disable=SC2207
        COMPREPLY=($(compgen -W "$flags --help --help-all --config" -- "$current"))
    fi
}
complete -F _train_gpt train_gpt ./train_gpt
"""


def words_of(command, train):
    """A command's flags, and [(flag, values)] of flags with a fixed set of values."""
    shared = [] if not command.shared else train.flags()
    if command.shared and command.shared != "all.":
        names = set(re.findall(r"`--([a-z0-9-]+)`", command.shared))
        shared = [flag for flag in shared if flag[0] in names]
    own = {flag[0] for flag in command.flags()}
    words, choices = [], []
    for flag, no, value, _, _ in command.flags() + [flag for flag in shared if flag[0] not in own]:
        words += [f"--{flag}"] + ([f"--no-{flag}"] if no else [])
        if re.fullmatch(r"[\w.-]+(\|[\w.-]+)+", value):
            choices.append((flag, value.split("|")))
    return words, choices


def completion(commands):
    names = [command.name for command in commands]
    flags, values = [], []
    for command in commands:
        words, choices = words_of(command, commands[0])
        flags.append(f"    {command.name}) flags='{' '.join(words)}' ;;")
        values += [f"    {command.name}--{flag}) values='{' '.join(words)}' ;;" for flag, words in choices]
    return COMPLETION % {
        "commands": f"    {' | '.join(names)}) command=${{COMP_WORDS[1]}} ;;",
        "flags": "\n".join(flags),
        "values": "\n".join(values),
        "names": " ".join(names),
    }


def main():
    commands, exits = read_flags((ROOT / "doc/flags.md").read_text(encoding="utf-8"))
    version = (ROOT / "VERSION").read_text(encoding="utf-8").strip()
    if sys.argv[1:] == ["man"]:
        print(man_page(commands, exits, version), end="")
    elif sys.argv[1:2] == ["man"] and len(sys.argv) == 3:
        print(help_page(sys.argv[2], sys.stdin.read(), version), end="")
    elif sys.argv[1:] == ["completion"]:
        print(completion(commands), end="")
    else:
        print("error: expected `man`, `man NAME` or `completion`; see scripts/manual.py", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
