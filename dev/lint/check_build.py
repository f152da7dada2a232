#!/usr/bin/env python3
"""Checks what `make` finds and decides, with fake compilers, CUDA toolkits, libraries and nvidia-smi.

    python3 dev/lint/check_build.py         prints what differs from what is expected; exit code 1 if anything does

The fakes are files in a temporary folder: make reads headers for versions and runs programs on PATH, and compiles nothing.
"""

import concurrent.futures
import fcntl
import json
import os
import pathlib
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios

ROOT = pathlib.Path(__file__).resolve().parents[2]
GXX = shutil.which("g++")
CHIPS_12_4 = (50, 60, 70, 75, 80, 86, 87, 89, 90)
CHIPS_13_0 = (75, 80, 86, 87, 88, 89, 90, 100, 110, 103, 120, 121)
FAILURE = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


class Machine:
    """A folder with fakes, and the environment in which make finds them, and no others."""

    def __init__(self, folder):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=folder))
        self.wheels = self.folder / "nvidia"
        self.environment = {"PATH": f"{self.folder}/bin:/usr/bin:/bin", "NVIDIA_WHEELS": str(self.wheels), "HOME": str(self.folder)}

    def program(self, name, script):
        write(self.folder / "bin" / name, f"#!/bin/sh\n{script}\n")

    def gxx(self, name, major):
        """A compiler that says it is g++ `major`."""
        self.program(name, f'exec {GXX} -U__GNUC__ -D__GNUC__={major} "$@"')

    def cuda(self, version, chips=CHIPS_13_0, cublas=True, newest_gxx=99):
        home = self.folder / "cuda"
        major, minor = map(int, version.split("."))
        write(home / "bin/nvcc", f"#!/bin/sh\nprintf '%s\\n' {' '.join(f'compute_{chip}' for chip in chips)}\n")
        write(home / "include/cuda_runtime.h", "")
        write(home / "include/cuda_runtime_api.h", f"#define CUDART_VERSION  {1000 * major + 10 * minor}\n")
        write(home / "include/crt/host_config.h", f"#if __GNUC__ > {newest_gxx}\n#error -- unsupported GNU version! "
              f"gcc versions later than {newest_gxx} are not supported!\n#endif\n")
        if cublas:
            self.library(home / "include", home / "lib64", "cublasLt")
        self.environment["CUDA_HOME"] = str(home)
        return self

    def library(self, headers, libraries, name, version=""):
        write(headers / f"{name}.h", "")
        if version:
            major, minor = version.split(".")
            header = {"cudnn": "cudnn_version.h", "nccl": "nccl.h"}[name]
            write(headers / header, f"#define {name.upper()}_MAJOR {major}\n#define {name.upper()}_MINOR {minor}\n")
        write(libraries / f"lib{name}.so", "")
        return self

    def wheel(self, folder, name, version=""):
        return self.library(self.wheels / folder / "include", self.wheels / folder / "lib", name, version)

    def smi(self, text):
        write(self.folder / "smi.txt", text + "\n")
        self.program("nvidia-smi", f"cat {self.folder}/smi.txt")
        return self

    def make(self, *words, **environment):
        """What make says, stdout and stderr."""
        ran = subprocess.run(["make", "--no-print-directory", *words], cwd=ROOT, env={**self.environment, **environment}, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False)
        return ran.stdout

    def info(self, *words):
        return self.make("info", "CPU_ARCH=native", *words)


# Each check is a generator of (CASE, TEXT, WHAT IT MUST CONTAIN). A leading ! means that it must not.
def check_chips(new):
    def row(case, machine, *expected):
        return case, machine.info(), *expected

    yield row("CUDA 12.4 without nvidia-smi", new().cuda("12.4", CHIPS_12_4), "(12.4) for sm 80 90\n")
    yield row("CUDA 13.0 without nvidia-smi", new().cuda("13.0"), "(13.0) for sm 80 90 100\n")
    for text in (FAILURE, "[N/A]", 'Field "compute_cap" is not a valid field to query.', ""):
        yield row(f"nvidia-smi says {text!r}", new().cuda("13.0").smi(text), "for sm 80 90 100\n")
    yield row("two GPUs", new().cuda("13.0").smi("9.0\n8.6\n9.0"), "for sm 86 90\n")
    yield row("Turing beside Ampere", new().cuda("13.0").smi("7.5\n8.6"), "for sm 86\n")
    yield row("Turing", new().cuda("13.0").smi("7.5"), "no: missing a GPU that it supports (nvidia-smi lists sm 75,", "build/cpu\n")
    yield row("a GPU that nvcc does not know", new().cuda("12.4", CHIPS_12_4).smi("12.0"), "lists sm 120, CUDA 12.4 and Anvil know 80 86 87 89 90")
    yield row("nvcc does not run", new().cuda("12.4", ()), "an nvcc that runs")
    yield row("CUDA 12.3", new().cuda("12.3", CHIPS_12_4), "no: missing CUDA 12.4 or newer (", "has 12.3)", "build/cpu\n")
    yield "GPU_ARCHS", new().cuda("13.0").make("-n", "all", "GPU_ARCHS=sm_90"), "GPU_ARCHS=sm_90: expected some of 80 86"


def check_libraries(new):
    machine = new().cuda("12.4", CHIPS_12_4, cublas=False)
    yield "advice for CUDA 12", machine.info(), "`pip install nvidia-cublas-cu12`"
    machine.wheel("cu13", "cublasLt")
    yield "a wheel of CUDA 13", machine.info(), "missing cuBLASLt"
    machine.wheel("cublas", "cublasLt").wheel("cudnn", "cudnn", "9.10").wheel("nccl", "nccl", "2.22")
    found = machine.info("VARIANT=cuda")
    yield "wheels of CUDA 12", found, "nvidia/cublas/lib/libcublasLt.so\n", "nvidia/cudnn/lib/libcudnn.so\n", "nvidia/nccl/lib/libnccl.so\n"
    yield "wheels of CUDA 13", new().cuda("13.0", cublas=False).wheel("cu13", "cublasLt").info(), "nvidia/cu13/lib/libcublasLt.so\n", "for sm 80 90 100\n"
    yield "advice for CUDA 13", new().cuda("13.0", cublas=False).info(), "`pip install nvidia-cublas`"
    yield "USE_CUDNN=1", new().cuda("12.4", CHIPS_12_4).make("-n", "all", "USE_CUDNN=1"), "libcudnn9-dev-cuda-12 or nvidia-cudnn-cu12"

    home = (machine := new().cuda("13.0")).folder / "cuda"
    machine.library(home / "include", home / "lib64", "cudnn", "9.7").library(home / "include", home / "lib64", "nccl", "2.18")
    yield "old libraries", machine.info("VARIANT=cuda"), "no: %s/include/cudnn_version.h is of version 9.7, expected 9.8 or newer" % home, (
        "no: %s/include/nccl.h is of version 2.18, expected 2.19 or newer" % home), "for sm 80 90 100\n"
    yield "old cuDNN, required", machine.make("-n", "all", "USE_CUDNN=1"), "is of version 9.7, expected 9.8 or newer.  Stop."
    machine.wheel("cudnn", "cudnn", "9.10").wheel("nccl", "nccl", "2.19")
    yield "old libraries, and newer ones", machine.info("VARIANT=cuda"), "nvidia/cudnn/lib/libcudnn.so\n", "nvidia/nccl/lib/libnccl.so\n"


def check_compilers(new):
    machine = new()
    machine.gxx("g++", 11)
    yield "g++ 11", machine.make("-n"), "g++ 12 or clang++ 14, or newer", "Stop."
    machine.program("clang++-13", f'exec {GXX} -D__clang_major__=13 "$@"')
    yield "clang++ 13", machine.make("-n", "CXX=clang++-13"), "clang++-13 (", "too old", "Stop."
    machine = new().cuda("12.4", CHIPS_12_4, newest_gxx=9)
    yield "g++ newer than nvcc takes", machine.info(), "no: missing a host compiler that nvcc 12.4 takes (g++ is too new for it: install g++-9)"
    machine.gxx("g++-13", 9)
    yield "an older g++ beside it", machine.info(), "for sm 80 90, host code by g++-13\n"


def check_topics(new):
    machine = new()
    yield "a typo", machine.make("-n", "run-tests", "OP=layrnorm"), "no test is called layrnorm", "layernorm", "Stop.", "!CXX"
    for name in ("layernorm", "mpi"):  # a test file, a tag
        yield name, machine.make("-n", "run-tests", f"OP={name}", "VARIANT=cpu"), "make/run_tests.sh", "!Stop."


def check_commands(new):
    machine = new()
    clone = machine.folder / "clone"
    for name in subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, text=True, capture_output=True, check=True).stdout.split("\0"):
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    said = machine.make("-C", str(clone), "compile_commands.json", "CCACHE=", "VARIANT=cpu")
    commands = json.loads((clone / "compile_commands.json").read_text(encoding="utf-8"))
    files = {entry["file"] for entry in commands}
    words = {word for entry in commands for word in entry["arguments"]}
    missing = [name for name in ("llmc/cuda/table_rows.cu", "test/cpu/layernorm_test.cpp", "train_gpt.cu") if name not in files]
    missing += [word for word in words if word.startswith("-Ibuild") and not (clone / word[2:]).is_dir()] + list(words & {"-include"})
    missing += [name for name in ("registers.inc", "modeling_anvil.inc") if not (clone / "build/cpu/generated" / name).is_file()]
    yield "compile_commands.json of a fresh clone", f"missing: {missing} {said}", "missing: []"
    for name in ("aarch64-linux-gnu-g++", "qemu-aarch64"):
        machine.program(name, f'exec {GXX} "$@"')
    write(clone / ".deps/include/catch2/catch.hpp", "")
    yield "aarch64, with all that it needs", machine.make("-C", str(clone), "-n", "aarch64", "V=1"), "-o build/aarch64/tests", "-o build/aarch64/emulated/tests", "!skipped"
    machine.cuda("13.0")
    linked = machine.make("-C", str(clone), "-n", "run-gpu", "VARIANT=cuda", "OP=gelu", "V=1").split(" -o build/cuda/gpu-tests-gelu")[0]
    yield "the tests of a GPU", linked.rsplit("\n", 1)[-1], "test/cuda/gelu_cuda_test.cu.o", "test/main.cpp.o"


def check_symbols(new):
    for needed, *expected in (("GLIBC_2.34 GLIBC_2.9 GLIBCXX_3.4.30 CXXABI_1.3.13", "exit code 0"), ("GLIBC_2.4", "exit code 0"),
                              ("GLIBC_2.34 GLIBC_2.38", "prog needs GLIBC_2.38, expected at most GLIBC_2.35", "exit code 2"),
                              ("GLIBCXX_3.4.32 GLIBC_2.2.5", "prog needs GLIBCXX_3.4.32, expected at most GLIBCXX_3.4.30", "exit code 2")):
        machine = new()
        machine.program("objdump", f"printf '0000 DF *UND* 0000 (%s) name\\n' {needed}")
        ran = subprocess.run(["dev/lint/check_symbols.sh", "prog"], cwd=ROOT, env=machine.environment, text=True, capture_output=True, check=False)
        yield f"a program that needs {needed}", f"{ran.stderr}exit code {ran.returncode}", *expected


def stamp(new, terminal=None, **environment):
    """The stamps of a build by a g++ with texts in French for those who do not ask for English."""
    machine = new()
    machine.program("g++", f"""case " $* " in
    *" -v "*) if [ "$LC_ALL" != C ]; then {GXX} "$@" 2>&1 | sed "s/^End of/Fin de/" >&2; else exec {GXX} "$@"; fi ;;
    *) exec {GXX} "$@" ;;
    esac""")
    out = machine.folder / "out"
    files = [f"{out}/{name}" for name in ("flags", "llmc/cpu/chosen_kernels.cpp.o.flags", "llmc/comm/launch/mpi_ranks.cpp.o.flags")]
    said = subprocess.run(["make", "--no-print-directory", f"O={out}", "CPU_ARCH=native", *files], cwd=ROOT, text=True, capture_output=True,
                          env={**machine.environment, **environment}, stdin=terminal or subprocess.DEVNULL, check=False)
    texts = [pathlib.Path(name).read_text(encoding="utf-8") if os.path.exists(name) else said.stderr for name in files]
    return "".join(texts).replace(str(machine.folder), "")


def check_stamps(new):
    main, terminal = pty.openpty()
    fcntl.ioctl(main, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
    expected = stamp(new)
    yield "the stamp", expected, "-march=native", "!/bin/sh: "
    for case in ({"COLUMNS": "60"}, {"COLUMNS": "250"}, {"terminal": terminal}, {"LANG": "fr_FR.UTF-8", "LANGUAGE": "fr"}, {"LC_ALL": "tr_TR.UTF-8"},
                 {"TERM": "xterm-256color", "GCC_COLORS": "error=01;31", "NO_COLOR": "1", "CLICOLOR_FORCE": "1"}, {"TZ": "Asia/Tokyo", "TMPDIR": "/nowhere"}):
        yield f"the stamp with {case}", stamp(new, **case), expected
    os.close(main)
    os.close(terminal)


def main():
    folder = tempfile.mkdtemp()
    checks = (check_stamps, check_chips, check_libraries, check_compilers, check_topics, check_commands, check_symbols)
    wrong = 0
    try:
        with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            for rows in pool.map(lambda check: list(check(lambda: Machine(folder))), checks):
                for case, text, *expected in rows:
                    for part in expected:
                        if (part[1:] in text) if part.startswith("!") else (part not in text):
                            print(f"{case}: expected {part!r}, found:\n{text[:2000]}")
                            wrong += 1
    finally:
        shutil.rmtree(folder)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
