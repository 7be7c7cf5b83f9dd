"""Boundary objects for what this machine lacks, and for a death or a pause at a chosen call.

with system.use(CaseFolding()):                       # names that differ in case only are one name
    ...
killed(lambda: save(root), "rename", nth=2)        # in a forked child, before its second rename

Calls are those of `txfiles._disk.system.FileSystem`. A commit renames T.intent (the commit point), each file, and
T.committed.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txfiles._disk import rounds, system
from txfiles._format import layout
from txfiles.testing._faults import FaultyFS

if TYPE_CHECKING:
    from txfiles._disk.rounds import Steps


def doing(work: Callable[[], object]) -> rounds.Job:
    """A job of `run_all` that asks for no sync."""

    def job() -> Steps:
        work()
        yield from ()

    return job


def nth_call(call: str, nth: int, act: Callable[[], object], inner: system.FileSystem | None = None) -> FaultyFS:
    """The kernel's file system, or `inner`; `act` is called before the `nth` call of this name."""
    seen = 0

    def plan(_: int, name: str) -> None:
        nonlocal seen
        seen += name == call
        if name == call and seen == nth:
            act()

    return FaultyFS(inner or system.KernelFS(), plan)


def killed(work: Callable[[], object], call: str, nth: int = 1, *, inner: system.FileSystem | None = None) -> None:
    """Do the work in a forked child that is killed (SIGKILL) before its `nth` call of this name."""
    fs: Any = nth_call(call, nth, lambda: os.kill(os.getpid(), signal.SIGKILL), inner)
    child = os.fork()
    if child == 0:
        try:
            with system.use(fs):
                work()
            sys.stderr.write(f"there were {fs.trace.count(call)} calls of {call}\n")
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status), f"the child ended before its call {nth} of {call}"


def tree(root: Path) -> dict[str, object]:
    """What users see below `root`: the content of files, the text of links, `None` for a directory."""
    found: dict[str, object] = {}
    for folder, directories, files in os.walk(root):
        if ".txfiles" in directories:
            directories.remove(".txfiles")
        for name in (*directories, *files):
            path = os.path.join(folder, name)
            shown = os.path.relpath(path, root)
            if os.path.islink(path):
                found[shown] = f"-> {os.readlink(path)}"
            else:
                found[shown] = None if os.path.isdir(path) else Path(path).read_bytes()
    return found


class InAnyOrder(system.KernelFS):
    """The jobs of a round one after another, in an order of chance."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def run_all(self, jobs: Iterable[rounds.Job]) -> None:
        todo = list(jobs)
        self._chance.shuffle(todo)
        for job in todo:
            rounds.perform(job)


class CaseFolding(system.KernelFS):
    """A file system like casefold ext4 or NTFS: a name finds the entry that differs from it in case only."""


class Refusing(system.KernelFS):
    """Renames onto the name `target` (`None`: onto any outside the private directory) fail with `error`, `times` times.

    With `then_die_undoing` the process is killed at the first rename after that.
    """

    def __init__(
        self, target: bytes | None, error: int = errno.EPERM, *, times: int = 1 << 30, then_die_undoing: bool = False
    ) -> None:
        self.target = target
        self.error = error
        self.times = times
        self.then_die_undoing = then_die_undoing
        self.refused = 0

    def rename(self, at: int, name: bytes, to: int, new: bytes) -> None:
        ours = layout.parse(new).kind != "unknown"
        if not ours and self.target in (None, new) and self.refused < self.times:
            self.refused += 1
            raise OSError(self.error, os.strerror(self.error), new)
        if self.refused and self.then_die_undoing and not (ours and new.endswith(b".aborting")):
            os.kill(os.getpid(), signal.SIGKILL)
        super().rename(at, name, to, new)


def _found(at: int | None, name: bytes) -> bytes:
    if at is None or not name or b"/" in name:
        return name
    wanted = os.fsdecode(name).casefold()
    return next((os.fsencode(there) for there in os.listdir(at) if there.casefold() == wanted), name)


def _one_name(call: str) -> None:
    def wrapped(self: CaseFolding, at: int | None, name: bytes = b"", *rest: Any, **options: Any) -> Any:
        return getattr(system.KernelFS, call)(self, at, _found(at, name), *rest, **options)

    setattr(CaseFolding, call, wrapped)


def _two_names(call: str) -> None:
    def wrapped(self: CaseFolding, at: int, name: bytes, to: int, new: bytes) -> None:
        getattr(system.KernelFS, call)(self, at, _found(at, name), to, _found(to, new))

    setattr(CaseFolding, call, wrapped)


for _call in (
    "open_dir",
    "open_read",
    "open_append",
    "open_lock",
    "create",
    "stat",
    "readlink",
    "mkdir",
    "rmdir",
    "unlink",
):
    _one_name(_call)
for _call in ("mount_id", "xattrs"):
    _one_name(_call)
for _call in ("link", "rename"):
    _two_names(_call)
