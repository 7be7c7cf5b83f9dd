"""A real directory: what is in it, and calls to it that fail or never come back."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from tests.model.reference import Node, Tree
from txfiles._disk import system
from txfiles.testing._faults import FaultyFS

NEED_SPACE = frozenset(("create", "write", "mkdir", "link", "symlink", "rename", "chmod"))


class Killed(BaseException):
    """The process is gone: nothing that it still tries has any effect."""


class Dying(FaultyFS):
    """The kernel's file system; the process dies at call `die_at`, or call `fail_at` finds the disk full.

    What the kernel does at a process's end still happens: its descriptors are closed.
    """

    def __init__(self) -> None:
        super().__init__(system.KernelFS(), self._before)
        self.die_at: int | None = None
        self.fail_at: int | None = None

    def _before(self, number: int, name: str) -> None:
        if name == "close":
            return
        if self.die_at is not None and number >= self.die_at:
            raise Killed(f"at call {number}, {name}")
        if self.fail_at is not None and number >= self.fail_at and name in NEED_SPACE:
            self.fail_at = None
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def look(root: Path) -> Tree:
    """What is on disk, links as links; files without their serials."""
    found: Tree = {}
    for folder, directories, files in os.walk(root):
        if folder == str(root) and ".txfiles" in directories:
            directories.remove(".txfiles")
        for name in (*directories, *files):
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                node = Node("link", text=os.readlink(path))
            elif stat.S_ISDIR(mode):
                node = Node("dir", stat.S_IMODE(mode))
            elif stat.S_ISREG(mode):
                node = Node("file", stat.S_IMODE(mode), Path(path).read_bytes())
            else:
                node = Node("special")
            found[os.path.relpath(path, root)] = node
    return found
