#!/usr/bin/env python3
"""Checks the formatting of every text file of the project, and that none has a path of its author's machine.

    python3 dev/lint/check_text.py          prints FILE:LINE: the rule broken, for every one; exit code 1 if any

No tabs (except in Makefiles), no trailing blanks, one newline at the end, no path of somebody's machine. Sources and
scripts begin with a comment that says what they are. Comments in C++ have at most 120 columns: clang-format does not
reflow them, because it would join the rows of tables. So have lines of Makefiles. Only launch() launches kernels (llmc/cuda/device.cuh). What
only Linux has is called in llmc/platform/ alone. Python compiles; scripts with a #! line are executable. A link leads to a file of the project. No file is larger
than MOST_BYTES.
"""

import os
import pathlib
import re
import subprocess
import sys

COMMENT = {
    ".h": r"/\*|//", ".cuh": r"/\*|//", ".cpp": r"/\*|//", ".cu": r"/\*|//",
    ".py": r'(#!.*\n)?("""|#)', ".sh": r"#!.*\n#",
}  # fmt: skip
CXX_COMMENT = re.compile(r"/\*.*?\*/|^ *//[^\n]*", re.DOTALL | re.MULTILINE)
COLUMNS = 120
MOST_BYTES = 1_000_000
# Headers, calls and constants that Darwin lacks; paths of /proc, but for those below a folder that tests set.
LINUX_ONLY = re.compile(
    r"#include <(?:linux/|asm/|malloc\.h|sys/(?:epoll|eventfd|inotify|prctl|sendfile|signalfd|sysinfo|syscall|timerfd|vfs)\.h)[^>]*>?"
    r"|\b(?:accept4|dup3|pipe2|eventfd|signalfd|(?:epoll|inotify|timerfd)_\w+|memfd_create|prctl|syscall|SYS_\w+|getrandom|getauxval"
    r"|sched_[gs]et\w+|SCHED_IDLE|pthread_\w+_np|posix_fadvise|posix_fallocate|fallocate|fdatasync|sync_file_range|copy_file_range"
    r"|renameat2|mremap|sigtimedwait|sigwaitinfo|sem_timedwait|program_invocation_\w+|secure_getenv|strchrnul|qsort_r|mallopt|malloc_trim"
    r"|SOCK_CLOEXEC|SOCK_NONBLOCK|MSG_NOSIGNAL|POLLRDHUP|TCP_KEEPIDLE|TCP_USER_TIMEOUT|MAP_POPULATE|MADV_HUGEPAGE|O_PATH|O_TMPFILE"
    r"|O_DIRECT|GLOB_ONLYDIR|_SC_LEVEL\w+|st_[acm]tim)\b"
    r'|(?<!root \+ )"/proc/[\w/]*'
)
SOMEBODYS_PATH = re.compile(r"(?<![\w.}])/(home|root|work|Users)/\w[\w./-]*")


def files(root):
    """Tracked files, and new files that git does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout.decode().split("\0")
    return sorted(root / name for name in listed if name and ((root / name).is_file() or (root / name).is_symlink()))


def findings_in(path, name, text):
    is_make = path.name == "Makefile" or path.suffix == ".mk"
    for number, line in enumerate(text.split("\n"), 1):
        if "\t" in (line.lstrip("\t") if is_make else line):
            yield f"{name}:{number}: a tab"
        if is_make and len(line) > COLUMNS:
            yield f"{name}:{number}: a line of {len(line)} columns; expected {COLUMNS} at most"
        if line != line.rstrip():
            yield f"{name}:{number}: trailing blanks"
        match = SOMEBODYS_PATH.search(line)
        if match:
            yield f"{name}:{number}: {match[0]} is a path of one machine"
    if path.suffix in (".h", ".cuh", ".cpp", ".cu"):
        for comment in CXX_COMMENT.finditer(text):
            for extra, line in enumerate(comment[0].split("\n")):
                if len(line) > COLUMNS:
                    number = text.count("\n", 0, comment.start()) + extra + 1
                    yield f"{name}:{number}: a comment of {len(line)} columns; expected {COLUMNS} at most"
        if name.startswith(("llmc/", "data/", "train_gpt")) and not name.startswith("llmc/platform/"):
            for number, line in enumerate(re.sub(r"/\*.*?\*/", lambda c: "\n" * c[0].count("\n"), text, flags=re.DOTALL).split("\n"), 1):
                if match := LINUX_ONLY.search(line.split("//")[0]):
                    yield f"{name}:{number}: {match[0]} is not Darwin's: call a function of llmc/platform/"
    if path.suffix in (".cu", ".cuh") and name != "llmc/cuda/device.cuh" and "<<<" in text:
        yield f"{name}: only launch() launches kernels"
    if text and (not text.endswith("\n") or text.endswith("\n\n")):
        yield f"{name}: does not end with exactly one newline"
    if path.suffix in COMMENT and not re.match(COMMENT[path.suffix], text):
        yield f"{name}:1: does not begin with a comment that says what the file is"
    if text.startswith("#!") and not os.access(path, os.X_OK):
        yield f"{name}: has a #! line but is not executable (chmod +x)"
    if path.suffix == ".py":
        try:
            compile(text, name, "exec")
        except SyntaxError as error:
            yield f"{name}:{error.lineno}: {error.msg}"


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    found = []
    for path in files(root):
        if path.is_symlink():
            target = os.readlink(path)
            if os.path.isabs(target) or not path.exists() or not path.resolve().is_relative_to(root):
                found.append(f"{path.relative_to(root)}: a link to {target}, which is no file of the project: remove it")
            continue
        if path.stat().st_size > MOST_BYTES:
            found.append(f"{path.relative_to(root)}: {path.stat().st_size} bytes; expected {MOST_BYTES} at most")
        try:
            text = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            continue  # a binary fixture
        if "\0" not in text:
            found += findings_in(path, path.relative_to(root).as_posix(), text)
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
