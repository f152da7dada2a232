"""What a disk may hold after a crash of the whole machine: every file system keeps what was synced, and of the rest what
it likes, in any order. So one run's calls are recorded, and states that a crash may leave are laid out and resumed.

The model, which is weaker than any file system in use (after Pillai et al., "All File Systems Are Not Created Equal",
OSDI 2014, whose tool is ALICE):

- The bytes of a file are safe after fsync of it. Until then each write may be there, or not, or its first half, or as
  many zeros; what is missing below something that is there reads as zeros.
- A name in a folder (created, renamed, removed) is safe after fsync of that folder. Until then each change may be
  there or not, whatever came before or after it, but that one of a name comes after the earlier ones of that name. A rename
  is there as a whole or not at all.
- A folder's name must be there for what is in it.
"""

import dataclasses
import json
import pathlib

from harness import Case, checkpoints


@dataclasses.dataclass
class Call:
    kind: str
    path: str
    other: str
    number: int
    data: bytes


def read_trace(path):
    """The calls that system_calls.cpp recorded."""
    raw, at = pathlib.Path(path).read_bytes(), 0
    while at < len(raw):
        end = raw.index(b"\n", at)
        kind, rest = raw[at:end].decode().split(" ", 1)
        name, other, number, count = rest.split("\t")
        at = end + 1 + int(count)
        yield Call(kind, name, other, int(number), raw[end + 1 : at])


class Inode:
    """A file or folder: what is safe of its content, and of a file's bytes the changes since."""

    def __init__(self, is_folder, link=""):
        self.is_folder, self.link = is_folder, link
        self.names, self.safe_names = {}, {}  # of a folder: name -> Inode, as programs see it and as is safe
        self.safe = b""
        self.pending = []  # of a file: (offset, bytes) of a write, (None, size) of a resize

    def content(self, choose):
        """The bytes, of the pending changes those that `choose(change)` takes: "all", "none", "half" or "zeros"."""
        data = bytearray(self.safe)
        for change in self.pending:
            (offset, what), taken = change, choose(change)
            if taken == "none":
                continue
            if offset is None:
                del data[what:]
                data.extend(bytes(what - len(data)))
                continue
            what = what[: len(what) // 2] if taken == "half" else bytes(len(what)) if taken == "zeros" else what
            data.extend(bytes(max(0, offset - len(data))))
            data[offset : offset + len(what)] = what
        return bytes(data)


class Disk:
    """A run's folder `root` as the calls so far leave it, and the changes of names that are not safe yet."""

    def __init__(self, root):
        self.root_path = str(root)
        self.root = Inode(True)
        self.pending = []  # a list of (folder, name, Inode or None) each: two for a rename

    def do(self, call):
        if call.path == self.root_path and call.kind != "fsync":
            return  # the folder itself was there before
        folder, name = self._place(call.path)
        if call.kind in ("create", "mkdir"):
            self._change([(folder, name, Inode(call.kind == "mkdir"))])
        elif call.kind == "symlink":
            self._change([(folder, name, Inode(False, call.other))])
        elif call.kind in ("unlink", "rmdir"):
            self._change([(folder, name, None)])
        elif call.kind == "rename":
            to, new_name = self._place(call.other)
            self._change([(to, new_name, folder.names[name]), (folder, name, None)])
        elif call.kind == "truncate":
            folder.names[name].pending.append((None, 0))
        elif call.kind == "resize":
            folder.names[name].pending.append((None, call.number))
        elif call.kind == "write":
            folder.names[name].pending.append((call.number, call.data))
        elif call.kind == "fsync":
            self._sync(self.root if call.path == self.root_path else folder.names[name])

    def _place(self, path):
        """The folder that a path lies in, and its name there."""
        folder, *rest = self.root, *path[len(self.root_path) + 1 :].split("/")
        for name in rest[:-1]:
            folder = folder.names[name]
        return folder, rest[-1]

    def _change(self, parts):
        self.pending.append(parts)
        for folder, name, inode in parts:
            apply(folder.names, name, inode)

    def _sync(self, inode):
        if not inode.is_folder:
            inode.safe, inode.pending = inode.content(lambda change: "all"), []
            return
        for parts in self.pending:
            if any(folder is inode for folder, _, _ in parts):
                for folder, name, other in parts:
                    apply(folder.safe_names, name, other)
        self.pending = [parts for parts in self.pending if not any(folder is inode for folder, _, _ in parts)]

    def lay_out(self, target, takes, choose):
        """A state: of the pending changes of names those that `takes(index)` takes, of bytes what `choose` says."""
        names = {}  # id of a folder -> its names in this state

        def names_of(folder):
            return names.setdefault(id(folder), dict(folder.safe_names))

        for i, parts in enumerate(self.pending):
            if takes(i):
                for folder, name, inode in parts:
                    apply(names_of(folder), name, inode)

        def write(folder, at):
            for name, inode in names_of(folder).items():
                if inode.is_folder:
                    (at / name).mkdir()
                    write(inode, at / name)
                elif inode.link:
                    (at / name).symlink_to(inode.link)
                else:
                    (at / name).write_bytes(inode.content(choose))

        write(self.root, pathlib.Path(target))


def apply(names, name, inode):
    if inode is None:
        names.pop(name, None)
    else:
        names[name] = inode


def promised(calls, root):
    """The newest checkpoint that a crash after these calls may not take: renamed, and the run's folder synced since."""
    renamed, safe = None, -1
    for call in calls:
        name = call.other.rsplit("/", 1)[-1] if call.kind == "rename" else ""
        if name.startswith("step_") and name[5:].isdigit():
            renamed = int(name[5:])
        if call.kind == "fsync" and call.path == str(root) and renamed is not None:
            safe = max(safe, renamed)
    return safe


def states_at(bench, disk):
    """(what it is called, which names, which bytes) of some states that a crash now may leave: the extreme ones, each
    change alone and each one left out, and as many at random."""
    count, dice = len(disk.pending), bench.random
    yield "nothing that is not synced", lambda i: False, lambda change: "none"
    yield "all that was done", lambda i: True, lambda change: "all"
    yield "all names, no bytes", lambda i: True, lambda change: "none"
    yield "all names, zeros for bytes", lambda i: True, lambda change: "zeros"
    for one in range(count):
        yield f"but for name {one}", lambda i, one=one: i != one, lambda change: "all"
        yield f"name {one} alone", lambda i, one=one: i == one, lambda change: "all"
    for number in range(max(4, count)):
        taken = [dice.random() < 0.5 for _ in range(count)]
        seed = dice.random()
        kinds = {}

        def choose(change, seed=seed, kinds=kinds):
            if id(change) not in kinds:
                kinds[id(change)] = ("all", "none", "half", "zeros")[int(dice.random() * 4)]
            return kinds[id(change)]

        yield f"random {number}", lambda i, taken=taken: taken[i], choose


def replay(bench):
    """Cases: states of one whole run, from its first call to its last in a random order of the calls."""
    for config in ("adamw", "waits", "ranks", "muon", "best"):
        out = bench.fresh("traced")
        trace = bench.scratch / f"{out.name}.trace"
        first = bench.run(bench.flags(out, config), torture={"DIR": out, "TRACE": trace})
        if first.code != 0:
            yield Case(f"the traced run failed: {first.last_words()}", config)
            continue
        calls = list(read_trace(trace))
        ends = list(range(len(calls) + 1))
        bench.random.shuffle(ends)
        for end in ends:
            disk = Disk(out)
            for call in calls[:end]:
                disk.do(call)
            safe = promised(calls[:end], out)
            for name, takes_names, choose in states_at(bench, disk):
                state = bench.fresh("state")
                state.mkdir()
                disk.lay_out(state, takes_names, choose)
                yield Case(wrong_state(bench, state, config, safe), f"configuration {config}, call {end}: {name}")
                bench.remove(state)
        bench.remove(out)


def wrong_state(bench, state, config, safe):
    """Resumes it: the same end as the undisturbed run, and no step lost that was promised."""
    finished = bench.resume(state, config)
    if finished.code == 0 and safe >= 0:
        begun = first_step_made(state, safe)
        if begun:
            return begun
    return bench.wrong_end(state, config, finished)


def first_step_made(state, safe):
    """What is wrong with where a resumed run began: it may not begin before what was promised."""
    text = (state / "log.jsonl").read_text(errors="replace")
    resumed = [line for line in text.splitlines() if '"type":"resume"' in line]
    if not resumed:
        return f"it began anew, and checkpoint {safe} was promised" if safe >= 0 and checkpoints(state) else ""
    step = json.loads(resumed[-1])["step"]
    return f"it went on at step {step}, and checkpoint {safe} was promised" if step < safe else ""
