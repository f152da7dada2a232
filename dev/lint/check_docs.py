#!/usr/bin/env python3
"""Checks that what README.md, the other pages in the root folder, those of doc/ and each folder's README tell a reader to type, open or
click exists.

    python3 dev/lint/check_docs.py          prints FILE:LINE: what is wrong, for every finding; exit code 1 if any
    python3 dev/lint/check_docs.py --test   tests the checker on small broken pages

Commands, in indented and fenced blocks and in inline code: the program or script exists and has every flag given to it; `make` has
the target and knows the variable and the topic. Flags alone in inline code: one of Anvil's programs has them, or they are in
FLAGS_OF_OTHERS. Paths exist, or git ignores them (files that programs write). Links lead to a page and a heading. Table rows have as
many cells as their header; a name in the cell after a file stands in that file. Figures in CLAIMS are those of the page with the
measurements. Each row of the README's tables has a test, script or result file in PROOFS. The README's count of lines is correct.
Pages written for GitHub may link to ../../actions and the like, which are no files. dev/LOG.md and dev/log/ are history, which names
files that are gone: of them only links and rows are checked.

Python scripts that make commands of flags name no line of a --model or --recipe file among them ("adam-eps": ...).

Flags of ./train_gpt are those of doc/flags.md, which `make test` compares with the program; see train_gpt_flags.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

FOLDERS = ("llmc", "test", "dev", "python", "scripts", "data", "doc", "make", ".ci", ".github")
PAGES = re.compile(r"[A-Z_]+\.md|dev/[a-z]+/README\.md|doc/([\w-]+/)?[\w-]+\.md|llmc/([\w-]+/)+README\.md|\.github/.*\.md|dev/LOG\.md|dev/log/\w+\.md")
# Flags of other programs that pages mention on their own.
FLAGS_OF_OTHERS = {
    "--bind-to", "--mca", "--host", "--map-by", "--hostfile", "--oversubscribe", "--allow-run-as-root",  # mpirun
    "--nnodes", "--node-rank", "--standalone", "--nproc-per-node", "--no-python", "--rdzv-id", "--rdzv-backend", "--rdzv-endpoint",  # torchrun
    "--gpus-per-task", "--gpus-per-node", "--signal", "--export",  # Slurm
    "--device-batch-size", "--max_iters",  # nanochat, nanoGPT
    "--trust-remote-code",  # vLLM
    "--pid", "--network", "--shm-size", "--ipc", "--ulimit",  # docker
}  # fmt: skip
FILES_OF_OTHERS = {"train_gpt2.py", "train_gpt2.cu"}  # llm.c's
# Words that may precede a command.
WRAPPERS = {"nice", "sudo", "env", "time", "exec", "sbatch"}
# Placeholders in paths and commands.
PLACEHOLDER = re.compile(r"^(OP|X|Y|NAME|FILE|DIR|DATE|PART|GPU-DATE|FOLDER|OUT|V|VARIANT|TOPIC)$")

# Figures and their sources: (page, pattern, page of the source, pattern there). The groups of both patterns, in the same order, must be
# equal up to the decimals on the first page.
CLAIMS = [
    (
        "README.md",
        r"\| GPT-2 124M in bf16, T = 256, tokens per second \| (\d+) \| ([\d.]+)x PyTorch 2.13 at its best, ([\d.]+)x in fp32 \|",
        "doc/performance.md",
        r"\| 124M-256: .* \| fp32 \|(?:[^|]*\|){5} ([\d.]+) \|[\s\S]*?\| 124M-256: .* \| bf16 \| (\d+) \|(?:[^|]*\|){3} ([\d.]+) \|",
        (1, 2, 0),
    ),
    (
        "README.md",
        r"\| nanoGPT's CPU model in bf16, tokens per second \| (\d+) \| ([\d.]+)x PyTorch 2.13 at its best, ([\d.]+)x in fp32 \|",
        "doc/performance.md",
        r"\| small: .* \| fp32 \|(?:[^|]*\|){5} ([\d.]+) \|[\s\S]*?\| small: .* \| bf16 \| (\d+) \|(?:[^|]*\|){3} ([\d.]+) \|",
        (1, 2, 0),
    ),
    (
        "README.md",
        r"\| nanoGPT's CPU model in fp32 on an Intel with AVX-512, tokens per second \| (\d+) \| ([\d.]+)x PyTorch 2.13 at its best \|",
        "doc/performance.md",
        r"Intel, AVX-512[^\n]*PyTorch[\s\S]*?\| small: .* \| fp32 \| (\d+) \|(?:[^|]*\|){3} ([\d.]+) \|",
        (0, 1),
    ),
    (
        "README.md",
        r"\| the same in bf16 with AMX \(Granite Rapids\) \| (\d+) \| ([\d.]+)x, ",
        "doc/performance.md",
        r"Intel, AMX[^\n]*PyTorch[\s\S]*?\| small: .* \| bf16 \| (\d+) \|(?:[^|]*\|){3} ([\d.]+) \|",
        (0, 1),
    ),
    (
        "README.md",
        r"2000 steps in fp32: validation loss \| ([\d.]+) in (\d+) s \|",
        "doc/performance.md",
        r"2000 steps in fp32 and eight validations: (\d+) s from start to end, validation loss ([\d.]+)",
        (1, 0),
    ),
    (
        "README.md",
        r"\| GPT-2 124M in bf16, decoding on one core \(Zen 4\), tokens per second \| (\d+) \| ([\d.]+)x transformers",
        "doc/performance.md",
        r"AVX-512 with bf16 \| 1 \| bf16 \| ([\d.]+), [^|]*\| ([\d.]+), ",
        (0, 1),
    ),
    (
        "README.md",
        r"SIGKILL at (\d+) random moments and around (\d+) system calls, then resume \| (\d+) wrong",
        "doc/reliability.md",
        r"\| kills \|[^|]*\| (\d+) \| 0 \|.*\n\| calls \|[^|]*\| (\d+) \| (0) \|",
        (0, 1, 2),
    ),
    (
        "README.md",
        r"one bit of a checkpoint flipped, ([\d,]+) times \| (\d+) wrong",
        "doc/reliability.md",
        r"\| flips \|[^|]*\| ([\d,]+) \| (\d+) \|",
        (0, 1),
    ),
    (
        "doc/cpu_gemm.md",
        r"multiply-add peak: (\d+) % in fp32 and (\d+) % in bf16 for GPT-2 124M at T = 256",
        "doc/performance.md",
        r"\| 124M-256 \| fp32 .*? at (\d+) % of the peak[\s\S]*?\| 124M-256 \| bf16 .*? at (\d+) % of the peak",
        (0, 1),
    ),
    (
        "doc/flash_attention.md",
        r"shared memory \| (\d+) bytes \| (\d+) bytes[\s\S]*keys: dk.*?\| (\d+) / (\d+) bytes[\s\S]*queries: dq.*?\| (\d+) / (\d+) bytes",
        "doc/results/occupancy.txt",
        r"flash_forward_kernel<64, 0> +128 +(\d+)[\s\S]*flash_backward_keys_kernel<64, 0> +128 +(\d+)[\s\S]*"
        r"flash_backward_queries_kernel<64, 0> +128 +(\d+)[\s\S]*flash_forward_kernel<128, 0> +128 +(\d+)[\s\S]*"
        r"flash_backward_keys_kernel<128, 0> +128 +(\d+)[\s\S]*flash_backward_queries_kernel<128, 0> +128 +(\d+)",
        (0, 3, 1, 4, 2, 5),
    ),
    (
        "doc/flash_attention.md",
        r"registers per thread, sm_90 \| (\d+) \| (\d+) \|[\s\S]*keys: dk.*\| (\d+) / (\d+) \|\n.*\| (\d+) / (\d+) \|",
        "doc/results/registers.txt",
        r"keys_kernel<128, 0> +\d+ +0 +(\d+)[\s\S]*keys_kernel<64, 0> +\d+ +0 +(\d+)[\s\S]*"
        r"queries_kernel<128, 0> +\d+ +0 +(\d+)[\s\S]*queries_kernel<64, 0> +\d+ +0 +(\d+)[\s\S]*"
        r"flash_forward_kernel<128, 0> +\d+ +0 +(\d+)[\s\S]*flash_forward_kernel<64, 0> +\d+ +0 +(\d+)",
        (5, 4, 1, 0, 3, 2),
    ),
    (
        "doc/predicted.md",
        r"for\s+an\s+H100\s+(\d+)\s+\((\d+)\s+to\s+(\d+)\)\s+tokens\s+per\s+second\s[^,]*,\s+(\d+)\s+with\s+ours",
        "doc/results/predicted-h100.json",
        r'"GPT-2 124M, B 32, cuDNN"[\s\S]*?"low": (\d+)[\s\S]*?"mid": (\d+)[\s\S]*?"high": (\d+)'
        r'[\s\S]*?"GPT-2 124M, B 32, own attention"[\s\S]*?"mid": (\d+)',
        (1, 0, 2, 3),
    ),
    (
        "README.md",
        r"(\d+) of (\d+) figures that others published for H100s are within (\d+) %",
        "doc/predicted.md",
        r"\| H100 \| (\d+) \|[^\n]*\| (\d+) within (\d+) %",
        (1, 0, 2),
    ),
    (
        "doc/design.md",
        r"Speed\s+costs\s+little:\s+([\d.]+)\s+to\s+([\d.]+)\s+times\s+MKL\s+in\s+fp32\s+and\s+([\d.]+)\s+to\s+([\d.]+)\s+times\s+oneDNN",
        "doc/performance.md",
        r"small \| fp32 \| \d+ \| \d+ \| ([\d.]+) \|[\s\S]*small \| bf16 \| \d+ \| \d+ \| ([\d.]+) \|"
        r"[\s\S]*124M \| fp32 \| \d+ \| \d+ \| ([\d.]+) \|[\s\S]*124M \| bf16 \| \d+ \| \d+ \| ([\d.]+) \|",
        (0, 2, 3, 1),
    ),
    (
        "scripts/run.sh",
        r'expected="([\d.]+), llm.c.s \(its discussion[\s\S]*expected="([\d.]+) bits per byte, and ([\d.]+) on CORE',
        "scripts/run_report/references.py",
        r"llm.c after 10 G tokens=([\d.]+)[\s\S]*nanochat=([\d.]+)[\s\S]*core: nanochat=([\d.]+)",
        (0, 1, 2),
    ),
    (
        "doc/speedrun.md",
        r"`gpt2-124M` \|.* ([\d.]+) \(llm.c[\s\S]*\| ([\d.]+) bits per byte, and ([\d.]+) on CORE, where GPT-2 1558M has ([\d.]+) \|",
        "scripts/run_report/references.py",
        r"llm.c after 10 G tokens=([\d.]+)[\s\S]*nanochat=([\d.]+)[\s\S]*core: nanochat=([\d.]+)[\s\S]*GPT-2 1558M=([\d.]+)",
        (0, 1, 2, 3),
    ),
    (
        "doc/speedrun.md",
        r"run: ([\d.]+) at step 125, ([\d.]+) at 250, ([\d.]+) at 500, ([\d.]+) at 1,000, ([\d.]+) at 2,000, ([\d.]+) at 3,000\s+and ([\d.]+) at 3,250",
        "scripts/run_report/references.py",
        r"=125:([\d.]+),250:([\d.]+),500:([\d.]+),1000:([\d.]+),2000:([\d.]+),3000:([\d.]+),3250:([\d.]+)",
        (0, 1, 2, 3, 4, 5, 6),
    ),
]


# The test, script or result file of each row of the README's tables, by heading and first cell. Every path exists, and both
# have the same rows. To check a test, break the code that it covers and see it fail.
PROOFS = {
    "What is measured": {
        "GPT-2 124M in bf16, T = 256, tokens per second": "doc/results/against-pytorch.json dev/bench/against_pytorch.py test/dev/cpu_speed_test.cpp",
        "nanoGPT's CPU model in bf16, tokens per second": "doc/results/against-pytorch.json dev/bench/against_pytorch.py test/dev/cpu_speed_test.cpp",
        "nanoGPT's CPU model in fp32 on an Intel with AVX-512, tokens per second": "doc/results/against-pytorch.json dev/bench/against_pytorch.py test/dev/cpu_speed_test.cpp",
        "the same in bf16 with AMX (Granite Rapids)": "doc/results/against-pytorch.json dev/bench/against_pytorch.py test/dev/cpu_speed_test.cpp",
        "nanoGPT's CPU example, 2000 steps in fp32: validation loss": "dev/bench/against_pytorch.py scripts/quickstart.sh",
        "GPT-2 124M in bf16, decoding on one core (Zen 4), tokens per second": "doc/results/decode-against-others.json "
        "dev/bench/decode_against_others.py dev/interop/check_servers.py",
        "SIGKILL at 500 random moments and around 700 system calls, then resume": "doc/results/torture.json dev/torture/main.py",
        "one bit of a checkpoint flipped, 10,000 times": "doc/results/torture.json dev/torture/main.py test/io/checkpoint_test.cpp",
    },
    "Which one do you want?": {
        "Written in": "make/find.mk",  # names every library that is looked for
        "Published speed on H100": "doc/results/h100-80gb-hbm3-2026-11-27/first/results.jsonl dev/results/perf_table.py",
        "Published GPT-2 124M run": "scripts/run.sh",  # would make one
        "Models": "test/interop/interop_test.cpp dev/interop/check_models.py",
        "Beyond pretraining": "test/data/chat_test.cpp test/python/nanochat_test.py dev/fixtures/make_nanochat_fixture.py",
        "Memory and scale": "test/train/zero_test.cpp test/model/model_test.cpp test/train/outer_optimizer_test.cpp",
        "Training on a CPU": "doc/results/against-pytorch.json",
        "Kernel tests in CI": "test/cuda/ dev/emulator/ dev/lint/check_mirrors.py",
        "Resume": "test/train/resume_test.cpp test/train/zero_test.cpp",
        "Checkpoints": "test/io/checkpoint_test.cpp test/train/kill_test.cpp doc/results/torture.json",
        "Size": "dev/lint/check_docs.py",
    },
}
# The last of these tables, whose cells about other projects have a file and a commit on the page NEIGHBORS.
COMPARISON = "Which one do you want?"
NEIGHBORS = "doc/comparison.md"
# Rows that the first screen of each project's own README shows.
PLAIN = {"Written in", "Size", "Models", "Beyond pretraining", "Training on a CPU"}


# ---- the tree --------------------------------------------------------------------------------------------------


def train_gpt_flags(root):
    """{command: flags}: `train_gpt NAME`, and `train_gpt` for `train`. Only this function depends on the form of doc/flags.md."""
    commands = {}
    for part in re.split(r"^## ", (root / "doc/flags.md").read_text(encoding="utf-8"), flags=re.M)[1:]:
        name = part.split("\n", 1)[0]
        if not re.fullmatch(r"[a-z-]+", name):
            continue  # recipes, exit codes
        flags = {"-h", "--help", "--help-all", "--config"}
        for no, flag in re.findall(r"^\| `--(\[no-\])?([a-z][a-z0-9-]*)", part, re.M):
            flags |= {"--" + flag, "--no-" + flag} if no else {"--" + flag}
        shared = re.search(r"^(?:Flags of `train`|And of `train`'s flags): (.*)", part, re.M)
        if shared:
            flags |= commands["train"] if shared[1] == "all." else set(re.findall(r"`(--[a-z-]+)`", shared[1]))
        commands[name] = flags
    return {"train_gpt": commands["train"] | {"--help-markdown", "--version"}} | {f"train_gpt {name}": flags for name, flags in commands.items()}


def flags_of_script(root, path):
    """The flags of a script: of its argparse, its header, and of programs that it passes them on to; None: any."""
    text = (root / path).read_text(encoding="utf-8")
    if path.endswith(".py"):
        found = set(re.findall(r'add_argument\(\s*"(--?[a-zA-Z][\w-]*)"', text))
        found |= set(re.findall(r'add_argument\(\s*"-\w",\s*"(--[\w-]+)"', text))
        if found:
            return found | {"-h", "--help"}
        usage = re.match(r'(?:#!.*\n)?"""([\s\S]*?)"""', text)
        return set(re.findall(r"(?<![\w-])(--[a-z][\w-]*)", usage[1] if usage else ""))
    header = re.match(r"(#.*\n)*", text)[0]
    found = set(re.findall(r"(?<![\w-])(--?[a-z][\w-]*)", header)) | {"-h", "--help"}
    found |= {flag for arm in re.findall(r"^\s*([-\w| =*]+)\)", text, re.M) for flag in re.findall(r"--[\w-]+", arm)}
    for script in re.findall(r"^exec .*?/(\w+\.sh)", text, re.M):
        if not path.endswith("/" + script):
            found |= flags_of_script(root, "scripts/" + script)
    if re.search(r"FLAGS are (\S*/)?train_gpt's|flags after it are train_gpt's", header):
        found |= train_gpt_flags(root)["train_gpt"]
    if "FLAGS are data/tokenize's" in header:
        found |= flags_of(root, "data/tokenize")
    return found


def flags_of(root, command):
    """{flags} of a program or script by its path from the root, or None if it is not one of Anvil's."""
    if command.startswith("train_gpt"):
        return train_gpt_flags(root).get(command)
    if command == "data/tokenize":
        source = (root / "data/tokenize.cpp").read_text(encoding="utf-8")
        return {"--" + name for name in re.findall(r'\{"\w+", "([\w-]+)", &', source)} | {"-h", "--help", "--help-all", "--config", "--version"}
    return flags_of_script(root, command)


class Tree:
    """The facts about the tree that the checks need, read once."""

    def __init__(self, root):
        self.root = root
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout.decode().split("\0")
        self.files = {name for name in listed if name and (root / name).is_file()}
        self.names = {name.rsplit("/", 1)[-1] for name in self.files}
        makefiles = [name for name in self.files if name == "Makefile" or name.endswith(".mk")]
        make = "\n".join((root / name).read_text(encoding="utf-8") for name in makefiles)
        self.targets = set(re.findall(r"^([a-zA-Z][\w./-]*):(?!=)", make, re.M)) | set(re.findall(r"[\w-]+", " ".join(
            re.findall(r"^\.PHONY:(.*(?:\\\n.*)*)", make, re.M))))  # fmt: skip
        scripts = "\n".join((root / name).read_text(encoding="utf-8") for name in self.files if name.endswith(".sh"))
        self.variables = set(re.findall(r"\b([A-Z][A-Z_0-9]+)\b", make)) | set(re.findall(r"\$\{?([A-Z][A-Z_0-9]+)", scripts))
        self.train_gpt = train_gpt_flags(root)
        self.cache = {}

    def flags(self, command):
        if command not in self.cache:
            self.cache[command] = flags_of(self.root, command)
        return self.cache[command]

    def all_flags(self):
        if "" not in self.cache:
            union = set(FLAGS_OF_OTHERS) | set().union(*self.train_gpt.values()) | self.flags("data/tokenize")
            for name in self.files:
                if name.startswith(("scripts/", "data/", "dev/", "make/")) and name.endswith((".sh", ".py")):
                    union |= self.flags(name)
                elif re.fullmatch(r"dev/bench/[\w]+\.(h|cuh|cu)", name):
                    union |= set(re.findall(r'"(--[a-z][\w-]*)"', (self.root / name).read_text(encoding="utf-8")))
            self.cache[""] = union
        return self.cache[""]

    def has_topic(self, name):
        return bool({f"{name}_test.cpp", f"{name}_cuda_test.cu", f"{name}_fuzz.cpp", f"{name}.cu"} & self.names)

    def has_path(self, path):
        """Whether a file or folder exists (with wildcards and placeholders), or git ignores it, as it does files that programs write."""
        for one in braces(path.rstrip("/")):
            one = re.sub(r"(?<![A-Za-z])(OP|X|NAME|FOLDER|GPU-DATE|PART|VARIANT|DATE)(?![A-Za-z])", "*", re.sub(r"<[^>]*>", "*", one))
            if any(self.root.glob(one)):
                continue
            name = one.replace("*", "x")
            ignored = subprocess.run(["git", "check-ignore", name, name + "/"], cwd=self.root, capture_output=True, check=False)
            if ignored.returncode != 0:
                return False
        return True


def braces(text):
    match = re.search(r"\{([^{}]*,[^{}]*)\}", text)
    if not match:
        return [text]
    return [one for part in match[1].split(",") for one in braces(text[: match.start()] + part + text[match.end() :])]


# ---- pages -----------------------------------------------------------------------------------------------------


def blocks_and_prose(text):
    """Lines as (number, kind, text): `code` in indented and fenced blocks (with continued lines joined), else `text`."""
    fenced, code, before = False, False, ""
    held, held_at = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("```"):
            fenced, before = not fenced, ""
            continue
        code = fenced or (line.startswith("    ") and (code or before.strip() == ""))
        before = line
        if not code:
            yield number, "text", line
            continue
        held, held_at = held + line.strip(), held_at or number
        if held.endswith("\\"):
            held = held[:-1]
            continue
        yield held_at, "code", held
        held, held_at = "", 0


def commands_in(line):
    """The commands of a line of shell, without comments: split at && ; | & and at columns of several commands."""
    line = re.split(r"(?:^|\s+)#\s", line)[0]
    line = re.sub(r"\$\([^)]*\)|'[^']*'|\"[^\"]*\"|<[^<>]*>", lambda m: "_" if m[0][0] != "<" else " ", line)
    parts = re.split(r"&&|\|\||[;|&()]", line)
    for part in parts:
        columns = re.split(r"\s{4,}", part.strip())
        for i, column in enumerate(columns):
            if i == 0 or program_in(column.split())[0]:
                yield column


def program_in(words):
    """(program as a path from the root or `make`, index after it), or (None, 0). Skips launchers, interpreters and NAME=value."""
    for i, word in enumerate(words):
        bare = word.removeprefix("./")
        if bare == "make" and all(w in WRAPPERS or "=" in w for w in words[:i]):
            return "make", i + 1
        if bare == "train_gpt" or bare.endswith("/train_gpt"):
            return "train_gpt", i + 1
        if bare == "data/tokenize":
            return bare, i + 1
        if re.fullmatch(r"(scripts|data|dev|make|\.ci)/[\w./*-]+", bare) and re.search(r"\.(py|sh)$|^\.ci/run$", bare):
            return bare, i + 1
    return None, 0


def findings_in_command(tree, command):
    words = command.split()
    program, at = program_in(words)
    if not program:
        return
    args = words[at:]
    if program == "make":
        for arg in args:
            if "=" in arg:
                if arg.split("=")[0] not in tree.variables:
                    yield f"make has no variable {arg.split('=')[0]}"
                topic = arg.removeprefix("OP=")
                if topic != arg and re.fullmatch(r"[a-z]\w*", topic) and not tree.has_topic(topic):
                    yield f"there is no topic {topic} to test, bench or fuzz"
            elif re.fullmatch(r"[a-z][\w./-]*", arg):
                if arg not in tree.targets and not arg.startswith("build/"):
                    yield f"make has no target {arg}"
            elif not re.fullmatch(r"-j\S*|\.\.\.", arg):
                break  # prose
        return
    if "*" in program:
        if not tree.has_path(program):
            yield f"there is no {program}"
        program = sorted(str(p.relative_to(tree.root)) for p in tree.root.glob(program))[0] if tree.has_path(program) else None
    elif program not in ("train_gpt", "data/tokenize") and program not in tree.files:
        yield f"there is no {program}"
        program = None
    if not program:
        return
    if program == "train_gpt" and args and f"train_gpt {args[0]}" in tree.train_gpt:
        program = f"train_gpt {args[0]}"
    known = tree.flags(program)
    for arg in args:
        flag = re.match(r"--[a-z][\w-]*", arg)
        if flag and flag[0] not in known:
            yield f"{program} has no flag {flag[0]}"
        elif re.match(rf"({'|'.join(map(re.escape, FOLDERS))})/", arg) and not tree.has_path(arg.rstrip(",;:.)")):
            yield f"there is no {arg}"


PATH = re.compile(rf"(?:\./)?((?:{'|'.join(map(re.escape, FOLDERS))})/[\w./*{{}},<>-]*)$")
FILE_NAME = re.compile(r"[\w-]+\.(h|cuh|cu|cpp|py|sh)$")


def findings_in_inline(tree, code):
    """The findings in one span of inline code."""
    path = PATH.match(code)
    if path and code.removeprefix("./") != "data/tokenize":
        if not tree.has_path(path[1]):
            yield f"there is no {path[1]}"
        return
    if FILE_NAME.match(code):
        if code not in tree.names | FILES_OF_OTHERS:
            yield f"there is no file {code}"
        return
    if code.startswith("--"):
        for flag in re.findall(r"(?:^|\s)(--[a-z][\w-]*)", code):
            if flag not in tree.all_flags():
                yield f"no program has the flag {flag}"
        return
    for command in commands_in(code):
        yield from findings_in_command(tree, command)


def slug(heading):
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(path):
    return {slug(line.lstrip("#")) for line in path.read_text(encoding="utf-8").split("\n") if line.startswith("#")}


def findings_in_links(tree, page, line):
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
        if re.match(r"[a-z]+:", target) or re.match(r"\.\./\.\./(actions|issues|discussions|security|releases)\b", target):
            continue
        file, _, anchor = target.partition("#")
        path = (tree.root / page).parent / file if file else tree.root / page
        if not path.exists():
            yield f"the link to {target} leads nowhere"
        elif page.startswith("doc/") and not path.resolve().is_relative_to(tree.root / "doc"):
            yield f"the link to {target} leads out of doc/, where the site has no page: name the file as code"
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            yield f"{file or page} has no heading #{anchor}"


def findings_in_page(tree, page):
    text = (tree.root / page).read_text(encoding="utf-8")
    cells = 0
    history = page.startswith("dev/")
    for number, kind, line in blocks_and_prose(text):
        found = []
        if history:
            found += findings_in_links(tree, page, line)
        elif kind == "code":
            first = line.split()[0] if line.split() else ""
            for command in commands_in(line):
                found += findings_in_command(tree, command)
            if PATH.match(first) and not tree.has_path(PATH.match(first)[1]):
                found.append(f"there is no {first}")
        else:
            # The tables of NEIGHBORS name other projects' files and flags; dev/lint/check_neighbors.py looks for them there.
            for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", "" if page == NEIGHBORS and line.startswith("|") else line):
                found += findings_in_inline(tree, code.strip())
                if page.startswith("llmc/") and FILE_NAME.match(code) and not (tree.root / page).with_name(code).exists():
                    found.append(f"{code} is not in this folder")
            for path in re.findall(r"(?<![\w/`.-])(doc/(?:[\w-]+/)?[\w-]+\.md)", line):
                if path not in tree.files:
                    found.append(f"there is no {path}")
            found += findings_in_links(tree, page, line)
            # A file and a name in the next cell: the name stands in the file.
            for file, name in re.findall(r"\| `([\w./]+)` \| `(\w+)` \|", "" if page == NEIGHBORS else line):
                if file in tree.files and not re.search(rf"\b{name}\b", (tree.root / file).read_text(encoding="utf-8")):
                    found.append(f"{file} has no {name}")
        if kind != "code":
            count = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
            if count and cells and count != cells:
                found.append(f"a row of {count - 1} cells in a table of {cells - 1}")
            cells = (cells or count) if count else 0
        for what in dict.fromkeys(found):
            yield f"{page}:{number}: {what}"


def number(text):
    return float(text.replace(",", ""))


def findings_in_claims(root, claims):
    for page, pattern, source, measured, order in claims:
        said = re.search(pattern, (root / page).read_text(encoding="utf-8"))
        there = re.search(measured, (root / source).read_text(encoding="utf-8"))
        if not said or not there:
            yield f"{page if not said else source}: no text like {pattern if not said else measured}: change CLAIMS with it"
            continue
        for figure, index in zip(said.groups(), order):
            decimals = len(figure.partition(".")[2])
            # Allows half of the last decimal, because the source is rounded, too.
            if abs(number(figure) - number(there.groups()[index])) > 0.51 * 10**-decimals:
                yield f"{page}: {figure}, where {source} has {there.groups()[index]} ({pattern})"


def tables(text):
    """{heading: rows of cells} of a page's tables, by the nearest heading above, without header rows."""
    found, heading, rows = {}, "", 0
    for line in text.split("\n"):
        if line.startswith("#"):
            heading = line.lstrip("# ")
        rows = rows + 1 if line.startswith("|") else 0
        if rows > 2:
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            found.setdefault(heading, []).append([cell.strip().strip("*") for cell in cells])
    return found


def findings_in_proofs(tree, readme, proofs):
    """Rows of the README's tables without a proof, proofs without a row, and proofs that do not exist."""
    said = tables(readme)
    for heading, proven in proofs.items():
        names = [cells[0] for cells in said.get(heading, [])]
        for name in names:
            if name not in proven:
                yield f"README.md: '{heading}' has a row '{name}', and PROOFS in dev/lint/check_docs.py has none"
        for name, paths in proven.items():
            if name not in names:
                yield f"README.md: no row '{name}' under '{heading}': change PROOFS in dev/lint/check_docs.py with it"
            for path in paths.split():
                if not tree.has_path(path):
                    yield f"README.md: '{name}': there is no {path}, its proof in PROOFS in dev/lint/check_docs.py"


def findings_in_neighbors(readme, sources):
    """Cells of the README's last table about another project without a row in `sources`. What a project has not needs none."""
    rows = {(row[0], row[1]) for row in tables(sources)["Sources"] if len(row) == 4}
    heading = next(line for line in readme.split("\n") if line.startswith("| | Anvil |"))
    projects = [cell.strip() for cell in heading.split("|")[3:-1]]
    for name, _, *cells in tables(readme)[COMPARISON]:
        for project, cell in zip(projects, cells):
            if name not in PLAIN and not re.match(r"no\b|none\b|PyTorch's", cell) and (name, project) not in rows:
                yield f"{NEIGHBORS}: no row '{name}' for {project}, of which README.md says '{cell}'"


def findings_in_size(root, files):
    said = re.search(r"^\| Size \| (\d+)k lines \|", (root / "README.md").read_text(encoding="utf-8"), re.M)
    lines = sum((root / name).read_bytes().count(b"\n") for name in files if name.startswith("llmc/") or name == "train_gpt.cu")
    # A change of a few hundred lines need not touch the README.
    if not said or abs(lines - 1000 * int(said[1])) > 1500:
        yield f"README.md: llmc/ and train_gpt.cu have {lines} lines: write '| Size | {round(lines / 1000)}k lines |'"


# ---- the checker itself ----------------------------------------------------------------------------------------

# Pages with one mistake each, and a part of the expected finding; then a page without mistakes.
BROKEN = [
    ("    ./train_gpt --learning-rat 1\n", "no flag --learning-rat"),
    ("    ./train_gpt generate --steps 3\n", "train_gpt generate has no flag --steps"),
    ("    ./train_gpt --steps 5 \\\n      --step 5\n", "no flag --step"),
    ("    mpirun -np 2 --bind-to none ./train_gpt --depht 3     and no more\n", "no flag --depht"),
    ("```\n./train_gpt --stepps 1\n```\n", "no flag --stepps"),
    ("- x\n\n```sh\nscripts/no_such.sh --steps 1\n```\n", "no scripts/no_such.sh"),
    ("see `./train_gpt --no-steps`\n", "no flag --no-steps"),
    ("see `--no-such-flag 3`\n", "no program has the flag --no-such-flag"),
    ("    data/tokenize x --outt y\n", "no flag --outt"),
    ("    make no-such-target\n", "no target no-such-target"),
    ("run `make test OOP=x`\n", "no variable OOP"),
    ("run `make test OP=no_such`\n", "no topic no_such"),
    ("    python3 scripts/report.py --shiny\n", "no flag --shiny"),
    ("    scripts/run.sh d12 --shiny\n", "no flag --shiny"),
    ("    make && scripts/quickstart.sh --hours 1\n", "no flag --hours"),
    ("in `llmc/cpu/no_such.h`\n", "no llmc/cpu/no_such.h"),
    ("in `no_such_file.h`\n", "no file no_such_file.h"),
    ("in `scripts/no_such_*.sh`\n", "no scripts/no_such_"),
    ("see doc/no_such.md\n", "no doc/no_such.md"),
    ("    llmc/no_such/   the engine\n", "no llmc/no_such/"),
    ("a [link](no_such.md)\n", "leads nowhere"),
    ("a [link](#no-such)\n\n## Such\n", "no heading #no-such"),
    ("| a | b |\n|---|---|\n| `x\n` | y |\n", "a row of"),
    ("| a | b |\n|---|---|\n| `llmc/cpu/layernorm.h` | `no_such` |\n", "has no no_such"),
]
SOUND = """# Page

[here](#page), `./train_gpt ... --dry-run`, `--bind-to none`, `llmc/cpu/layernorm.h`, `data/tinyshakespeare/train_*.bin`, `make test OP=kill`

    mpirun -np 8 ./train_gpt --depth 4 --no-shuffle          and nothing else: it exchanges --nothing
    data/tinyshakespeare.sh    data/fineweb.sh edu 10
    ./train_gpt generate --resume run/x --prompt a && ./train_gpt doctor --no-shuffle
    ANVIL_KEY=x ./train_gpt --steps 5 | tee --append log    # --comments are no flags
    scripts/run.sh d12 --dry-run && make sanitize JOBS=2

| a | b |
|---|---|
| `x\\|y` | z |
"""


def test(root):
    tree = Tree(root)
    with tempfile.TemporaryDirectory(dir=root, prefix=".check_docs-") as folder:
        page = pathlib.Path(folder) / "page.md"
        name = page.relative_to(root).as_posix()

        def found_in(text):
            page.write_text(text, encoding="utf-8")
            return list(findings_in_page(tree, name))

        for text, expected in BROKEN:
            found = found_in(text)
            assert any(expected in one for one in found), f"{text!r}: expected '{expected}', found {found}"
        assert found_in(SOUND) == [], found_in(SOUND)
        assert list(findings_in_links(tree, "doc/index.md", "[log](../dev/LOG.md)")), "a link out of the site passes"
        assert list(findings_in_links(tree, "dev/LOG.md", "[no](log/cpu.md#no-such-heading)")), "a link to a missing heading passes"
        for claim in CLAIMS:
            backwards = tuple(reversed(claim[4]))
            assert list(findings_in_claims(root, [(*claim[:4], backwards)])), f"{claim[1]}: exchanged figures pass"
        readme = (root / "README.md").read_text(encoding="utf-8")
        assert len(list(findings_in_proofs(tree, "", PROOFS))) > 10
        changed = list(findings_in_proofs(tree, readme.replace("SIGKILL at 500", "SIGKILL at 501"), PROOFS))
        assert len(changed) == 2 and all("SIGKILL at 50" in one for one in changed), changed
        assert list(findings_in_proofs(tree, readme, {COMPARISON: PROOFS[COMPARISON] | {"Size": "scripts/no_such.py"}}))
        assert list(findings_in_size(root, ["train_gpt.cu"]))
        assert list(findings_in_script(root, "x.py", 'flags = {"steps": 2, "adam-eps": 1e-8}'))
        assert list(findings_in_script(root, "x.py", '["--adam-eps=1e-8"]'))
        assert not list(findings_in_script(root, "x.py", '{"muon-learning-rate": 1, "norm": config.get("adam-eps")}'))
        assert list(findings_in_neighbors(readme.replace("llmq |", "fastq |"), (root / NEIGHBORS).read_text(encoding="utf-8")))


def findings_in_script(root, name, text):
    """Lines of files that a script takes for flags. Those of one word are no sign of a flag."""
    lines = set(re.findall(r"^\| `([a-z0-9]+-[a-z0-9-]+)=", (root / "doc/flags.md").read_text(encoding="utf-8"), re.M))
    for number, line in enumerate(text.splitlines(), 1):
        for word in re.findall(r'(?<!get\()"(?:--)?([a-z0-9-]+)["=]', line):
            if word in lines:
                yield f"{name}:{number}: {word} is no flag, but a line of a file (doc/flags.md)"


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    if sys.argv[1:] == ["--test"]:
        test(root)
        return 0
    tree = Tree(root)
    found = []
    for page in sorted(name for name in tree.files if PAGES.fullmatch(name)):
        found += findings_in_page(tree, page)
    found += findings_in_claims(root, CLAIMS)
    found += findings_in_proofs(tree, (root / "README.md").read_text(encoding="utf-8"), PROOFS)
    found += findings_in_neighbors(*((root / page).read_text(encoding="utf-8") for page in ("README.md", NEIGHBORS)))
    found += findings_in_size(root, tree.files)
    for name in sorted(name for name in tree.files if re.fullmatch(r"(scripts|dev/bench|dev/results|dev/torture)/.*\.py", name)):
        found += findings_in_script(root, name, (root / name).read_text(encoding="utf-8"))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
